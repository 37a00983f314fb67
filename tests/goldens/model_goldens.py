"""Goldens of whole models: 20 steps of training in f64, each case a folder models/<name>/ with the job as a user would
write it, its data, the initial weights and what must come out (expected.safetensors: loss, grad_norm and lr of every
step, the validation loss after the last, and `final/<parameter>`).

Every job accumulates two micro-batches, clips, schedules its learning rate and decays weights, by the rules of the job
file: the loss is the mean over the counted targets of the global batch, grad_norm is before clipping, decay is
decoupled and applies to parameters of two or more dims.
"""

import fnmatch
import math
import os
import re
import struct
import unittest.mock

import numpy as np
import torch
import torch.nn.functional as F

from op_goldens import attention, document_places

STEPS = 20


class Model:
    """Parameters by name, in f64; initial values are exact in f32."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.parameters = {}

    def draw(self, name, *shape, scale, center=0.0):
        value = (torch.randn(shape, generator=self.generator, dtype=torch.float64) * scale + center).float().double()
        self.parameters[name] = value.requires_grad_()

    def linear(self, name, out, into, bias=True, scale=0.15):
        self.draw(f"{name}.weight", out, into, scale=scale)
        if bias:
            self.draw(f"{name}.bias", out, scale=0.1)

    def norm(self, name, dim, bias=True):
        self.draw(f"{name}.weight", dim, scale=0.1, center=1.0)
        if bias:
            self.draw(f"{name}.bias", dim, scale=0.1)

    def __call__(self, name, x):
        return F.linear(x, self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias"))


def fields_of(inputs):
    """Tokens [batch, seq], or with the documents of a row [batch, 2, seq]: both."""
    return (inputs, None) if inputs.dim() == 2 else inputs.unbind(1)


class Gpt2(Model):
    def __init__(self, layers, heads, dim, vocab, context):
        super().__init__(101)
        self.layers, self.heads, self.dim = layers, heads, dim
        self.draw("wte.weight", vocab, dim, scale=0.15)
        self.draw("wpe.weight", context, dim, scale=0.15)
        for i in range(layers):
            self.norm(f"h.{i}.ln_1", dim)
            self.linear(f"h.{i}.attn.c_attn", 3 * dim, dim)
            self.linear(f"h.{i}.attn.c_proj", dim, dim)
            self.norm(f"h.{i}.ln_2", dim)
            self.linear(f"h.{i}.mlp.c_fc", 4 * dim, dim)
            self.linear(f"h.{i}.mlp.c_proj", dim, 4 * dim)
        self.norm("ln_f", dim)

    def layer_norm(self, name, x):
        return F.layer_norm(x, (self.dim,), self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"], 1e-5)

    def logits(self, inputs):
        tokens, documents = fields_of(inputs)
        places = torch.arange(tokens.shape[1]) if documents is None else document_places(documents)
        x = F.embedding(tokens, self.parameters["wte.weight"]) + self.parameters["wpe.weight"][places]
        for i in range(self.layers):
            qkv = self(f"h.{i}.attn.c_attn", self.layer_norm(f"h.{i}.ln_1", x))
            o, _ = attention(*qkv.split(self.dim, -1), self.heads, self.heads, True, 0.0, documents)
            x = x + self(f"h.{i}.attn.c_proj", o)
            hidden = F.gelu(self(f"h.{i}.mlp.c_fc", self.layer_norm(f"h.{i}.ln_2", x)), approximate="tanh")
            x = x + self(f"h.{i}.mlp.c_proj", hidden)
        return F.linear(self.layer_norm("ln_f", x), self.parameters["wte.weight"])


class Llama(Model):
    def __init__(self, layers, heads, kv_heads, dim, hidden, vocab, theta):
        super().__init__(102)
        self.layers, self.heads, self.kv_heads, self.dim, self.theta = layers, heads, kv_heads, dim, theta
        self.draw("model.embed_tokens.weight", vocab, dim, scale=0.5)
        for i in range(layers):
            p = f"model.layers.{i}."
            self.norm(p + "input_layernorm", dim, bias=False)
            self.linear(p + "self_attn.q_proj", dim, dim, bias=False)
            for which in "kv":
                self.linear(p + f"self_attn.{which}_proj", dim // heads * kv_heads, dim, bias=False)
            self.linear(p + "self_attn.o_proj", dim, dim, bias=False)
            self.norm(p + "post_attention_layernorm", dim, bias=False)
            self.linear(p + "mlp.gate_proj", hidden, dim, bias=False)
            self.linear(p + "mlp.up_proj", hidden, dim, bias=False)
            self.linear(p + "mlp.down_proj", dim, hidden, bias=False)
        self.norm("model.norm", dim, bias=False)
        self.linear("lm_head", vocab, dim, bias=False)

    def rms_norm(self, name, x):
        return F.rms_norm(x, (self.dim,), self.parameters[f"{name}.weight"], 1e-5)

    def logits(self, inputs):
        tokens, documents = fields_of(inputs)
        x = F.embedding(tokens, self.parameters["model.embed_tokens.weight"])
        for i in range(self.layers):
            p = f"model.layers.{i}."
            h = self.rms_norm(p + "input_layernorm", x)
            q, k, v = (self(p + f"self_attn.{which}_proj", h) for which in "qkv")
            x = x + self(p + "self_attn.o_proj", attention(q, k, v, self.heads, self.kv_heads, True, self.theta, documents)[0])
            h = self.rms_norm(p + "post_attention_layernorm", x)
            x = x + self(p + "mlp.down_proj", F.silu(self(p + "mlp.gate_proj", h)) * self(p + "mlp.up_proj", h))
        return self("lm_head", self.rms_norm("model.norm", x))


class Mlp(Model):
    """The inline graph of its job: tanh and sigmoid between three linear layers."""

    def __init__(self, features, hidden, classes):
        super().__init__(103)
        self.linear("in", hidden, features, scale=0.3)
        self.linear("mid", hidden, hidden, scale=0.3)
        self.linear("out", classes, hidden, scale=0.5)

    def logits(self, x):
        return self("out", torch.sigmoid(self("mid", torch.tanh(self("in", x)))))


class Convnet(Model):
    def __init__(self, rows, cols, width, hidden, classes):
        super().__init__(104)
        self.draw("conv1.weight", width, 1, 3, 3, scale=0.3)
        self.draw("conv1.bias", width, scale=0.1)
        self.draw("conv2.weight", 2 * width, width, 3, 3, scale=0.2)
        self.draw("conv2.bias", 2 * width, scale=0.1)
        self.linear("fc1", hidden, 2 * width * (rows // 4) * (cols // 4), scale=0.1)
        self.linear("fc2", classes, hidden, scale=0.3)

    def logits(self, x):
        for name in ("conv1", "conv2"):
            x = F.max_pool2d(F.relu(F.conv2d(x, self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"], padding=1)), 2)
        return self("fc2", F.relu(self("fc1", x.flatten(1))))


def learning_rate(schedule, lr, t):
    """The rate of step t, from 0."""
    w, low = schedule["warmup_steps"], schedule["min_lr"]
    if t < w:
        return lr * (t + 1) / w
    if schedule["name"] == "cosine":
        return low + (lr - low) * (1 + math.cos(math.pi * (t - w) / (STEPS - w))) / 2
    if schedule["name"] == "linear":
        return lr + (low - lr) * (t - w) / (STEPS - w)
    if schedule["name"] == "wsd":
        start = STEPS - schedule["decay_steps"]
        return lr if t < start else lr + (low - lr) * (t - start) / schedule["decay_steps"]
    return lr


def assign(job, parameters):
    """Of each optimizer of the job and its parameters: the first group that matches, else the job's; of muon's, what is no matrix of a
    block (h.0.…, model.layers.0.…) to its others."""
    sections = [(group["match"], group["optimizer"]) for group in job.get("groups", [])] + [(["*"], job["optimizer"])]
    left = dict(parameters)
    for globs, spec in sections:
        taken = {k: left.pop(k) for k in list(left) if any(fnmatch.fnmatchcase(k, glob) for glob in globs)}
        matrices = {k: p for k, p in taken.items() if p.dim() == 2 and ".0." in re.sub(r"[0-9]+", "0", k)}
        if spec["name"] == "muon":
            yield spec, matrices
            yield spec["others"], {k: p for k, p in taken.items() if k not in matrices}
        else:
            yield spec, taken


def all_in_f64():
    """torch.optim.Muon rounds to bf16, and its Newton-Schulz steps multiply the rounding. Here its bf16 is f64."""
    return unittest.mock.patch.object(torch, "bfloat16", torch.float64)


class Optimizer:
    """Decay first, then PyTorch's update; lion, which PyTorch lacks, by its paper (Chen et al., 2023, algorithm 2)."""

    def __init__(self, spec, parameters):
        self.spec, self.parameters = spec, list(parameters)
        if spec["name"] == "muon":
            self.torch = torch.optim.Muon(self.parameters, lr=1.0, momentum=spec["momentum"], nesterov=spec["nesterov"], weight_decay=spec["weight_decay"],
                                          ns_steps=spec["ns_steps"], adjust_lr_fn=spec["adjust"])
        elif spec["name"] == "sgd":
            self.torch = torch.optim.SGD(self.parameters, lr=1.0, momentum=spec["momentum"], nesterov=spec["nesterov"])
        elif spec["name"] == "lion":
            self.moments = [torch.zeros_like(p) for p in self.parameters]
        else:
            self.torch = torch.optim.Adam(self.parameters, lr=1.0, betas=spec["betas"], eps=spec["eps"])

    @torch.no_grad()
    def step(self, lr):
        for p in self.parameters:
            if p.dim() >= 2 and self.spec["name"] != "muon":
                p.mul_(1 - lr * self.spec["weight_decay"])
        if self.spec["name"] != "lion":
            self.torch.param_groups[0]["lr"] = lr
            with all_in_f64():
                self.torch.step()
            return
        b1, b2 = self.spec["betas"]
        for p, m in zip(self.parameters, self.moments):
            p.sub_(lr * torch.sign(b1 * m + (1 - b1) * p.grad))
            m.mul_(b2).add_((1 - b2) * p.grad)


def train(model, job, inputs, targets, val, ignore_index=-100, label_smoothing=0.0):
    """Steps over samples in order, modulo their number. Returns what expected.safetensors holds."""

    def loss_sum(x, t, **how):
        logits = model.logits(x)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), t.reshape(-1), reduction="sum", ignore_index=ignore_index, **how)

    initial = {k: p.detach().clone() for k, p in model.parameters.items()}
    parameters = list(model.parameters.values())
    optimizers = [(Optimizer(spec, some.values()), spec["lr"] / job["optimizer"]["lr"]) for spec, some in assign(job, model.parameters) if some]
    batch, micro = job["batch"]["global"], job["batch"]["micro"]
    log = {"loss": [], "grad_norm": [], "lr": []}
    for step in range(STEPS):
        index = torch.arange(step * batch, (step + 1) * batch) % len(inputs)
        count = (targets[index] != ignore_index).sum()
        loss = 0.0
        for part in index.split(micro):
            piece = loss_sum(inputs[part], targets[part], label_smoothing=label_smoothing) / count
            piece.backward()
            loss += piece.item()
        norm = torch.nn.utils.clip_grad_norm_(parameters, job["clip_norm"])
        lr = learning_rate(job["lr_schedule"], job["optimizer"]["lr"], step)
        for optimizer, ratio in optimizers:
            optimizer.step(lr * ratio)
        for p in parameters:
            p.grad = None
        for key, value in [("loss", loss), ("grad_norm", norm.item()), ("lr", lr)]:
            log[key].append(value)
    with torch.no_grad():
        x, t = val
        val_loss = loss_sum(x, t, label_smoothing=label_smoothing) / (t != ignore_index).sum()
    clipped = sum(n > job["clip_norm"] for n in log["grad_norm"])
    assert 0 < clipped < STEPS, f"clipping should bite in some steps, not in all or none: {clipped}, {log['grad_norm']}"
    expected = {k: torch.tensor(v, dtype=torch.float64) for k, v in log.items()}
    expected["val_loss"] = val_loss.reshape(1)
    expected.update({f"final/{k}": p.detach().float() for k, p in model.parameters.items()})
    return initial, expected


def flow(value):
    """YAML's flow form of numbers, names, lists and maps."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow(v) for v in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f'"{value}"' if isinstance(value, str) and set(value) & set("*[") else str(value)


def write_job(folder, name, model, data, job):
    groups = f"  groups: {flow(job['groups'])}\n" if "groups" in job else ""
    text = f"""# Written by make_goldens.py: {name} against PyTorch, {STEPS} steps.
name: golden-{name}
seed: 1

model:
{model}  init_from: init.safetensors

data:
{data}  shuffle: false

train:
  steps: {STEPS}
  batch: {flow(job["batch"])}
  optimizer: {flow(job["optimizer"])}
{groups}  lr_schedule: {flow(job["lr_schedule"])}
  clip_norm: {flow(job["clip_norm"])}
eval: {{every: {STEPS}, batches: {job["eval_batches"]}}}

precision: {{params: f32, compute: f32, reduce: f32, loss_scale: none}}
"""
    with open(os.path.join(folder, "job.yaml"), "w") as f:
        f.write(text)


def save(folder, save_file, initial, expected):
    arrays = lambda tensors: {k: np.ascontiguousarray(t.detach().numpy()) for k, t in tensors.items()}
    save_file(arrays({k: p.float() for k, p in initial.items()}), os.path.join(folder, "init.safetensors"), {})
    save_file(arrays(expected), os.path.join(folder, "expected.safetensors"), {"torch": torch.__version__})


def token_case(folder, save_file, name, model, graph, params, seed, seq, samples, val_samples, vocab, job):
    """Token ids with some structure (each depends on the one before), so that the loss falls."""
    rng = np.random.default_rng(seed)
    files = {}
    for part, count in [("train", samples), ("val", val_samples)]:
        ids = [int(rng.integers(vocab))]
        while len(ids) < count * seq + 1:
            ids.append((3 * ids[-1] + int(rng.integers(4))) % vocab)
        np.asarray(ids, dtype="<u2").tofile(os.path.join(folder, f"{part}.bin"))
        files[part] = torch.tensor(ids)
    windows = lambda ids: (ids[:-1].view(-1, seq), ids[1:].view(-1, seq))
    val = windows(files["val"])
    initial, expected = train(model, job, *windows(files["train"]), val)
    data = f"  format: tokens\n  token_type: u16\n  train: train.bin\n  val: val.bin\n  seq_len: {seq}\n"
    write_job(folder, name, f"  graph: {graph}\n  with: {flow(params)}\n", data, job)
    save(folder, save_file, initial, expected)


def gpt2(folder, save_file):
    params = {"layers": 2, "heads": 2, "dim": 32, "vocab": 61, "context": 24, "dropout": 0.0}
    model = Gpt2(2, 2, 32, 61, 24)
    job = {"batch": {"global": 6, "micro": 3},
           "optimizer": {"name": "adamw", "lr": 0.004, "betas": [0.9, 0.95], "eps": 1e-06, "weight_decay": 0.1},
           "lr_schedule": {"name": "cosine", "warmup_steps": 4, "min_lr": 0.0004}, "clip_norm": 1.0, "eval_batches": 2}
    token_case(folder, save_file, "gpt2", model, "models/gpt2.yaml", params, 201, 19, 50, 12, 61, job)


def llama(folder, save_file):
    params = {"layers": 2, "heads": 4, "kv_heads": 2, "dim": 32, "hidden": 40, "vocab": 53, "rope_theta": 10000.0}
    model = Llama(2, 4, 2, 32, 40, 53, 10000.0)
    job = {"batch": {"global": 4, "micro": 2},
           "optimizer": {"name": "adamw", "lr": 0.004, "betas": [0.9, 0.99], "eps": 1e-06, "weight_decay": 0.1},
           "lr_schedule": {"name": "cosine", "warmup_steps": 3, "min_lr": 0.0}, "clip_norm": 1.5, "eval_batches": 2}
    token_case(folder, save_file, "llama", model, "models/llama.yaml", params, 202, 16, 33, 8, 53, job)


MUON = {"name": "muon", "lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "ns_steps": 5, "adjust": "original",
        "others": {"name": "adamw", "lr": 0.004, "betas": [0.9, 0.95], "eps": 1e-06, "weight_decay": 0.1}}


def packed_case(folder, save_file, name, model, graph, params, seed, seq, samples, val_samples, vocab, job):
    """Rows of several documents, of one token to a whole row, and padding: files of tensors. The last token of a document has no target."""
    rng = np.random.default_rng(seed)
    parts = {}
    for part, count in [("train", samples), ("val", val_samples)]:
        tokens, targets, documents = np.zeros((count, seq), "<i4"), np.full((count, seq), -100, "<i4"), np.full((count, seq), -1, "<i4")
        for row in range(count):
            at, number = 0, 0
            while at < seq - 1 and number < 5:
                length = min(int(rng.choice([1, 2, 3, 5, 8, seq])), seq - at)
                ids = [int(rng.integers(vocab))]
                while len(ids) < length:
                    ids.append((3 * ids[-1] + int(rng.integers(4))) % vocab)
                tokens[row, at : at + length], documents[row, at : at + length] = ids, number
                targets[row, at : at + length - 1] = ids[1:]
                at, number = at + length, number + 1
        save_file({"ids": tokens, "labels": targets, "documents": documents}, os.path.join(folder, f"{part}.safetensors"), {})
        inputs = torch.stack([torch.tensor(tokens), torch.tensor(documents)], 1).long()
        parts[part] = (inputs, torch.tensor(targets).long())
    initial, expected = train(model, job, *parts["train"], parts["val"])
    fields = "{tokens: ids, targets: labels, documents: documents}"
    data = f"  format: tensors\n  train: train.safetensors\n  val: val.safetensors\n  fields: {fields}\n  seq_len: {seq}\n"
    write_job(folder, name, f"  graph: {graph}\n  with: {flow(params)}\n", data, job)
    save(folder, save_file, initial, expected)


def gpt2_documents(folder, save_file):
    params = {"layers": 1, "heads": 2, "dim": 16, "vocab": 29, "context": 22, "dropout": 0.0}
    job = {"batch": {"global": 6, "micro": 3},
           "optimizer": {"name": "adamw", "lr": 0.004, "betas": [0.9, 0.95], "eps": 1e-06, "weight_decay": 0.1},
           "lr_schedule": {"name": "cosine", "warmup_steps": 4, "min_lr": 0.0004}, "clip_norm": 1.0, "eval_batches": 2}
    packed_case(folder, save_file, "gpt2_documents", Gpt2(1, 2, 16, 29, 22), "models/gpt2.yaml", params, 205, 19, 50, 12, 29, job)


def decoder_documents(folder, save_file):
    params = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 4, "dim": 16, "hidden": 20, "vocab": 29, "rope_theta": 100.0}
    job = {"batch": {"global": 4, "micro": 2},
           "optimizer": {"name": "adamw", "lr": 0.004, "betas": [0.9, 0.99], "eps": 1e-06, "weight_decay": 0.1},
           "lr_schedule": {"name": "cosine", "warmup_steps": 3, "min_lr": 0.0}, "clip_norm": 0.7, "eval_batches": 2}
    packed_case(folder, save_file, "decoder_documents", Llama(2, 4, 2, 16, 20, 29, 100.0), "models/decoder.yaml", params, 206, 23, 33, 8, 29, job)


def gpt2_muon(folder, save_file):
    params = {"layers": 2, "heads": 2, "dim": 32, "vocab": 61, "context": 24, "dropout": 0.0}
    model = Gpt2(2, 2, 32, 61, 24)
    job = {"batch": {"global": 6, "micro": 3}, "optimizer": MUON,
           "lr_schedule": {"name": "cosine", "warmup_steps": 4, "min_lr": 0.002}, "clip_norm": 1.3, "eval_batches": 2}
    token_case(folder, save_file, "gpt2_muon", model, "models/gpt2.yaml", params, 201, 19, 50, 12, 61, job)


def llama_groups(folder, save_file):
    """Four optimizers: groups that overlap, muon in one of them, and AdamW for the rest."""
    params = {"layers": 2, "heads": 4, "kv_heads": 2, "dim": 32, "hidden": 40, "vocab": 53, "rope_theta": 10000.0}
    model = Llama(2, 4, 2, 32, 40, 53, 10000.0)
    lion = {"name": "lion", "lr": 0.0005, "betas": [0.9, 0.99], "weight_decay": 0.0}
    muon = dict(MUON, lr=0.01, nesterov=False, ns_steps=4, adjust="match_rms_adamw", others=dict(MUON["others"], lr=0.002))
    job = {"batch": {"global": 4, "micro": 2},
           "optimizer": {"name": "adamw", "lr": 0.004, "betas": [0.9, 0.99], "eps": 1e-06, "weight_decay": 0.1},
           "groups": [{"match": ["*.0.mlp.up_proj.*", "*embed*"], "optimizer": lion}, {"match": ["*.mlp.*", "*norm*"], "optimizer": muon}],
           "lr_schedule": {"name": "linear", "warmup_steps": 3, "min_lr": 0.001}, "clip_norm": 1.5, "eval_batches": 2}
    token_case(folder, save_file, "llama_groups", model, "models/llama.yaml", params, 202, 16, 33, 8, 53, job)


MLP_GRAPH = """  graph:
    name: tanh-sigmoid
    inputs:
      features: {dtype: f32, shape: [batch, 7]}
      targets:  {dtype: i32, shape: [batch]}
    nodes:
      - {name: in, op: linear, input: features, out: 24}
      - {name: in_act, op: tanh}
      - {name: mid, op: linear, out: 24}
      - {name: mid_act, op: sigmoid}
      - {name: out, op: linear, out: 5}
      - {name: loss, op: cross_entropy, input: [out, targets], ignore_index: 2, label_smoothing: 0.1}
    outputs: {loss: loss, logits: out}
"""


def mlp(folder, save_file):
    """A table with standardised features; one class is ignored, so that micro-batches count differently."""
    model = Mlp(7, 24, 5)
    job = {"batch": {"global": 10, "micro": 5},
           "optimizer": {"name": "sgd", "lr": 0.2, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
           "lr_schedule": {"name": "linear", "warmup_steps": 3, "min_lr": 0.02}, "clip_norm": 0.5, "eval_batches": 2}
    rng = np.random.default_rng(203)
    parts = {}
    for part, rows in [("train", 64), ("val", 20)]:
        x = np.round(rng.normal(size=(rows, 7)) * np.arange(1, 8) + np.arange(7), 3)
        y = (np.abs(x[:, 0] * 2 + x[:, 3]).astype(int)) % 5
        np.savetxt(os.path.join(folder, f"{part}.csv"), np.column_stack([x, y]), fmt=["%.3f"] * 7 + ["%d"], delimiter=",")
        parts[part] = (torch.tensor(x.astype(np.float32)).double(), torch.tensor(y))
    mean, deviation = parts["train"][0].mean(0), parts["train"][0].std(0, unbiased=False)
    scaled = {k: (((x - mean) / deviation).float().double(), y) for k, (x, y) in parts.items()}
    initial, expected = train(model, job, *scaled["train"], scaled["val"], ignore_index=2, label_smoothing=0.1)
    write_job(folder, "mlp", MLP_GRAPH, "  format: table\n  train: train.csv\n  val: val.csv\n  target: -1\n  normalize: standard\n", job)
    save(folder, save_file, initial, expected)


def convnet(folder, save_file):
    rows, cols = 13, 12
    model = Convnet(rows, cols, 3, 16, 4)
    params = {"rows": rows, "cols": cols, "width": 3, "hidden": 16, "classes": 4, "dropout": 0.0}
    job = {"batch": {"global": 8, "micro": 4}, "optimizer": {"name": "lion", "lr": 0.001, "betas": [0.9, 0.99], "weight_decay": 0.1},
           "lr_schedule": {"name": "wsd", "warmup_steps": 2, "decay_steps": 8, "min_lr": 0.0001}, "clip_norm": 1.5, "eval_batches": 2}
    rng = np.random.default_rng(204)
    parts = {}
    for part, count in [("train", 40), ("val", 16)]:
        labels = rng.integers(4, size=count).astype(np.uint8)
        images = rng.integers(0, 100, size=(count, rows, cols)).astype(np.uint8)
        for image, label in zip(images, labels):  # a bright quarter says the class
            r, c = 6 * (label // 2), 6 * (label % 2)
            image[r : r + 6, c : c + 6] += 120
        for kind, array in [("images", images), ("labels", labels)]:
            with open(os.path.join(folder, f"{part}-{kind}.idx"), "wb") as f:
                f.write(struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes())
        parts[part] = ((torch.tensor(images).float() / 255).double().unsqueeze(1), torch.tensor(labels.astype(np.int64)))
    initial, expected = train(model, job, *parts["train"], parts["val"])
    source = lambda part: f"{{images: {part}-images.idx, labels: {part}-labels.idx}}"
    data = f"  format: idx\n  train: {source('train')}\n  val: {source('val')}\n"
    write_job(folder, "convnet", f"  graph: models/convnet.yaml\n  with: {flow(params)}\n", data, job)
    save(folder, save_file, initial, expected)


def make(root, save_file):
    for name, case in [("gpt2", gpt2), ("llama", llama), ("gpt2_muon", gpt2_muon), ("llama_groups", llama_groups), ("mlp", mlp), ("convnet", convnet),
                       ("gpt2_documents", gpt2_documents), ("decoder_documents", decoder_documents)]:
        folder = os.path.join(root, name)
        os.makedirs(folder, exist_ok=True)
        case(folder, save_file)
