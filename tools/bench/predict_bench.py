"""Predicted against measured step times on this machine: `trainer plan` by a hardware file that `trainer calibrate` wrote, `trainer run` for
the truth. GPT, Llama, perceptrons and networks of images, 1M to 124M parameters, f32 and bf16, one, two and four ranks, several strategies.

A shared machine is slow for seconds at a time, so every job runs in several rounds, far apart, and the quickest round's median step counts,
as it is the quickest pass that calibrate keeps. The range over the rounds is in the table.

Writes a table to stderr and a JSON object a job to stdout.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace

from cells import CELLS, HERE, ROOT, Cell, overrides, write_data


def gpt(layers, heads, dim, vocab, seq, batch):
    return Cell("gpt2", batch, seq, dict(layers=layers, heads=heads, dim=dim, vocab=vocab, context=seq))


def llama(layers, heads, kv_heads, dim, hidden, vocab, seq, batch):
    return Cell("llama", batch, seq, dict(layers=layers, heads=heads, kv_heads=kv_heads, dim=dim, hidden=hidden, vocab=vocab))


GPT_1M = gpt(4, 4, 128, 256, 64, batch=12)
GPT_11M = gpt(6, 6, 384, 256, 128, batch=8)
GPT_27M = gpt(8, 8, 512, 4096, 128, batch=8)
GPT_124M = gpt(12, 12, 768, 50304, 64, batch=4)
LLAMA_4M = llama(6, 8, 2, 256, 704, 256, 256, batch=8)
LLAMA_26M = llama(8, 8, 4, 512, 1408, 4096, 128, batch=4)
LLAMA_110M = llama(12, 12, 12, 768, 2048, 16384, 128, batch=4)
MLP_1M, MLP_55M, CONVNET, RESNET18, VIT = (CELLS[name] for name in ("mlp", "mlp-wide", "convnet", "resnet18", "vit"))

TENSOR = "{tensor: {degree: 2}}"
PIPELINE = "{pipeline: {degree: 2}}"

# name, cell, samples of a micro-batch and rank, dtype, ranks, strategy
JOBS = [
    ("gpt 1M, f32", GPT_1M, 12, "f32", 1, "ddp"),
    ("gpt 1M, bf16", GPT_1M, 12, "bf16", 1, "ddp"),
    ("gpt 1M, f32, ddp 2", GPT_1M, 6, "f32", 2, "ddp"),
    ("gpt 1M, f32, zero2 4", GPT_1M, 3, "f32", 4, "zero2"),
    ("gpt 11M, bf16", GPT_11M, 4, "bf16", 1, "ddp"),
    ("gpt 11M, bf16, fsdp 2", GPT_11M, 4, "bf16", 2, "fsdp"),
    ("gpt 11M, bf16, tensor 2", GPT_11M, 8, "bf16", 2, TENSOR),
    ("gpt 11M, f32, ddp 4", GPT_11M, 2, "f32", 4, "ddp"),
    ("gpt 11M, f32, pipeline 4", GPT_11M, 1, "f32", 4, "{pipeline: {degree: 4}}"),
    ("gpt 27M, f32, pipeline 2", GPT_27M, 1, "f32", 2, PIPELINE),
    ("gpt 124M, f32", GPT_124M, 4, "f32", 1, "ddp"),
    ("gpt 124M, bf16", GPT_124M, 4, "bf16", 1, "ddp"),
    ("gpt 124M, bf16, zero2 2", GPT_124M, 2, "bf16", 2, "zero2"),
    ("llama 4M, bf16", LLAMA_4M, 8, "bf16", 1, "ddp"),
    ("llama 4M, f32, ddp 2", LLAMA_4M, 4, "f32", 2, "ddp"),
    ("llama 4M, bf16, fsdp 4", LLAMA_4M, 2, "bf16", 4, "fsdp"),
    ("llama 26M, f32", LLAMA_26M, 4, "f32", 1, "ddp"),
    ("llama 26M, bf16, tensor 2", LLAMA_26M, 4, "bf16", 2, TENSOR),
    ("llama 26M, f32, pipeline 2", replace(LLAMA_26M, batch=8), 1, "f32", 2, PIPELINE),
    ("llama 26M, bf16, zb_h1 4", replace(LLAMA_26M, batch=8), 1, "bf16", 4, "{pipeline: {degree: 4, schedule: zb_h1}}"),
    ("llama 110M, bf16, fsdp 2", LLAMA_110M, 2, "bf16", 2, "fsdp"),
    ("mlp 1M, f32", MLP_1M, 64, "f32", 1, "ddp"),
    ("mlp 55M, bf16", MLP_55M, 256, "bf16", 1, "ddp"),
    ("mlp 55M, f32, zero1 2", MLP_55M, 128, "f32", 2, "zero1"),
    ("convnet, f32", CONVNET, 128, "f32", 1, "ddp"),
    ("resnet18, f32", RESNET18, 32, "f32", 1, "ddp"),
    ("resnet18, bf16", RESNET18, 32, "bf16", 1, "ddp"),
    ("vit 22M, bf16, ddp 2", VIT, 4, "bf16", 2, "ddp"),
]


def say(text):
    print(text, file=sys.stderr, flush=True)


def settings_of(cell, micro, dtype, ranks, strategy, folder):
    """The job as key=value over train_cell.yaml."""
    data = os.path.join(folder, f"{cell.sizes['vocab']}.bin" if cell.seq else f"{cell.graph}{cell.sizes['classes']}.safetensors")
    if not os.path.exists(data):
        write_data(cell, 120_000 // cell.seq if cell.seq else 4 * cell.batch, data)
    return [*overrides(cell, dtype, data, micro), f"cluster.devices_per_node={ranks}", f"strategy={strategy}", "checkpoint={dir: null}"]


def trainer(args, command, settings):
    prefix = ["chrt", "-f", str(args.priority)] if args.priority and command == "run" else []
    done = subprocess.run([*prefix, args.trainer, command, os.path.join(HERE, "train_cell.yaml"), *settings, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command} {' '.join(settings)}: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def predict(args, settings):
    where = [f"cluster.hardware={args.hardware}"] if args.hardware else []
    return trainer(args, "plan", [*settings, *where])["predicted"]


def measure(args, settings, predicted_ms):
    """Median of a run's steps, in ms. As many steps as take about args.seconds."""
    steps = max(5, min(80, int(args.seconds * 1000 / predicted_ms)))
    return trainer(args, "run", [*settings, f"train.steps={steps}"])["step_ms"]["median"]


def can_take(priority):
    return subprocess.run(["chrt", "-f", str(priority), "true"], capture_output=True).returncode == 0


def options(doc, jobs):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=os.path.join(ROOT, "build", "trainer"))
    parser.add_argument("--hardware", default="", help="a hardware file; without one this machine's own, where calibrate writes it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="of steps in a round")
    parser.add_argument("--priority", type=int, default=5, help="real-time priority of runs, where it is allowed; 0: none")
    parser.add_argument("--only", default="", help=f"jobs whose names have this in them, of: {'; '.join(jobs)}")
    args = parser.parse_args()
    args.hardware = os.path.abspath(args.hardware) if args.hardware else ""
    args.priority = args.priority if args.priority and can_take(args.priority) else 0
    return args


def main():
    args = options(__doc__, [job[0] for job in JOBS])
    jobs = [job for job in JOBS if args.only in job[0]]
    with tempfile.TemporaryDirectory() as folder:
        settings = [settings_of(*job[1:], folder) for job in jobs]
        predicted = [predict(args, one) for one in settings]
        rounds = [[] for _ in jobs]
        for _ in range(args.rounds):
            for i, one in enumerate(settings):
                rounds[i].append(measure(args, one, predicted[i]["step_ms"]))
        errors = []
        say(f"{'job':28} {'predicted':>10} {'measured':>10} {'error':>7}  rounds")
        for job, guess, times in zip(jobs, predicted, rounds):
            error = guess["step_ms"] / min(times) - 1
            errors.append(abs(error))
            print(json.dumps({"job": job[0], "predicted_ms": guess["step_ms"], "measured_ms": min(times), "error": error, "rounds_ms": times}), flush=True)
            say(f"{job[0]:28} {guess['step_ms']:10.2f} {min(times):10.2f} {100 * error:+6.1f}%  {' '.join(f'{t:.2f}' for t in times)}")
        say(f"of {len(jobs)} jobs: median error {100 * statistics.median(errors):.1f}%, worst {100 * max(errors):.1f}%")


if __name__ == "__main__":
    main()
