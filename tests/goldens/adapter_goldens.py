"""Goldens of training a part of a model: 20 steps of AdamW in f64, each case a file adapters/<name>.safetensors with

  init/<parameter>, final/<parameter>   what is trained, before the first step and after the last; of `base` what is frozen, too
  tokens, targets                       i32 [steps, batch, seq]
  loss                                  f64 [steps], the mean over the targets

and a JSON of the case in the metadata (`case`): model, params, trainable, adapter, optimizer, torch. The base's weights are those of
models/<model>/init.safetensors. Cases of LoRA start with B away from zero, drop nothing, and are trained twice: as written out here, and by
the `peft` library where it is installed, which has to give the same losses to 1e-12.

  python tests/goldens/adapter_goldens.py      (not part of make_goldens.py: it wants peft)
"""

import fnmatch
import json
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file, save_file

from model_goldens import Gpt2, Llama

STEPS, BATCH, SEQ = 20, 4, 12
OPTIMIZER = {"name": "adamw", "lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-06, "weight_decay": 0.1}
MODELS = {
    "gpt2": (lambda: Gpt2(2, 2, 32, 61, 24), {"layers": 2, "heads": 2, "dim": 32, "vocab": 61, "context": 24, "dropout": 0.0}),
    "llama": (lambda: Llama(2, 4, 2, 32, 40, 53, 10000.0),
              {"layers": 2, "heads": 4, "kv_heads": 2, "dim": 32, "hidden": 40, "vocab": 53, "rope_theta": 10000.0}),
}
HEADS = {"gpt2": "logits", "llama": "lm_head"}


class Lora:
    """The adapter on a model whose linears are called by name: y + B(s A x), with s = alpha / rank or alpha / sqrt(rank)."""

    def __init__(self, model, targets, rank, alpha, scaled_by_root, generator):
        self.model, self.factor = model, alpha / (math.sqrt(rank) if scaled_by_root else rank)
        self.parameters = {}
        for name in targets:
            out, into = model.parameters[f"{name}.weight"].shape
            draw = lambda *shape, scale: (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).float().double().requires_grad_()
            self.parameters[f"{name}.lora_A.weight"] = draw(rank, into, scale=0.2)
            self.parameters[f"{name}.lora_B.weight"] = draw(out, rank, scale=0.1)

    def __call__(self, name, x, plain):
        y = plain(name, x)
        if f"{name}.lora_A.weight" not in self.parameters:
            return y
        a, b = (self.parameters[f"{name}.lora_{part}.weight"] for part in "AB")
        return y + F.linear(F.linear(x, a), b) * self.factor


def batches(vocab, seed):
    rng = np.random.default_rng(seed)
    ids = [int(rng.integers(vocab))]
    while len(ids) < STEPS * BATCH * (SEQ + 1):
        ids.append((3 * ids[-1] + int(rng.integers(4))) % vocab)
    rows = torch.tensor(ids).view(STEPS, BATCH, SEQ + 1)
    return rows[..., :-1], rows[..., 1:]


def train(logits, parameters, tokens, targets):
    """AdamW as the job file has it: decay of what has two or more dims. Returns the losses."""
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": OPTIMIZER["weight_decay"]},
                                   {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=OPTIMIZER["lr"], betas=OPTIMIZER["betas"], eps=OPTIMIZER["eps"])
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        y = logits(tokens[step])
        loss = F.cross_entropy(y.reshape(-1, y.shape[-1]), targets[step].reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def base(name):
    model = MODELS[name][0]()
    here = os.path.dirname(os.path.abspath(__file__))
    with torch.no_grad():
        for key, array in load_file(os.path.join(here, "models", name, "init.safetensors")).items():
            assert torch.equal(model.parameters[key].float(), torch.tensor(array)), key
    return model


def save(path, model, case, parameters, initial, tokens, targets, losses):
    arrays = {f"init/{k}": v.float().numpy() for k, v in initial.items()}
    arrays |= {f"final/{k}": p.detach().float().numpy() for k, p in parameters.items()}
    arrays |= {"tokens": tokens.int().numpy(), "targets": targets.int().numpy(), "loss": np.asarray(losses, dtype=np.float64)}
    save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path, {"case": json.dumps(case | {"torch": torch.__version__})})
    print(f"{os.path.basename(path)}: {len(parameters)} trained, loss {losses[0]:.4f} to {losses[-1]:.4f}")


def globs_case(path, name, globs):
    model = base(name)
    for key, p in model.parameters.items():
        p.requires_grad_(any(fnmatch.fnmatchcase(key, glob) for glob in globs))
    trained = {k: p for k, p in model.parameters.items() if p.requires_grad}
    frozen = {k: p.detach().clone() for k, p in model.parameters.items() if not p.requires_grad}
    initial = {k: p.detach().clone() for k, p in trained.items()}
    tokens, targets = batches(MODELS[name][1]["vocab"], 301)
    losses = train(model.logits, list(trained.values()), tokens, targets)
    assert all(torch.equal(model.parameters[k].detach(), v) for k, v in frozen.items())
    assert sum(losses[-5:]) < sum(losses[:5])
    save(path, model, {"model": name, "params": MODELS[name][1], "trainable": globs, "optimizer": OPTIMIZER}, trained, initial, tokens, targets, losses)


class Named(torch.nn.Module):
    """The model's linears as modules of their own names, for peft to wrap; everything else as it is."""

    def __init__(self, model, names):
        super().__init__()
        self.own, self.names = model, names
        for name in names:
            weight, bias = model.parameters[f"{name}.weight"], model.parameters.get(f"{name}.bias")
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float64)
            with torch.no_grad():
                linear.weight.copy_(weight)
                if bias is not None:
                    linear.bias.copy_(bias)
            *parents, last = name.split(".")
            at = self
            for part in parents:
                if part not in at._modules:
                    at.add_module(part, torch.nn.Module())
                at = at._modules[part]
            at.add_module(last, linear)

    def forward(self, tokens):
        plain, get = type(self.own).__call__, self.get_submodule
        try:
            type(self.own).__call__ = lambda model, name, x: get(name)(x) if name in self.names else plain(model, name, x)
            return self.own.logits(tokens)
        finally:
            type(self.own).__call__ = plain


def by_peft(name, targets, rank, alpha, scaled_by_root, initial, tokens, ids):
    try:
        import peft
    except ImportError:
        print("  peft is not installed: not compared with it")
        return None
    named = Named(base(name), targets)
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=list(targets), use_rslora=scaled_by_root, bias="none")
    wrapped = peft.get_peft_model(named, config)
    trained = {k: p for k, p in wrapped.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for key, p in trained.items():
            p.copy_(initial[key.removeprefix("base_model.model.").replace(".default", "")])
    for p in trained.values():
        assert p.dtype == torch.float64
    return train(wrapped, list(trained.values()), tokens, ids)


def lora_case(path, name, targets, rank, alpha, scaled_by_root=False, also=()):
    model = base(name)
    linears = [k.removesuffix(".weight") for k, p in model.parameters.items() if p.dim() == 2 and not k.startswith(("wte", "wpe", "model.embed"))]
    chosen = [n for n in linears if n != HEADS[name]] if targets == "all-linear" else [n for n in linears if any(fnmatch.fnmatchcase(n, t) for t in targets)]
    for p in model.parameters.values():
        p.requires_grad_(False)
    lora = Lora(model, chosen, rank, alpha, scaled_by_root, torch.Generator().manual_seed(302))
    trained = dict(lora.parameters)
    for key, p in model.parameters.items():
        if any(fnmatch.fnmatchcase(key, glob) for glob in also):
            trained[key] = p.requires_grad_()
    initial = {k: p.detach().clone() for k, p in trained.items()}
    tokens, ids = batches(MODELS[name][1]["vocab"], 303)
    plain = type(model).__call__
    try:
        type(model).__call__ = lambda m, n, x: lora(n, x, lambda node, value: plain(m, node, value))
        losses = train(model.logits, list(trained.values()), tokens, ids)
    finally:
        type(model).__call__ = plain
    assert sum(losses[-5:]) < sum(losses[:5])
    if not also:
        others = by_peft(name, chosen, rank, alpha, scaled_by_root, initial, tokens, ids)
        if others is not None:
            worst = max(abs(a - b) for a, b in zip(losses, others))
            assert worst < 1e-12, worst
            print(f"  peft's losses differ by at most {worst:.1e}")
    case = {"model": name, "params": MODELS[name][1], "trainable": list(also) or "adapter", "optimizer": OPTIMIZER,
            "adapter": {"kind": "lora", "rank": rank, "alpha": alpha, "dropout": 0, "targets": targets, "scaled_by_root": scaled_by_root}}
    save(path, model, case, trained, initial, tokens, ids, losses)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "adapters")
    os.makedirs(folder, exist_ok=True)
    at = lambda name: os.path.join(folder, name + ".safetensors")
    globs_case(at("gpt2_biases"), "gpt2", ["*.bias"])
    globs_case(at("gpt2_last_block"), "gpt2", ["h.1.*", "ln_f.*"])
    globs_case(at("llama_norms_and_head"), "llama", ["*norm*", "lm_head.weight"])
    lora_case(at("gpt2_lora"), "gpt2", "all-linear", 4, 8)
    lora_case(at("llama_lora"), "llama", "all-linear", 4, 16)
    lora_case(at("llama_rslora_qv"), "llama", ["*.q_proj", "*.v_proj"], 3, 5, scaled_by_root=True)
    lora_case(at("llama_lora_and_norms"), "llama", ["*.down_proj"], 2, 4, also=["*norm*"])
