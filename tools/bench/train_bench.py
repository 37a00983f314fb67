"""Our training step against PyTorch's, cell by cell: in every round first `trainer run`, then PyTorch, so that what disturbs the
machine disturbs both. The first round tries every variant of PyTorch (peer/pytorch_train.py); later ones repeat the best.
The best step of all rounds counts on both sides; ratios are ours over theirs.

The floor of a step is its FLOPs over the measured rate of a large matrix product in that precision, plus AdamW's 28 bytes
a parameter over the measured memory bandwidth (both measured here, by PyTorch); activations' traffic is left out. FLOPs and
parameters are those of `trainer plan`, which counts products, convolutions and attention.

Writes one JSON object a cell and precision to stdout and a table to stderr.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

from cells import CELLS, HERE, ROOT, overrides, write_data


def measure_peaks(precisions):
    """Rates of this machine: FLOP/s by precision, bytes/s of a stream that reads two arrays and writes a third."""
    import torch

    torch.set_num_threads(os.cpu_count())

    def best(action, repeats=5):
        action()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
        return min(times)

    n = 2048
    peaks = {}
    for name, dtype in [("f32", torch.float32), ("bf16", torch.bfloat16)]:
        if name == "bf16" and "bf16" not in precisions:
            continue  # without bf16 instructions PyTorch takes minutes for it
        a, b = (torch.randn(n, n).to(dtype) for _ in range(2))
        peaks[name] = 2 * n**3 / best(lambda: a @ b)
    if "bf16" in peaks:
        peaks["bf16"] = max(peaks.values())  # bf16 can always be widened and multiplied in f32
    x, y, z = (torch.randn(2**26) for _ in range(3))
    peaks["memory"] = 3 * 4 * 2**26 / best(lambda: torch.add(x, y, out=z))
    return peaks


def arguments(cell, precision, data, steps):
    return [os.path.join(HERE, "train_cell.yaml"), *overrides(cell, precision, data), f"train.steps={steps}", "--json"]


def ask(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def run_ours(trainer, cell, precision, data, steps):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        ask([trainer, "run", *arguments(cell, precision, data, steps), f"log.jsonl={log}"])
        lines = [json.loads(line) for line in open(log)]
    return [line["step_ms"] / 1e3 for line in lines if "step_ms" in line][2:]  # as the peer, without two warm-up steps


def run_peer(name, precision, variants, bf16, steps):
    command = [sys.executable, os.path.join(HERE, "peer", "pytorch_train.py"), "--cells", name, "--precisions", precision,
               "--variants", ",".join(variants), "--steps", str(steps), "--bf16", ",".join(bf16)]
    return [json.loads(line) for line in ask(command).splitlines()]


def bench(trainer, name, precision, rounds, steps, peaks, folder):
    cell = CELLS[name]
    data = os.path.join(folder, f"{name}.bin" if cell.seq else f"{name}.safetensors")
    timed = steps * cell.short + 2
    if not os.path.exists(data):
        write_data(cell, (timed + 1) * cell.batch, data)
    ours, theirs, medians = [], {}, []
    variants, bf16 = ["eager", "compile"], ["autocast", "masters"]
    for _ in range(rounds):
        times = sorted(run_ours(trainer, cell, precision, data, timed))
        ours.append(cell.units / times[0])
        medians.append(cell.units / times[len(times) // 2])
        for result in run_peer(name, precision, variants, bf16, steps):
            theirs[result["variant"]] = max(theirs.get(result["variant"], 0), result["per_s"])
        best = max(theirs, key=theirs.get)
        variants = ["compile" if best.startswith("compile") else "eager"]
        bf16 = [way for way in bf16 if way in best] or bf16
    plan = json.loads(ask([trainer, "plan", *arguments(cell, precision, data, timed)]))
    floor = plan["model_flops_per_step"] / peaks[precision] + 28 * plan["parameters"] / peaks["memory"]
    return {"cell": name, "precision": precision, "ours_per_s": round(max(ours), 1), "ours_median": round(max(medians), 1),
            "pytorch_per_s": theirs[best], "pytorch_variant": best, "ratio": round(max(ours) / theirs[best], 3),
            "floor_per_s": round(cell.units / floor, 1), "of_floor": round(max(ours) / (cell.units / floor), 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=os.path.join(ROOT, "build", "trainer"))
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6, help="steps timed a round, after two of warm-up")
    args = parser.parse_args()
    precisions = args.precisions.split(",")
    peaks = measure_peaks(precisions)
    say = lambda text: print(text, file=sys.stderr, flush=True)
    rates = ", ".join(f"{name} {peaks[name] / 1e12:.2f} TFLOP/s" for name in precisions)
    say(f"peaks: {rates}, memory {peaks['memory'] / 1e9:.1f} GB/s")
    say(f"{'cell':10} {'dtype':5} {'ours':>10} {'PyTorch':>10} {'ratio':>6} {'floor':>10}  PyTorch's best")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.cells.split(","):
            for precision in precisions:
                row = bench(args.trainer, name, precision, args.rounds, args.steps, peaks, folder)
                print(json.dumps(row), flush=True)
                say(f"{name:10} {precision:5} {row['ours_per_s']:10.1f} {row['pytorch_per_s']:10.1f} {row['ratio']:6.2f} "
                    f"{row['floor_per_s']:10.1f}  {row['pytorch_variant']}")


if __name__ == "__main__":
    main()
