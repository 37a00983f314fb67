"""Goldens of training a part of a model: 20 steps of AdamW in f64, each case a file adapters/<name>.safetensors with

  init/<parameter>, final/<parameter>   what is trained, before the first step and after the last; of `base` what is frozen, too
  tokens, targets                       i32 [steps, batch, seq]
  loss                                  f64 [steps], the mean over the targets

and a JSON of the case in the metadata (`case`): model, params, trainable, adapter, optimizer, torch. The base's weights are those of
models/<model>/init.safetensors. Cases of LoRA start with B away from zero, drop nothing, and are trained twice: as written out here, and by
the `peft` library where it is installed, which has to give the same losses to 1e-12.

Whole jobs are folders jobs/<name> with job.yaml, whose base and data are those of models/<model>, expected.safetensors as there (of what is
trained alone), and start.safetensors, the first values of an adapter. peft has to give the same losses, gradient norms and validation loss.

  python tests/goldens/adapter_goldens.py      (not part of make_goldens.py: it wants peft)
"""

import fnmatch
import json
import math
import os
import re

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file, save_file
from torch.optim.optimizer import register_optimizer_step_post_hook

from model_goldens import Gpt2, Llama, flow
from model_goldens import STEPS as JOB_STEPS
from model_goldens import train as train_job

STEPS, BATCH, SEQ = 20, 4, 12
OPTIMIZER = {"name": "adamw", "lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-06, "weight_decay": 0.1}
MODELS = {
    "gpt2": (lambda: Gpt2(2, 2, 32, 61, 24), {"layers": 2, "heads": 2, "dim": 32, "vocab": 61, "context": 24, "dropout": 0.0}),
    "llama": (lambda: Llama(2, 4, 2, 32, 40, 53, 10000.0),
              {"layers": 2, "heads": 4, "kv_heads": 2, "dim": 32, "hidden": 40, "vocab": 53, "rope_theta": 10000.0}),
}
HEADS = {"gpt2": "logits", "llama": "lm_head"}


class Lora:
    """The adapter on a model whose linears are called by name: y + B(s A x), with s = alpha / rank or alpha / sqrt(rank). With magnitudes m
    (DoRA) b + m / n (W x + B(s A x)), where n are the norms of the rows of W + s B A, constants to the gradient."""

    def __init__(self, model, targets, rank, alpha, scaled_by_root, generator, magnitude=False):
        self.model, self.factor = model, alpha / (math.sqrt(rank) if scaled_by_root else rank)
        self.parameters = {}
        for name in targets:
            out, into = model.parameters[f"{name}.weight"].shape
            draw = lambda *shape, scale: (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).float().double().requires_grad_()
            self.parameters[f"{name}.lora_A.weight"] = draw(rank, into, scale=0.2)
            self.parameters[f"{name}.lora_B.weight"] = draw(out, rank, scale=0.1)
            if magnitude:
                with torch.no_grad():
                    m = self.norms(name) * (1 + 0.3 * torch.rand(out, generator=generator, dtype=torch.float64))
                self.parameters[f"{name}.lora_magnitude_vector"] = m.float().double().requires_grad_()

    def norms(self, name):
        a, b = (self.parameters[f"{name}.lora_{part}.weight"] for part in "AB")
        return torch.linalg.norm(self.model.parameters[f"{name}.weight"] + self.factor * b @ a, dim=1).detach()

    def __call__(self, name, x, plain):
        y = plain(name, x)
        if f"{name}.lora_A.weight" not in self.parameters:
            return y
        a, b = (self.parameters[f"{name}.lora_{part}.weight"] for part in "AB")
        change = F.linear(F.linear(x, a), b) * self.factor
        m = self.parameters.get(f"{name}.lora_magnitude_vector")
        if m is None:
            return y + change
        bias = self.model.parameters.get(f"{name}.bias")
        bias = 0 if bias is None else bias
        return bias + m / self.norms(name) * (y - bias + change)


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


def wrapped_by_peft(name, targets, rank, alpha, scaled_by_root, initial, magnitude=False):
    """The adapted model and its trained parameters under our names; None where peft is not installed."""
    try:
        import peft
    except ImportError:
        print("  peft is not installed: not compared with it")
        return None
    named = Named(base(name), targets)
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=list(targets), use_rslora=scaled_by_root, use_dora=magnitude, bias="none")
    wrapped = peft.get_peft_model(named, config)
    ours = lambda key: key.removeprefix("base_model.model.").replace(".default", "").replace("magnitude_vector.weight", "magnitude_vector")
    trained = {ours(k): p for k, p in wrapped.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for key, p in trained.items():
            p.copy_(initial[key])
    for p in trained.values():
        assert p.dtype == torch.float64
    return wrapped, trained


def by_peft(name, targets, rank, alpha, scaled_by_root, initial, tokens, ids, magnitude):
    wrapped = wrapped_by_peft(name, targets, rank, alpha, scaled_by_root, initial, magnitude)
    return None if wrapped is None else train(wrapped[0], list(wrapped[1].values()), tokens, ids)


def linears_of(name, model, targets):
    linears = [k.removesuffix(".weight") for k, p in model.parameters.items() if p.dim() == 2 and not k.startswith(("wte", "wpe", "model.embed"))]
    return [n for n in linears if n != HEADS[name]] if targets == "all-linear" else [n for n in linears if any(fnmatch.fnmatchcase(n, t) for t in targets)]


def lora_case(path, name, targets, rank, alpha, scaled_by_root=False, also=(), magnitude=False):
    model = base(name)
    chosen = linears_of(name, model, targets)
    for p in model.parameters.values():
        p.requires_grad_(False)
    lora = Lora(model, chosen, rank, alpha, scaled_by_root, torch.Generator().manual_seed(302), magnitude)
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
        others = by_peft(name, chosen, rank, alpha, scaled_by_root, initial, tokens, ids, magnitude)
        if others is not None:
            worst = max(abs(a - b) for a, b in zip(losses, others))
            assert worst < 1e-12, worst
            print(f"  peft's losses differ by at most {worst:.1e}")
    case = {"model": name, "params": MODELS[name][1], "trainable": list(also) or "adapter", "optimizer": OPTIMIZER,
            "adapter": {"kind": "lora", "rank": rank, "alpha": alpha, "dropout": 0, "targets": targets, "scaled_by_root": scaled_by_root,
                        **({"magnitude": True} if magnitude else {})}}
    save(path, model, case, trained, initial, tokens, ids, losses)


# ---- Whole jobs ----

DATA = {"gpt2": {"seq": 19, "batch": {"global": 6, "micro": 3}}, "llama": {"seq": 16, "batch": {"global": 4, "micro": 2}}}


class Part:
    """What model_goldens.train wants: logits, and the parameters that are trained, by name."""

    def __init__(self, logits, parameters):
        self.logits, self.parameters = logits, parameters


def windows(name, part):
    here = os.path.dirname(os.path.abspath(__file__))
    ids, seq = torch.tensor(np.fromfile(os.path.join(here, "models", name, f"{part}.bin"), dtype="<u2").astype(np.int64)), DATA[name]["seq"]
    return ids[:-1].view(-1, seq), ids[1:].view(-1, seq)


def train_rows(parameter, first, last):
    """From now on only these rows get a gradient, and an optimizer that decays the others has no effect on them."""
    mask = torch.zeros(parameter.shape[0], 1, dtype=torch.float64)
    mask[first:last] = 1
    before = parameter.detach().clone()
    parameter.requires_grad_().register_hook(lambda gradient: gradient * mask)

    def restore(*_):
        with torch.no_grad():
            parameter.copy_(torch.where(mask.bool(), parameter, before))

    return register_optimizer_step_post_hook(restore)


def job_case(folder, name, model_name, clip_norm, adapter=None, trainable=None):
    job = {"batch": DATA[model_name]["batch"], "optimizer": {**OPTIMIZER, "lr": 0.004}, "lr_schedule": {"name": "cosine", "warmup_steps": 4, "min_lr": 0.0004},
           "clip_norm": clip_norm}
    model = base(model_name)
    trained = {k: p for k, p in model.parameters.items() if any(fnmatch.fnmatchcase(k, glob) for glob in trainable or [])}
    for key, p in model.parameters.items():
        p.requires_grad_(key in trained)
    hooks = []
    rows = [(key, int(first or 0), int(last or model.parameters[key].shape[0]))
            for key, first, last in (re.fullmatch(r"(.*)\[(\d*):(\d*)\]", glob).groups() for glob in trainable or [] if glob.endswith("]"))]
    for key, first, last in rows:
        trained[key] = model.parameters[key]
        hooks.append(train_rows(trained[key], first, last))
    samples = [*windows(model_name, "train"), windows(model_name, "val")]
    logits, plain, start = model.logits, type(model).__call__, {}
    if adapter:
        chosen = linears_of(model_name, model, adapter["targets"])
        lora = Lora(model, chosen, adapter["rank"], adapter["alpha"], adapter["scaled_by_root"], torch.Generator().manual_seed(304), adapter.get("magnitude", False))
        start = {k: p.detach().clone() for k, p in lora.parameters.items()}
        trained = {**lora.parameters, **trained}
        type(model).__call__ = lambda m, n, x: lora(n, x, lambda node, value: plain(m, node, value))
    try:
        _, expected = train_job(Part(logits, trained), job, *samples)
    finally:
        type(model).__call__ = plain
        for hook in hooks:
            hook.remove()
    for key, first, last in rows if adapter else []:  # a checkpoint of an adapter has the rows by themselves
        whole = expected.pop(f"final/{key}")
        expected[f"final/{key}.rows.{first}-{last}.of.{len(whole)}"] = whole[first:last].clone()
    if adapter and not trainable:
        wrapped = wrapped_by_peft(model_name, chosen, adapter["rank"], adapter["alpha"], adapter["scaled_by_root"], start, adapter.get("magnitude", False))
        if wrapped:
            _, others = train_job(Part(*wrapped), job, *samples)
            worst = max((expected[k] - others[k]).abs().max().item() for k in ["loss", "grad_norm", "val_loss"])
            assert worst < 1e-10, worst
            print(f"  peft differs by at most {worst:.1e}")
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    arrays = lambda tensors: {k: np.ascontiguousarray(t.detach().numpy()) for k, t in tensors.items()}
    save_file(arrays(expected), os.path.join(folder, name, "expected.safetensors"), {"torch": torch.__version__})
    keys = ""
    if adapter:
        save_file(arrays({k: t.float() for k, t in start.items()}), os.path.join(folder, name, "start.safetensors"), {})
        keys += f"adapter: {flow({**adapter, 'from': 'start.safetensors'})}\n"
    if trainable:
        keys += f"trainable: {flow(trainable)}\n"
    data = f"../../../models/{model_name}"
    with open(os.path.join(folder, name, "job.yaml"), "w") as f:
        f.write(f"""# Written by adapter_goldens.py: {name} against PyTorch{" and peft" if adapter and not trainable else ""}, {JOB_STEPS} steps.
name: golden-{name}
seed: 1
model:
  graph: models/{model_name}.yaml
  with: {flow(MODELS[model_name][1])}
  init_from: {data}/init.safetensors
{keys}data: {{format: tokens, token_type: u16, train: {data}/train.bin, val: {data}/val.bin, seq_len: {DATA[model_name]["seq"]}, shuffle: false}}
train:
  steps: {JOB_STEPS}
  batch: {flow(job["batch"])}
  optimizer: {flow(job["optimizer"])}
  lr_schedule: {flow(job["lr_schedule"])}
  clip_norm: {clip_norm}
eval: {{every: {JOB_STEPS}, batches: 2}}
""")
    print(f"jobs/{name}: {len(trained)} trained, loss {expected['loss'][0]:.4f} to {expected['loss'][-1]:.4f}")


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
    lora_case(at("gpt2_dora"), "gpt2", ["*.c_attn", "*.c_fc"], 3, 6, magnitude=True)
    lora_case(at("llama_dora"), "llama", ["*.q_proj", "*.down_proj"], 3, 5, scaled_by_root=True, magnitude=True)
    jobs = os.path.join(folder, "jobs")
    job_case(jobs, "gpt2_dora", "gpt2", 1.0, {"rank": 4, "alpha": 8, "targets": "all-linear", "scaled_by_root": False, "magnitude": True})
    job_case(jobs, "llama_dora", "llama", 1.0, {"rank": 3, "alpha": 5, "targets": ["*.q_proj", "*.v_proj", "*.down_proj"], "scaled_by_root": True,
                                                 "magnitude": True})
    job_case(jobs, "gpt2_lora", "gpt2", 1.0, {"rank": 4, "alpha": 8, "targets": "all-linear", "scaled_by_root": False})
    job_case(jobs, "llama_rslora_qv", "llama", 0.85, {"rank": 3, "alpha": 5, "targets": ["*.q_proj", "*.v_proj"], "scaled_by_root": True})
    job_case(jobs, "llama_lora_and_norms", "llama", 0.4, {"rank": 2, "alpha": 4, "targets": ["*.down_proj"], "scaled_by_root": False}, ["*norm*"])
    job_case(jobs, "gpt2_last_block", "gpt2", 0.8, None, ["h.1.*", "ln_f.*"])
    job_case(jobs, "llama_norms_and_head", "llama", 0.8, None, ["*norm*", "lm_head.weight"])
    job_case(jobs, "gpt2_rows", "gpt2", 0.45, None, ["wte.weight[40:]", "h.1.ln_*", "ln_f.*"])
    job_case(jobs, "llama_rows", "llama", 0.8, None, ["model.embed_tokens.weight[7:31]", "lm_head.weight", "*norm*"])
    job_case(jobs, "gpt2_lora_and_rows", "gpt2", 1.0, {"rank": 4, "alpha": 8, "targets": "all-linear", "scaled_by_root": False}, ["wte.weight[50:]"])
