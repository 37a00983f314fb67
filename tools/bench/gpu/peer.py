"""PyTorch's training step on the cells of gpu_bench.sh: the same models, bf16 by autocast over f32 weights, PyTorch's own attention (which takes
cuDNN's or FlashAttention's), fused AdamW with decay on matrices only, clipping to norm 1, a fresh batch every step.

Prints one JSON object a line: cell, variant, step_ms (median), tokens_per_s, peak_gib, compile_s.

  python peer.py [--cells gpt2-124m,gpt2-1558m,llama-1b] [--variants compile,eager] [--steps 20]
"""

import argparse
import json
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cell:
    family: str
    layers: int
    heads: int
    kv_heads: int
    dim: int
    hidden: int
    vocab: int
    batch: int
    seq: int


CELLS = {
    "gpt2-124m": Cell("gpt2", 12, 12, 12, 768, 3072, 50304, 64, 1024),
    "gpt2-1558m": Cell("gpt2", 48, 25, 25, 1600, 6400, 50304, 16, 1024),
    "llama-1b": Cell("llama", 16, 32, 8, 2048, 8192, 128256, 8, 4096),
}


def attend(q, k, v, heads, kv_heads):
    b, t, _ = q.shape
    q = q.view(b, t, heads, -1).transpose(1, 2)
    k, v = (x.view(b, t, kv_heads, -1).transpose(1, 2) for x in (k, v))
    return q, k, v


class GptBlock(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.heads = cell.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(cell.dim), nn.LayerNorm(cell.dim)
        self.c_attn, self.c_proj = nn.Linear(cell.dim, 3 * cell.dim), nn.Linear(cell.dim, cell.dim)
        self.c_fc, self.mlp_proj = nn.Linear(cell.dim, cell.hidden), nn.Linear(cell.hidden, cell.dim)

    def forward(self, x, _):
        q, k, v = attend(*self.c_attn(self.ln_1(x)).split(x.shape[-1], -1), self.heads, self.heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.heads, self.kv_heads = cell.heads, cell.kv_heads
        kv = cell.dim // cell.heads * cell.kv_heads
        linear = lambda a, b: nn.Linear(a, b, bias=False)
        self.norm_1, self.norm_2 = nn.RMSNorm(cell.dim, eps=1e-5), nn.RMSNorm(cell.dim, eps=1e-5)
        self.q, self.k, self.v, self.o = linear(cell.dim, cell.dim), linear(cell.dim, kv), linear(cell.dim, kv), linear(cell.dim, cell.dim)
        self.gate, self.up, self.down = linear(cell.dim, cell.hidden), linear(cell.dim, cell.hidden), linear(cell.hidden, cell.dim)

    def forward(self, x, rope):
        cos, sin = rope
        n = self.norm_1(x)
        q, k, v = attend(self.q(n), self.k(n), self.v(n), self.heads, self.kv_heads)

        def turn(z):
            a, b = z.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(z.dtype)

        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        n = self.norm_2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Model(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell
        gpt = cell.family == "gpt2"
        self.wte = nn.Embedding(cell.vocab, cell.dim)
        self.wpe = nn.Embedding(cell.seq, cell.dim) if gpt else None
        self.blocks = nn.ModuleList((GptBlock if gpt else LlamaBlock)(cell) for _ in range(cell.layers))
        self.norm = nn.LayerNorm(cell.dim) if gpt else nn.RMSNorm(cell.dim, eps=1e-5)
        self.head = nn.Linear(cell.dim, cell.vocab, bias=False)
        if gpt:
            self.head.weight = self.wte.weight
        head_dim = cell.dim // cell.heads
        angles = torch.outer(torch.arange(cell.seq), 500000.0 ** (-torch.arange(0, head_dim, 2) / head_dim))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def measure(name, variant, steps):
    cell = CELLS[name]
    torch.manual_seed(1)
    torch.cuda.reset_peak_memory_stats()
    model = Model(cell).cuda()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)
    forward = torch.compile(model) if variant == "compile" else model
    generator = torch.Generator().manual_seed(2)
    batch = lambda: torch.randint(0, cell.vocab, (cell.batch, cell.seq), generator=generator).pin_memory().cuda(non_blocking=True)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = forward(batch(), batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    start = time.perf_counter()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    compile_s = time.perf_counter() - start
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    median = sorted(times)[len(times) // 2]
    print(json.dumps({
        "cell": name, "variant": variant, "step_ms": round(median * 1e3, 3), "tokens_per_s": round(cell.batch * cell.seq / median),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2), "compile_s": round(compile_s, 1), "loss": round(loss.item(), 4), "torch": torch.__version__,
    }), flush=True)
    del model, optimizer, forward
    torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--variants", default="compile")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    for name in args.cells.split(","):
        for variant in args.variants.split(","):
            try:
                measure(name, variant, args.steps)
            except torch.OutOfMemoryError:
                print(json.dumps({"cell": name, "variant": variant, "error": "out of memory"}), flush=True)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
