"""PyTorch's scaled_dot_product_attention on the shapes of attention_bench: causal, from packed qkv to [B, T, H·D].

Prints the best time of several runs, forward without autograd and forward with backward. Threads: OMP_NUM_THREADS (2).
"""
import os
import time

import torch
import torch.nn.functional as F

SHAPES = [(64, 6, 256, 64), (4, 12, 256, 64), (4, 12, 64, 64), (12, 4, 64, 32), (4, 12, 1024, 64)]


def best_ms(run, seconds=0.5):
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def main():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    for dtype in (torch.float32, torch.bfloat16):
        for b, h, t, d in SHAPES:
            qkv = torch.randn(b, t, 3 * h * d).to(dtype).requires_grad_()
            dy = torch.randn(b, t, h * d).to(dtype)

            def forward():
                q, k, v = (x.view(b, t, h, d).transpose(1, 2) for x in qkv.split(h * d, 2))
                return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, h * d)

            def both():
                qkv.grad = None
                forward().backward(dy)

            with torch.no_grad():
                alone = best_ms(forward)
            print(f"{str(dtype)[6:]} B{b} H{h} T{t} D{d}: forward {alone:.3f} ms, forward and backward {best_ms(both):.3f} ms", flush=True)


if __name__ == "__main__":
    main()
