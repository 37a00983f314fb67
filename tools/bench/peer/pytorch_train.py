"""PyTorch's training step on the four cells of train_bench.sh: the same GPT-2 as configs/models/gpt2.yaml (biases, tied
head, tanh GELU), AdamW with decay on matrices only, clipping to norm 1, fresh batches every step, two threads.

A cell is measured in every way a practitioner would try, and the fastest counts: eager or torch.compile, fused or
plain AdamW, and for bf16 either autocast over f32 weights or bf16 weights with f32 masters. Prints one JSON object a
line: cell, precision, variant, tokens_per_s (of the fastest step) and the same of the median step.

  python pytorch_train.py [--cells 124m-64,...] [--precisions f32,bf16] [--variants eager,compile] [--steps 8] [--seconds 30]
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Cell:
    layers: int
    heads: int
    dim: int
    vocab: int
    context: int
    batch: int
    seq: int


CELLS = {
    "124m-64": Cell(12, 12, 768, 50304, 1024, 4, 64),
    "124m-256": Cell(12, 12, 768, 50304, 1024, 4, 256),
    "nano": Cell(4, 4, 128, 65, 64, 12, 64),
    "char": Cell(6, 6, 384, 65, 256, 64, 256),
}


class Block(nn.Module):
    def __init__(self, cell):
        super().__init__()
        d = cell.dim
        self.heads = cell.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.c_fc, self.c_out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, d // self.heads).transpose(1, 2) for p in self.c_attn(self.ln_1(x)).split(d, dim=2))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(o.transpose(1, 2).reshape(b, t, d))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(cell.vocab, cell.dim), nn.Embedding(cell.context, cell.dim)
        self.h = nn.ModuleList(Block(cell) for _ in range(cell.layers))
        self.ln_f = nn.LayerNorm(cell.dim)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


class Step:
    """One training step. `masters`: bf16 weights in the model, f32 masters in the optimizer."""

    def __init__(self, cell, precision, compiled, fused, masters):
        torch.manual_seed(1)
        self.model = Gpt(cell)
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

    def run(self, tokens, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            loss = self.forward(tokens, targets)
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


def measure(cell, step, steps, seconds):
    generator = torch.Generator().manual_seed(2)
    batch = lambda: torch.randint(0, cell.vocab, (cell.batch, cell.seq), generator=generator)
    for _ in range(2):
        step.run(batch(), batch())
    times, begin = [], time.perf_counter()
    while len(times) < 3 or (len(times) < steps and time.perf_counter() - begin < seconds):
        tokens, targets = batch(), batch()
        start = time.perf_counter()
        step.run(tokens, targets)
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
            for compiled in (v == "compile" for v in args.variants.split(",")):
                for way in args.bf16.split(",") if precision == "bf16" else [""]:
                    for adamw in args.adamw.split(","):
                        step = Step(cell, precision, compiled, adamw == "fused", way == "masters")
                        times = measure(cell, step, args.steps, args.seconds)
                        tokens = cell.batch * cell.seq
                        parts = ["compile" if compiled else "eager", way, adamw]
                        print(json.dumps({
                            "cell": name, "precision": precision, "variant": "+".join(p for p in parts if p),
                            "tokens_per_s": round(tokens / times[0], 1),
                            "median_tokens_per_s": round(tokens / times[len(times) // 2], 1),
                            "steps": len(times), "torch": torch.__version__,
                        }), flush=True)
                        del step


if __name__ == "__main__":
    sys.exit(main())
