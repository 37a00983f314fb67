"""PyTorch's training step on the cells of train_bench.sh (../cells.py, models.py): AdamW with decay on matrices only, clipping to norm 1,
fresh batches every step, two threads.

A cell is measured in every way a practitioner would try, and the fastest counts: eager or torch.compile, fused or
plain AdamW, images with channels first or last, and for bf16 either autocast over f32 weights or bf16 weights with f32
masters. Prints one JSON object a line: cell, precision, variant, per_s (tokens, or samples that are no text, of the fastest
step) and the same of the median step.

  python pytorch_train.py [--cells 124m-64,...] [--precisions f32,bf16] [--variants eager,compile] [--steps 8] [--seconds 30]
"""

import argparse
import json
import os
import sys
import time

import torch

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cells import CELLS  # noqa: E402
from models import MODELS  # noqa: E402


class Step:
    """One training step. `masters`: bf16 weights in the model, f32 masters in the optimizer."""

    def __init__(self, cell, precision, compiled, fused, masters, channels_last):
        torch.manual_seed(1)
        self.model = MODELS[cell.graph](**cell.sizes)
        if channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        self.autocast = precision == "bf16" and not masters
        self.masters = None
        trained = list(self.model.parameters())
        if masters:
            self.masters = [p.detach().clone().requires_grad_() for p in trained]
            self.model.bfloat16()
            trained = self.masters
        groups = [
            {"params": [p for p in trained if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.trained = trained
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=fused, foreach=None if fused else True)
        self.forward = torch.compile(self.model) if compiled else self.model

    def run(self, inputs, targets):
        if self.masters and inputs.is_floating_point():
            inputs = inputs.bfloat16()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            loss = self.forward(inputs, targets)
        loss.backward()
        if self.masters:
            for master, p in zip(self.masters, self.model.parameters()):
                master.grad = p.grad.float()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0, foreach=True)
        self.optimizer.step()
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(list(self.model.parameters()), self.masters)
        self.optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)
        return loss.item()


def batches(cell, channels_last):
    """Draws inputs and targets, time after time."""
    generator = torch.Generator().manual_seed(2)
    ints = lambda high, shape: torch.randint(0, high, shape, generator=generator)
    while True:
        if cell.seq:
            yield tuple(ints(cell.sizes["vocab"], (cell.batch, cell.seq)) for _ in range(2))
            continue
        _, shape, classes = cell.inputs()
        samples = torch.randn(cell.batch, *shape, generator=generator)
        yield samples.to(memory_format=torch.channels_last) if channels_last else samples, ints(classes, (cell.batch,))


def measure(cell, step, channels_last, steps, seconds):
    drawn = batches(cell, channels_last)
    for _ in range(2):
        step.run(*next(drawn))
    steps *= cell.short
    times, begin = [], time.perf_counter()
    while len(times) < 3 or (len(times) < steps and time.perf_counter() - begin < seconds):
        batch = next(drawn)
        start = time.perf_counter()
        step.run(*batch)
        times.append(time.perf_counter() - start)
    return sorted(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--precisions", default="f32,bf16")
    parser.add_argument("--variants", default="eager,compile")
    parser.add_argument("--bf16", default="autocast,masters", help="which ways of bf16 to try")
    parser.add_argument("--adamw", default="fused", help="fused, foreach or both")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="most steps timed of a variant")
    parser.add_argument("--seconds", type=float, default=30, help="most seconds timed of a variant, but at least 3 steps")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    for name in args.cells.split(","):
        cell = CELLS[name]
        for precision in args.precisions.split(","):
            for variant in args.variants.split(","):
                for way in args.bf16.split(",") if precision == "bf16" else [""]:
                    for adamw in args.adamw.split(","):
                        for layout in ["", "channels_last"] if cell.graph in ("convnet", "resnet") else [""]:
                            step = Step(cell, precision, variant == "compile", adamw == "fused", way == "masters", layout != "")
                            times = measure(cell, step, layout != "", args.steps, args.seconds)
                            print(json.dumps({
                                "cell": name, "precision": precision, "variant": "+".join(p for p in [variant, way, adamw, layout] if p),
                                "per_s": round(cell.units / times[0], 1), "median_per_s": round(cell.units / times[len(times) // 2], 1),
                                "steps": len(times), "torch": torch.__version__,
                            }), flush=True)
                            del step


if __name__ == "__main__":
    sys.exit(main())
