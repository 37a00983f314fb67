"""Our training step against PyTorch's, cell by cell: in every round first `trainer run`, then PyTorch, so that what disturbs the
machine disturbs both. The first round tries every variant of PyTorch (peer/pytorch_train.py); later ones repeat the best.
The best step of all rounds counts on both sides; ratios are ours over theirs.

The floor of a step is its FLOPs over the measured rate of a large matrix product in that precision, plus AdamW's 28 bytes
a parameter over the measured memory bandwidth (both measured here, by PyTorch); activations' traffic is left out.

Writes one JSON object a cell and precision to stdout and a table to stderr.
"""

import argparse
import array
import json
import os
import random
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "peer"))
from pytorch_train import CELLS  # noqa: E402


def parameters(cell):
    return cell.vocab * cell.dim + cell.context * cell.dim + cell.layers * (12 * cell.dim**2 + 13 * cell.dim) + 2 * cell.dim


def flops(cell):
    """Of a step: 6 per weight of a product and token, and attention's causal half of 12·T·C per layer and token."""
    weights = cell.vocab * cell.dim + cell.layers * 12 * cell.dim**2
    return cell.batch * cell.seq * (6 * weights + 6 * cell.layers * cell.seq * cell.dim)


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


def run_ours(trainer, cell, precision, data, steps):
    overrides = [f"model.with.{key}={getattr(cell, key)}" for key in ("layers", "heads", "dim", "vocab", "context")]
    overrides += [f"data.train={data}", f"data.seq_len={cell.seq}", f"train.steps={steps}", f"train.batch.global={cell.batch}",
                  f"train.batch.micro={cell.batch}", f"precision.compute={precision}"]
    command = [trainer, "run", os.path.join(HERE, "train_cell.yaml"), *overrides, "--json"]
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        done = subprocess.run([*command, f"log.jsonl={log}"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
        lines = [json.loads(line) for line in open(log)]
    return [line["step_ms"] / 1e3 for line in lines if "step_ms" in line][2:]  # as the peer, without two warm-up steps


def run_peer(name, precision, variants, bf16, steps):
    command = [sys.executable, os.path.join(HERE, "peer", "pytorch_train.py"), "--cells", name, "--precisions", precision,
               "--variants", ",".join(variants), "--steps", str(steps), "--bf16", ",".join(bf16)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def bench(trainer, name, precision, rounds, steps, peaks, folder):
    cell = CELLS[name]
    data = os.path.join(folder, f"{name}.bin")
    if not os.path.exists(data):
        rng = random.Random(1)
        ids = array.array("H", (rng.randrange(cell.vocab) for _ in range(max(steps + 3, 20) * cell.batch * cell.seq + 1)))
        with open(data, "wb") as f:
            ids.tofile(f)
    tokens = cell.batch * cell.seq
    ours, theirs, medians = [], {}, []
    variants, bf16 = ["eager", "compile"], ["autocast", "masters"]
    for _ in range(rounds):
        times = sorted(run_ours(trainer, cell, precision, data, steps + 2))
        ours.append(tokens / times[0])
        medians.append(tokens / times[len(times) // 2])
        for result in run_peer(name, precision, variants, bf16, steps):
            theirs[result["variant"]] = max(theirs.get(result["variant"], 0), result["tokens_per_s"])
        best = max(theirs, key=theirs.get)
        variants = ["compile" if best.startswith("compile") else "eager"]
        bf16 = [way for way in bf16 if way in best] or bf16
    floor = flops(cell) / peaks[precision] + 28 * parameters(cell) / peaks["memory"]
    return {"cell": name, "precision": precision, "ours_tokens_per_s": round(max(ours), 1), "ours_median": round(max(medians), 1),
            "pytorch_tokens_per_s": theirs[best], "pytorch_variant": best, "ratio": round(max(ours) / theirs[best], 3),
            "floor_tokens_per_s": round(tokens / floor, 1), "of_floor": round(max(ours) / (tokens / floor), 3)}


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
                say(f"{name:10} {precision:5} {row['ours_tokens_per_s']:10.1f} {row['pytorch_tokens_per_s']:10.1f} {row['ratio']:6.2f} "
                    f"{row['floor_tokens_per_s']:10.1f}  {row['pytorch_variant']}")


if __name__ == "__main__":
    main()
