"""Three steps of torch.optim.Muon: square, wide and tall matrices, with both adjustments of the learning rate, with and without
Nesterov momentum and weight decay. PyTorch's Newton-Schulz steps are in bf16.

Tensors: `<shape>.w` [rows, cols] before, `<shape>.g` [3, rows, cols]; after, `<shape>.<adjust>.<nesterov>.<weight decay in thousandths>.w` and
`….momentum`."""

import numpy as np
import torch

SHAPES = {"square": (24, 24), "wide": (12, 40), "tall": (40, 12)}
LR, MOMENTUM, STEPS = 0.03125, 0.9375, 3  # exact in f32


def make(path, save_file):
    generator = torch.Generator().manual_seed(29)
    tensors = {}
    for shape, (rows, cols) in SHAPES.items():
        w = torch.randn(rows, cols, generator=generator)
        g = torch.randn(STEPS, rows, cols, generator=generator) * 0.1
        tensors[f"{shape}.w"], tensors[f"{shape}.g"] = w, g
        for adjust, nesterov, decay in [("original", True, 0.0), ("original", False, 0.125), ("match_rms_adamw", True, 0.125)]:
            p = torch.nn.Parameter(w.clone())
            optimizer = torch.optim.Muon([p], lr=LR, weight_decay=decay, momentum=MOMENTUM, nesterov=nesterov, adjust_lr_fn=adjust)
            for step in range(STEPS):
                p.grad = g[step].clone()
                optimizer.step()
            name = f"{shape}.{adjust}.{int(nesterov)}.{int(1000 * decay)}"
            tensors[f"{name}.w"] = p.detach()
            tensors[f"{name}.momentum"] = optimizer.state[p]["momentum_buffer"]
    save_file({k: np.ascontiguousarray(t.numpy()) for k, t in tensors.items()}, path, {"torch": torch.__version__})
