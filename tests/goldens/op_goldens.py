"""Goldens of single ops: PyTorch's outputs and gradients in f64, written to ops.safetensors.

The operands of a case are those of kernels/README.md in their order. Inputs and upstream gradients are exact in bf16, so
that one file serves every dtype. The header's metadata `cases` is a JSON list of
  {name, op, attributes, inputs, outputs, gradients, origin}
with counts of operands, the inputs that have a gradient, and where the piece begins (kernels::Call::origin); tensors are `<name>.in<i>`, `<name>.out<i>`,
`<name>.dout` (upstream gradient of output 0; of a loss its seed) and `<name>.grad<i>`. An output that is not listed has no golden.
"""

import json
import math

import numpy as np
import torch
import torch.nn.functional as F

GENERATOR = torch.Generator()


def normal(*shape, scale=1.0):
    """f64 tensor whose values are exact in bf16."""
    return (torch.randn(shape, generator=GENERATOR, dtype=torch.float64) * scale).to(torch.bfloat16).double()


def integers(bound, *shape):
    return torch.randint(0, bound, shape, generator=GENERATOR, dtype=torch.int32)


class Cases:
    def __init__(self):
        self.tensors, self.list = {}, []

    def _store(self, key, tensor):
        if tensor.dtype == torch.float64 and tensor.numel() > 1 or key.endswith("dout"):
            tensor = tensor.float()
        self.tensors[key] = tensor.detach().contiguous()

    def add(self, name, op, inputs, function, attributes=None, dout=None, gradients=True, origin=0):
        """`function(*inputs)` gives the outputs; gradients are those of output 0 in every f64 input."""
        inputs = [t.clone().requires_grad_() if t.dtype == torch.float64 and gradients else t for t in inputs]
        outputs = function(*inputs)
        outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
        listed = {}
        if gradients:
            dout = normal(*outputs[0].shape) if dout is None else dout
            wanted = [i for i, t in enumerate(inputs) if t.requires_grad]
            got = torch.autograd.grad(outputs[0], [inputs[i] for i in wanted], dout.reshape(outputs[0].shape))
            self._store(f"{name}.dout", dout)
            listed = dict(zip(wanted, got))
        for i, t in enumerate(inputs):
            self._store(f"{name}.in{i}", t)
        for i, t in enumerate(outputs):
            self._store(f"{name}.out{i}", t)
        for i, t in listed.items():
            self._store(f"{name}.grad{i}", t)
        self.list.append({"name": name, "op": op, "attributes": attributes or {}, "inputs": len(inputs), "outputs": len(outputs),
                          "gradients": sorted(listed), "origin": origin})


def embeddings(cases):
    for name, shape, rows, dim in [("small", (2, 5), 7, 6), ("one", (1, 1), 1, 1), ("wide", (3, 11), 5, 33)]:
        cases.add(f"embedding.{name}", "embedding", [integers(rows, *shape), normal(rows, dim)], lambda ids, w: F.embedding(ids.long(), w))
    for name, rows, dim, seq in [("all", 5, 6, 5), ("part", 9, 17, 4), ("one", 3, 1, 1)]:
        cases.add(f"positions.{name}", "positions", [normal(rows, dim)], lambda w: w[:seq].clone())


def linears(cases):
    shapes = [("odd", (3, 5), 7, True), ("rank3", (2, 3, 4), 6, True), ("plain", (5, 3), 2, False), ("in1", (4, 1), 3, True),
              ("out1", (3, 6), 1, True), ("row1", (1, 9), 5, False), ("tiles", (37, 67), 49, True), ("deep", (18, 261), 19, False)]
    for name, shape, out, bias in shapes:
        inputs = [normal(*shape), normal(out, shape[-1], scale=0.5)] + ([normal(out)] if bias else [])
        cases.add(f"linear.{name}", "linear", inputs, lambda x, w, b=None: F.linear(x, w, b), {"bias": bias})


def norms(cases):
    def layer(x, w, b=None, eps=1e-5):
        mean = x.mean(-1)
        rstd = (x.var(-1, unbiased=False) + eps).rsqrt()
        return F.layer_norm(x, x.shape[-1:], w, b, eps), mean.reshape(-1), rstd.reshape(-1)

    def rms(x, w, eps=1e-5):
        rstd = (x.square().mean(-1) + eps).rsqrt()
        return F.rms_norm(x, x.shape[-1:], w, eps), rstd.reshape(-1)

    for name, shape, bias, eps in [("odd", (3, 5), True, 1e-5), ("rank3", (2, 3, 33), True, 1e-3), ("plain", (4, 16), False, 1e-5),
                                   ("dim1", (3, 1), True, 1e-5), ("row1", (1, 70), True, 1e-5)]:
        weights = [normal(shape[-1])] + ([normal(shape[-1])] if bias else [])
        x = normal(*shape, scale=2.0) + 1.0
        x = x.to(torch.bfloat16).double()
        cases.add(f"layer_norm.{name}", "layer_norm", [x] + weights, lambda x, w, b=None: layer(x, w, b, eps), {"bias": bias, "eps": eps})
        if bias:
            cases.add(f"rms_norm.{name}", "rms_norm", [x, weights[0]], lambda x, w: rms(x, w, eps), {"eps": eps})


def document_places(documents):
    """Of documents [batch, seq]: the place of each position in its document; of padding, -1, 0."""
    places = torch.zeros_like(documents)
    for row, out in zip(documents.tolist(), places):
        for i in range(1, len(row)):
            out[i] = out[i - 1] + 1 if row[i] == row[i - 1] != -1 else 0
    return places


def rotate(x, theta, places=None):
    """x [batch, heads, seq, head_dim]: halves turned by position · theta^(-2j / head_dim). `places`: positions [batch, seq] other than 0, 1, 2, ..."""
    half = x.shape[-1] // 2
    places = torch.arange(x.shape[2])[None] if places is None else places
    angle = places[:, None, :, None].to(x.dtype) * theta ** (-2.0 * torch.arange(half, dtype=x.dtype) / x.shape[-1])
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def attention(q, k, v, heads, kv_heads, causal, theta, documents=None):
    """q [batch, seq, heads·head_dim], k and v [batch, seq, kv_heads·head_dim] → o like q, lse [batch, heads, seq]. Within documents [batch, seq], if
    there are any; of padding, -1, both are 0."""
    split = lambda t, n: t.reshape(t.shape[0], t.shape[1], n, -1).transpose(1, 2)
    q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
    if theta:
        places = None if documents is None else document_places(documents)
        q, k = rotate(q, theta, places), rotate(k, theta, places)
    k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        seq = q.shape[2]
        scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), -math.inf)
    if documents is not None:
        there = (documents >= 0)[:, None, :, None]
        apart = documents[:, None, :, None] != documents[:, None, None, :]
        scores = scores.masked_fill(apart & there, -math.inf)
        o = (torch.softmax(scores, -1) @ v).masked_fill(~there, 0.0)
        return o.transpose(1, 2).flatten(2), torch.logsumexp(scores, -1).masked_fill(~there[..., 0], 0.0)
    o = torch.softmax(scores, -1) @ v
    return o.transpose(1, 2).flatten(2), torch.logsumexp(scores, -1)


def attentions(cases):
    # name, batch, seq, heads, kv_heads, head_dim, causal, packed, theta
    for name, b, t, h, g, d, causal, packed, theta in [
        ("packed", 2, 7, 3, 3, 5, True, True, 0.0), ("full", 2, 5, 2, 2, 3, False, True, 0.0),
        ("seq1", 1, 1, 2, 2, 4, True, True, 0.0), ("head1", 1, 6, 1, 1, 1, True, False, 0.0),
        ("grouped", 2, 6, 4, 2, 6, True, False, 0.0), ("rope", 1, 9, 2, 1, 8, True, False, 10000.0),
        ("rope_packed", 2, 5, 4, 2, 4, False, True, 500.0), ("long", 1, 67, 2, 2, 16, True, True, 0.0),
        ("long_rope", 1, 35, 4, 2, 8, True, False, 10000.0),
    ]:
        attributes = {"heads": h, "kv_heads": g, "causal": causal, "packed": packed, "rope_theta": theta}
        if packed:
            split = lambda x: x.split([h * d, g * d, g * d], -1)
            cases.add(f"attention.{name}", "attention", [normal(b, t, (h + 2 * g) * d)],
                      lambda x: attention(*split(x), h, g, causal, theta), attributes)
        else:
            inputs = [normal(b, t, h * d), normal(b, t, g * d), normal(b, t, g * d)]
            cases.add(f"attention.{name}", "attention", inputs,
                      lambda q, k, v: attention(q, k, v, h, g, causal, theta), attributes)


def elementwise(cases):
    functions = {"relu": F.relu, "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
    for op, function in functions.items():
        for name, shape, scale in [("odd", (3, 7), 1.0), ("one", (1,), 1.0), ("large", (5, 13), 20.0)]:
            cases.add(f"{op}.{name}", op, [normal(*shape, scale=scale)], function)
    for approximate in ("tanh", "none"):
        for name, shape, scale in [("odd", (3, 7), 1.0), ("one", (1, 1), 1.0), ("large", (5, 13), 6.0)]:
            cases.add(f"gelu.{approximate}_{name}", "gelu", [normal(*shape, scale=scale)],
                      lambda x: F.gelu(x, approximate=approximate), {"approximate": approximate})
    for op, function in [("add", torch.add), ("mul", torch.mul)]:
        for name, a, b in [("same", (3, 5), (3, 5)), ("last", (2, 3, 7), (7,)), ("last2", (4, 3, 5), (3, 5)), ("one", (1, 1), (1,))]:
            cases.add(f"{op}.{name}", op, [normal(*a), normal(*b)], function)


def philox(key, stream, block):
    """Philox-4x32-10 of engine/core/random.h: the four words of one block."""
    mask = 0xFFFFFFFF
    c = [block & mask, block >> 32, stream & mask, stream >> 32]
    k = [key & mask, key >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & mask, (p0 >> 32) ^ c[3] ^ k[1], p0 & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def dropouts(cases):
    for name, shape, p, step, key in [("odd", (3, 7), 0.5, 2, 0xFEDCBA9876543210), ("rank3", (2, 5, 3), 0.2, 1000000, 12345)]:
        per_sample = math.prod(shape[1:])
        words = (philox(key, s, (step << 40) + e // 4)[e % 4] for s in range(shape[0]) for e in range(per_sample))
        keep = [word >= p * 2**32 for word in words]
        mask = torch.tensor(keep, dtype=torch.float64).reshape(shape) / (1 - p)
        signed = key - (1 << 64) if key >> 63 else key
        cases.add(f"dropout.{name}", "dropout", [normal(*shape), torch.tensor([step], dtype=torch.int32)],
                  lambda x, _: x * mask, {"p": p, "key": signed})


def convolutions(cases):
    for name, n, cin, h, w, cout, k, stride, padding, bias in [
        ("same", 2, 3, 5, 7, 4, 3, 1, 1, True), ("stride", 1, 2, 8, 7, 3, 3, 2, 0, True), ("point", 2, 5, 3, 3, 2, 1, 1, 0, False),
        ("one", 1, 1, 1, 1, 1, 1, 1, 0, True), ("wide", 1, 17, 6, 5, 18, 5, 3, 2, False),
    ]:
        inputs = [normal(n, cin, h, w), normal(cout, cin, k, k, scale=0.5)] + ([normal(cout)] if bias else [])
        cases.add(f"conv2d.{name}", "conv2d", inputs, lambda x, w, b=None: F.conv2d(x, w, b, stride, padding),
                  {"stride": stride, "padding": padding, "bias": bias})
    for name, shape, k, stride, padding in [("even", (2, 3, 4, 6), 2, 2, 0), ("odd", (1, 2, 7, 5), 3, 2, 1),
                                            ("overlap", (1, 1, 5, 5), 3, 1, 0), ("one", (1, 1, 1, 1), 1, 1, 0)]:
        attributes = {"kernel": k, "stride": stride, "padding": padding}
        distinct = torch.randperm(math.prod(shape), generator=GENERATOR).reshape(shape).double() / 8 - 3  # no ties

        def max_pool(x):
            y, index = F.max_pool2d(x, k, stride, padding, return_indices=True)
            return y, index.int()

        cases.add(f"max_pool2d.{name}", "max_pool2d", [distinct], max_pool, attributes)
        cases.add(f"avg_pool2d.{name}", "avg_pool2d", [normal(*shape)], lambda x: F.avg_pool2d(x, k, stride, padding), attributes)


def losses(cases):
    for name, shape, ignored, smoothing, scale in [
        ("plain", (4, 7), 0, 0.0, 1.0), ("ignored", (2, 5, 9), 4, 0.0, 1.0), ("smooth", (6, 5), 2, 0.1, 1.0),
        ("large", (5, 33), 1, 0.0, 20.0), ("class1", (3, 1), 0, 0.0, 1.0), ("none_left", (2, 4), 2, 0.0, 1.0),
    ]:
        targets = integers(shape[-1], *shape[:-1])
        targets.view(-1)[torch.randperm(targets.numel(), generator=GENERATOR)[:ignored]] = -100
        attributes = {"ignore_index": -100, "label_smoothing": smoothing}

        def loss(x, t):
            total = F.cross_entropy(x.reshape(-1, shape[-1]), t.reshape(-1).long(), reduction="sum", label_smoothing=smoothing)
            return total.reshape(1), torch.logsumexp(x, -1).reshape(-1)

        cases.add(f"cross_entropy.{name}", "cross_entropy", [normal(*shape, scale=scale), targets], loss, attributes,
                  dout=torch.tensor([0.375], dtype=torch.float64))
        logits = cases.tensors[f"cross_entropy.{name}.in0"].double()
        counted = targets != -100
        correct = ((logits.argmax(-1) == targets) & counted).sum().double().reshape(1)
        ignore = {"ignore_index": -100}
        cases.add(f"cross_entropy_count.{name}", "cross_entropy_count", [targets], lambda _: counted.sum().double().reshape(1), ignore,
                  gradients=False)
        cases.add(f"correct_count.{name}", "correct_count", [logits, targets], lambda *_: correct, ignore, gradients=False)
    for name, shape in [("odd", (3, 5)), ("one", (1,)), ("rank1", (13,))]:
        target = normal(*shape)
        cases.add(f"mse.{name}", "mse", [normal(*shape), target.float()], lambda p, t: (p - t.double()).square().sum().reshape(1),
                  dout=torch.tensor([0.625], dtype=torch.float64))


def optimizers(cases):
    """One update each: master, gradient, states, lr, scalars (factor first), applied → master and states."""
    n, decayed = 37, 20
    lr, decay, factor = 0.0078125, 0.125, 0.5  # exact in f32
    weight_decay = torch.cat([torch.full((decayed,), decay), torch.zeros(n - decayed)]).double()
    scalars = torch.tensor([factor, 1.0, 0.0, 0.0], dtype=torch.float32)
    control = lambda step: [torch.tensor([lr], dtype=torch.float32), scalars, torch.tensor([step], dtype=torch.int32)]

    def adam(step):
        def update(w, g, m, v, *_):
            p = torch.nn.Parameter(w * (1 - lr * weight_decay))
            p.grad = g * factor
            optimizer = torch.optim.Adam([p], lr=lr, betas=(0.875, 0.96875), eps=1e-6)
            optimizer.state[p] = {"step": torch.tensor(float(step - 1)), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
            optimizer.step()
            return p.detach(), optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"]
        return update

    for op in ("adam", "adamw"):
        for name, step in [("first", 1), ("later", 17)]:
            states = [torch.zeros(n).double(), torch.zeros(n).double()]
            if step > 1:
                states = [normal(n, scale=0.1), normal(n, scale=0.1).square().to(torch.bfloat16).double()]
            attributes = {"beta1": 0.875, "beta2": 0.96875, "eps": 1e-6, "weight_decay": decay, "decay_elements": decayed, "working": False}
            cases.add(f"{op}.{name}", op, [normal(n), normal(n)] + states + control(step), adam(step), attributes, gradients=False)

    def lion(w, g, m, *_):
        g, w = g * factor, w * (1 - lr * weight_decay)
        return w - lr * torch.sign(0.875 * m + 0.125 * g), 0.96875 * m + 0.03125 * g

    cases.add("lion.later", "lion", [normal(n), normal(n), normal(n)] + control(3), lion,
              {"beta1": 0.875, "beta2": 0.96875, "weight_decay": decay, "decay_elements": decayed, "working": False}, gradients=False)

    def sgd(momentum, nesterov):
        def update(w, g, *rest):
            p = torch.nn.Parameter(w * (1 - lr * weight_decay))
            p.grad = g * factor
            optimizer = torch.optim.SGD([p], lr=lr, momentum=momentum, nesterov=nesterov)
            if momentum:
                optimizer.state[p]["momentum_buffer"] = rest[0].clone()
            optimizer.step()
            return (p.detach(), optimizer.state[p]["momentum_buffer"]) if momentum else p.detach()
        return update

    for name, momentum, nesterov in [("plain", 0.0, False), ("momentum", 0.875, False), ("nesterov", 0.875, True)]:
        states = [normal(n)] if momentum else []
        cases.add(f"sgd.{name}", "sgd", [normal(n), normal(n)] + states + control(2), sgd(momentum, nesterov),
                  {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay, "decay_elements": decayed,
                   "has_momentum": bool(momentum), "working": False}, gradients=False)


def scales(cases):
    for name, shape, factor in [("odd", (3, 7), 0.375), ("one", (1,), -2.0), ("third", (2, 5, 3), 1 / 3)]:
        cases.add(f"scale.{name}", "scale", [normal(*shape)], lambda x: x * factor, {"factor": factor})


def parts(cases):
    """A rank's part of a sequence, and rows in pieces."""
    # name, batch, queries, keys, origin, heads, kv_heads, head_dim, causal, theta
    for name, b, t, s, origin, h, g, d, causal, theta in [
        ("first", 2, 5, 15, 0, 2, 2, 6, True, 0.0), ("middle", 2, 5, 15, 5, 4, 2, 4, True, 10000.0),
        ("last", 1, 7, 71, 64, 4, 1, 8, True, 500.0), ("full", 2, 3, 9, 6, 2, 1, 4, False, 100.0), ("one", 1, 1, 66, 65, 2, 2, 5, True, 0.0),
    ]:
        allowed = torch.arange(s)[None, :] <= origin + torch.arange(t)[:, None] if causal else torch.ones(t, s, dtype=torch.bool)

        def attend(q, k, v):
            split = lambda x, n: x.reshape(x.shape[0], x.shape[1], n, -1).transpose(1, 2)
            q, k, v = split(q, h), split(k, g), split(v, g)
            if theta:  # a query is turned by its place in the sequence
                before = q.new_zeros(*q.shape[:2], origin, q.shape[3])
                q, k = rotate(torch.cat([before, q], 2), theta)[:, :, origin:], rotate(k, theta)
            k, v = (x.repeat_interleave(h // g, dim=1) for x in (k, v))
            scores = (q @ k.transpose(-1, -2) / math.sqrt(d)).masked_fill(~allowed, -math.inf)
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
            return o.transpose(1, 2).flatten(2), torch.logsumexp(scores, -1)

        cases.add(f"attention.part_{name}", "attention", [normal(b, t, h * d), normal(b, s, g * d), normal(b, s, g * d)], attend,
                  {"heads": h, "kv_heads": g, "causal": causal, "packed": False, "rope_theta": theta}, origin=origin)
    for name, rows, dim, seq, first in [("middle", 9, 5, 3, 4), ("last", 12, 8, 4, 8)]:
        cases.add(f"positions.{name}", "positions", [normal(rows, dim)], lambda w: w[first:first + seq].clone(), origin=first)
    # Of samples of 6 rows the rows 2 and 3, or 4 and 5, from sample 3 on.
    for name, first in [("middle", 2), ("last", 4)]:
        samples, rows, dim, before, p, step, key = 3, 6, 5, 3, 0.3, 7, 99
        words = [philox(key, before + s, (step << 40) + e // 4)[e % 4] for s in range(samples) for e in range(rows * dim)]
        mask = torch.tensor([word >= p * 2**32 for word in words], dtype=torch.float64).reshape(samples, rows, dim) / (1 - p)
        mask = mask[:, first:first + 2]
        cases.add(f"dropout.part_{name}", "dropout", [normal(samples, 2, dim), torch.tensor([step], dtype=torch.int32)], lambda x, _: x * mask,
                  {"p": p, "key": key, "sample": rows * dim, "row": 2 * dim, "stride": rows * dim}, origin=(before * rows + first) * dim)
    for name, shape, sizes in [("even", (3, 2), [4, 4, 4]), ("odd", (2, 3), [1, 5, 2]), ("grouped", (5,), [16, 8, 8]), ("one", (4,), [3])]:
        cases.add(f"split.{name}", "split", [normal(*shape, sum(sizes))], lambda x: tuple(y.clone() for y in x.split(sizes, -1)))
        cases.add(f"concat.{name}", "concat", [normal(*shape, n) for n in sizes], lambda *xs: torch.cat(xs, -1))


def caps(cases):
    for name, shape, scale, cap in [("logits", (3, 7), 40.0, 30.0), ("scores", (2, 3, 5), 20.0, 50.0), ("small", (9,), 1.0, 0.75)]:
        cases.add(f"softcap.{name}", "softcap", [normal(*shape, scale=scale)], lambda x: cap * torch.tanh(x / cap), {"cap": cap})


def batch_norms(cases):
    """By running statistics, as in evaluation."""
    for name, shape, eps in [("rows", (5, 3), 1e-5), ("images", (2, 4, 3, 5), 1e-5), ("one", (1, 2), 0.1), ("long", (3, 17, 7), 1e-3)]:
        c = shape[1]
        var = normal(c).abs() + 0.125
        cases.add(f"batch_norm.{name}", "batch_norm", [normal(*shape, scale=2.0), normal(c), normal(c), normal(c), var],
                  lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, False, 0.1, eps), {"eps": eps}, gradients=False)


def distinct(*shape):
    """Like normal, without equals in a row."""
    while True:
        x = normal(*shape)
        if all(len(row.unique()) == shape[-1] for row in x.reshape(-1, shape[-1])):
            return x


def experts(cases):
    """Routers as those of transformers (Mixtral, Qwen-MoE, DeepSeek V3), and products with the weights of chosen experts."""

    def route(logits, bias, k, score, normalize, scale, groups, top_groups):
        s = logits.softmax(-1) if score == "softmax" else logits.sigmoid()
        by = s if bias is None else s + bias
        if groups > 1:
            best = by.view(*by.shape[:-1], groups, -1).topk(2, -1)[0].sum(-1).topk(top_groups, -1)[1]
            allowed = torch.zeros(*by.shape[:-1], groups).scatter_(-1, best, 1).bool()
            by = by.masked_fill(~allowed.repeat_interleave(by.shape[-1] // groups, -1), -math.inf)
        choices = by.topk(k, -1)[1]
        weights = s.gather(-1, choices)
        if normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * scale, choices.int()

    for name, shape, k, score, normalize, scale, groups, top_groups, biased in [
        ("mixtral", (2, 5, 8), 2, "softmax", True, 1.0, 1, 1, False), ("qwen2", (1, 7, 6), 3, "softmax", False, 1.0, 1, 1, False),
        ("one", (3, 2, 4), 1, "softmax", True, 1.0, 1, 1, False), ("all", (1, 3, 3), 3, "softmax", False, 0.5, 1, 1, False),
        ("deepseek", (2, 6, 16), 4, "sigmoid", True, 2.5, 4, 2, True), ("sigmoid", (1, 9, 5), 2, "sigmoid", False, 1.5, 1, 1, False),
        ("groups", (2, 3, 12), 3, "softmax", True, 1.0, 3, 2, False), ("biased", (2, 4, 7), 2, "softmax", True, 1.0, 1, 1, True),
    ]:
        attributes = {"score": score, "normalize": normalize, "scale": scale, "groups": groups, "top_groups": top_groups, "biased": biased}
        bias = (normal(shape[-1]) * 0.25).float() if biased else None
        cases.add(f"route.{name}", "route", [distinct(*shape)] + ([bias] if biased else []),
                  lambda x, b=None: route(x, None if b is None else b.double(), k, score, normalize, scale, groups, top_groups), attributes)

    for name, tokens, k, count, inner, out, by_choice, summed, dropped in [
        ("into", (2, 5), 2, 4, 6, 7, False, False, False), ("out_of", (2, 5), 2, 4, 7, 6, True, True, False), ("own", (3, 4), 3, 5, 9, 5, True, False, False),
        ("joined", (1, 6), 2, 3, 5, 4, False, True, False), ("one", (1, 1), 1, 2, 3, 4, False, False, False), ("few", (2, 3), 2, 16, 5, 6, False, False, True),
        ("tiles", (2, 17), 2, 2, 67, 33, False, False, True), ("tiles_sum", (2, 17), 2, 2, 33, 67, True, True, True),
    ]:
        choices = torch.stack([torch.randperm(count, generator=GENERATOR)[:k] for _ in range(tokens[0] * tokens[1])]).reshape(*tokens, k).int()
        if dropped:
            choices[torch.rand(choices.shape, generator=GENERATOR) < 0.2] = -1
        there = (choices >= 0)[..., None].double()

        def product(x, c, w):
            rows = x if by_choice else x[..., None, :].expand(*tokens, k, inner)
            y = torch.einsum("...ki,...koi->...ko", rows, w[c.clamp(min=0).long()]) * there
            return y.sum(-2) if summed else y

        x = normal(*tokens, *([k] if by_choice else []), inner)
        cases.add(f"expert_linear.{name}", "expert_linear", [x, choices, normal(count, out, inner, scale=0.5)], product)
    for name, shape in [("rows", (2, 3, 2, 7)), ("long", (5, 130)), ("one", (1, 1))]:
        cases.add(f"weigh.{name}", "weigh", [normal(*shape), normal(*shape[:-1])], lambda x, w: x * w[..., None])


def router_losses(cases):
    """The gradient of a router's balancing loss, a mean over samples of sums over experts, and of that of large logits."""
    for name, shape, k, score, aux, z in [("aux", (2, 6, 5), 2, "softmax", 0.5, 0.0), ("z", (1, 4, 3), 1, "softmax", 0.0, 0.25),
                                          ("both", (3, 5, 8), 3, "sigmoid", 0.125, 0.5)]:
        seed = torch.tensor([0.75], dtype=torch.float32)
        logits, count = distinct(*shape), shape[-1]
        choices = logits.topk(k, -1)[1]

        def slopes(_, x, c, g):
            x = x.clone().requires_grad_()
            s = x.softmax(-1) if score == "softmax" else x.sigmoid()
            shares = F.one_hot(c.long(), count).double().sum(2).mean(1) / k
            losses = aux * count * (shares * (s / s.sum(-1, keepdim=True)).mean(1)).sum(-1) + z * torch.logsumexp(x, -1).square().mean(-1)
            return torch.autograd.grad(losses.sum() * g.double(), x)[0]

        cases.add(f"route_grad.{name}", "route_grad", [torch.zeros(*shape[:2], k), logits, choices.int(), seed], slopes,
                  {"score": score, "aux": aux, "z": z, "losses": True}, gradients=False)


def make(path, save_file):
    GENERATOR.manual_seed(20)
    cases = Cases()
    for part in (embeddings, linears, norms, attentions, elementwise, dropouts, convolutions, losses, optimizers, scales, parts, caps, batch_norms, experts, router_losses):
        part(cases)
    arrays = {k: np.ascontiguousarray(t.numpy()) for k, t in cases.tensors.items()}
    save_file(arrays, path, {"cases": json.dumps(cases.list), "torch": torch.__version__})
    return len(cases.list)
