"""The choice on this machine: for each job every candidate strategy is predicted and really run, and the one that the prediction ranks
first is held against the fastest. Candidates take turns over several rounds, and of each the quickest round's median step counts.

`auto` is what `strategy: auto` chooses, run too unless it is the plan of one of the listed. What cannot be cut as a candidate asks is left out.

Writes a table to stderr and a JSON object a job to stdout.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cells import HERE  # noqa: E402
from predict_bench import GPT_1M, GPT_11M, GPT_27M, LLAMA_4M, LLAMA_26M, MLP_1M, MLP_55M, RESNET18, measure, options, say, settings_of  # noqa: E402

TWO = {
    "ddp": "ddp", "zero1": "zero1", "zero2": "zero2", "fsdp": "fsdp", "tensor 2": "{tensor: {degree: 2}}",
    "tensor 2, sequence": "{tensor: {degree: 2, sequence_parallel: true}}", "pipeline 2": "{pipeline: {degree: 2}}",
    "pipeline 2, zb_h1": "{pipeline: {degree: 2, schedule: zb_h1}}",
}
FOUR = {
    "ddp": "ddp", "zero1": "zero1", "zero2": "zero2", "fsdp": "fsdp", "tensor 2, ddp": "{tensor: {degree: 2}}",
    "tensor 4": "{tensor: {degree: 4}}", "pipeline 2, ddp": "{pipeline: {degree: 2}}", "pipeline 4": "{pipeline: {degree: 4}}",
    "pipeline 2, tensor 2": "{pipeline: {degree: 2}, tensor: {degree: 2}}",
}

# name, cell, samples of a micro-batch and rank, dtype, ranks
JOBS = [
    ("gpt 1M, f32, 2 ranks", GPT_1M, 3, "f32", 2),
    ("gpt 11M, bf16, 2 ranks", GPT_11M, 2, "bf16", 2),
    ("gpt 27M, f32, 2 ranks", GPT_27M, 2, "f32", 2),
    ("llama 4M, bf16, 2 ranks", LLAMA_4M, 2, "bf16", 2),
    ("llama 26M, f32, 2 ranks", replace(LLAMA_26M, batch=8), 2, "f32", 2),
    ("llama 26M, bf16, 2 ranks", replace(LLAMA_26M, batch=8), 2, "bf16", 2),
    ("mlp 1M, f32, 2 ranks", MLP_1M, 16, "f32", 2),
    ("mlp 55M, bf16, 2 ranks", MLP_55M, 64, "bf16", 2),
    ("resnet18, f32, 2 ranks", RESNET18, 8, "f32", 2),
    ("gpt 1M, bf16, 4 ranks", replace(GPT_1M, batch=16), 2, "bf16", 4),
    ("llama 4M, f32, 4 ranks", LLAMA_4M, 1, "f32", 4),
    ("gpt 11M, bf16, 4 ranks", GPT_11M, 1, "bf16", 4),
]


def plan(args, settings):
    """`plan --json`, or nothing where the job cannot be cut so."""
    where = [f"cluster.hardware={args.hardware}"] if args.hardware else []
    done = subprocess.run([args.trainer, "plan", os.path.join(HERE, "train_cell.yaml"), *settings, *where, "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def bench(args, job, folder):
    listed = TWO if job[4] == 2 else FOUR
    settings = {name: settings_of(*job[1:], strategy, folder) for name, strategy in listed.items()}
    plans = {name: plan(args, one) for name, one in settings.items()}
    auto = plan(args, settings_of(*job[1:], "auto", folder))
    if auto and all(one is None or one["hash"] != auto["hash"] for one in plans.values()):
        settings["auto"], plans["auto"] = settings_of(*job[1:], json.dumps(auto["strategy"]), folder), auto
    settings = {name: one for name, one in settings.items() if plans[name]}
    predicted = {name: plans[name]["predicted"]["step_ms"] for name in settings}
    rounds = {name: [] for name in settings}
    for _ in range(args.rounds):
        for name, one in settings.items():
            rounds[name].append(measure(args, one, predicted[name]))
    return predicted, {name: min(times) for name, times in rounds.items()}


def main():
    args = options(__doc__, [job[0] for job in JOBS])
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for job in (job for job in JOBS if args.only in job[0]):
            predicted, measured = bench(args, job, folder)
            first, fastest = min(predicted, key=predicted.get), min(measured, key=measured.get)
            regret = measured[first] / measured[fastest] - 1
            worst = max(worst, regret)
            say(f"{job[0]}: predicted first {first}, fastest {fastest}, regret {100 * regret:.1f}%")
            for name in sorted(predicted, key=predicted.get):
                say(f"  {name:22} predicted {predicted[name]:9.2f} ms, measured {measured[name]:9.2f} ms")
            print(json.dumps({"job": job[0], "first": first, "fastest": fastest, "regret": regret, "predicted_ms": predicted, "measured_ms": measured}), flush=True)
    say(f"worst regret {100 * worst:.1f}%")


if __name__ == "__main__":
    main()
