"""Predicted against measured step times on this machine: `trainer plan` by a hardware file that `trainer calibrate` wrote, `trainer run` for
the truth. Both GPT and Llama, 1M to 124M parameters, f32 and bf16, one, two and four ranks, several strategies.

A shared machine is slow for seconds at a time, so every job runs in several rounds, far apart, and the quickest round's median step counts,
as it is the quickest pass that calibrate keeps. The range over the rounds is in the table.

Writes a table to stderr and a JSON object a job to stdout.
"""

import argparse
import array
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

GPT_1M = {"graph": "gpt2", "layers": 4, "heads": 4, "dim": 128, "vocab": 256, "context": 64}
GPT_11M = {"graph": "gpt2", "layers": 6, "heads": 6, "dim": 384, "vocab": 256, "context": 128}
GPT_27M = {"graph": "gpt2", "layers": 8, "heads": 8, "dim": 512, "vocab": 4096, "context": 128}
GPT_124M = {"graph": "gpt2", "layers": 12, "heads": 12, "dim": 768, "vocab": 50304, "context": 64}
LLAMA_4M = {"graph": "llama", "layers": 6, "heads": 8, "kv_heads": 2, "dim": 256, "hidden": 704, "vocab": 256, "rope_theta": 10000.0}
LLAMA_26M = {"graph": "llama", "layers": 8, "heads": 8, "kv_heads": 4, "dim": 512, "hidden": 1408, "vocab": 4096, "rope_theta": 10000.0}
LLAMA_110M = {"graph": "llama", "layers": 12, "heads": 12, "kv_heads": 12, "dim": 768, "hidden": 2048, "vocab": 16384, "rope_theta": 10000.0}

TENSOR = "{tensor: {degree: 2}}"
PIPELINE = "{pipeline: {degree: 2}}"

# name, model, sequence, samples a step, samples a micro-batch and rank, dtype, ranks, strategy
JOBS = [
    ("gpt 1M, f32", GPT_1M, 64, 12, 12, "f32", 1, "ddp"),
    ("gpt 1M, bf16", GPT_1M, 64, 12, 12, "bf16", 1, "ddp"),
    ("gpt 1M, f32, ddp 2", GPT_1M, 64, 12, 6, "f32", 2, "ddp"),
    ("gpt 1M, f32, zero2 4", GPT_1M, 64, 12, 3, "f32", 4, "zero2"),
    ("gpt 11M, bf16", GPT_11M, 128, 8, 4, "bf16", 1, "ddp"),
    ("gpt 11M, bf16, fsdp 2", GPT_11M, 128, 8, 4, "bf16", 2, "fsdp"),
    ("gpt 11M, bf16, tensor 2", GPT_11M, 128, 8, 8, "bf16", 2, TENSOR),
    ("gpt 11M, f32, ddp 4", GPT_11M, 128, 8, 2, "f32", 4, "ddp"),
    ("gpt 27M, f32, pipeline 2", GPT_27M, 128, 8, 1, "f32", 2, PIPELINE),
    ("gpt 124M, f32", GPT_124M, 64, 4, 4, "f32", 1, "ddp"),
    ("gpt 124M, bf16", GPT_124M, 64, 4, 4, "bf16", 1, "ddp"),
    ("gpt 124M, bf16, zero2 2", GPT_124M, 64, 4, 2, "bf16", 2, "zero2"),
    ("llama 4M, bf16", LLAMA_4M, 256, 8, 8, "bf16", 1, "ddp"),
    ("llama 4M, f32, ddp 2", LLAMA_4M, 256, 8, 4, "f32", 2, "ddp"),
    ("llama 4M, bf16, fsdp 4", LLAMA_4M, 256, 8, 2, "bf16", 4, "fsdp"),
    ("llama 26M, f32", LLAMA_26M, 128, 4, 4, "f32", 1, "ddp"),
    ("llama 26M, bf16, tensor 2", LLAMA_26M, 128, 4, 4, "bf16", 2, TENSOR),
    ("llama 26M, f32, pipeline 2", LLAMA_26M, 128, 8, 1, "f32", 2, PIPELINE),
    ("llama 110M, bf16, fsdp 2", LLAMA_110M, 128, 4, 2, "bf16", 2, "fsdp"),
]


def say(text):
    print(text, file=sys.stderr, flush=True)


def write_tokens(folder, vocabulary):
    path = os.path.join(folder, f"tokens{vocabulary}.bin")
    if not os.path.exists(path):
        rng = random.Random(1)
        with open(path, "wb") as f:
            array.array("H", (rng.randrange(vocabulary) for _ in range(120_000))).tofile(f)
    return path


def overrides(job, folder):
    """The job as key=value over train_cell.yaml."""
    _, model, seq, batch, micro, dtype, ranks, strategy = job
    params = ", ".join(f"{key}: {value}" for key, value in model.items() if key != "graph")
    graph = os.path.join(ROOT, "configs", "models", model["graph"] + ".yaml")
    return [f"model={{graph: {graph}, with: {{{params}}}}}", f"data.train={write_tokens(folder, model['vocab'])}", f"data.seq_len={seq}",
            f"train.batch={{global: {batch}, micro: {micro}}}", f"precision.compute={dtype}", f"cluster.devices_per_node={ranks}",
            f"strategy={strategy}", "checkpoint={dir: null}"]


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
        settings = [overrides(job, folder) for job in jobs]
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
