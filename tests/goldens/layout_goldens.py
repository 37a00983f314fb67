"""Goldens of ops that move values and change none, of those that sum or normalise over other dims than the last, and of attention to samples
that are padded or have several documents: PyTorch's outputs and gradients in f64, written to layout.safetensors in the form of op_goldens.py.
"""

import json
import math

import numpy as np
import torch
import torch.nn.functional as F

from op_goldens import GENERATOR, Cases, attention, document_places, integers, normal


def splits(cases):
    for name, shape, dim, sizes in [("middle", (2, 6, 3), -2, [1, 4, 1]), ("first", (5, 2), -2, [2, 3]), ("last", (2, 2, 7), -1, [3, 4])]:
        pieces = lambda n: [n if d == len(shape) + dim else size for d, size in enumerate(shape)]
        cases.add(f"split.dim_{name}", "split", [normal(*shape)], lambda x: tuple(y.clone() for y in x.split(sizes, dim)), {"dim": dim})
        cases.add(f"concat.dim_{name}", "concat", [normal(*pieces(n)) for n in sizes], lambda *xs: torch.cat(xs, dim), {"dim": dim})


def moves(cases):
    for name, shape, dim, start, size in [("last", (3, 7), -1, 2, 4), ("token", (2, 5, 3), -2, 0, 1), ("end", (2, 5, 3), -2, 3, 2), ("all", (4, 2), -2, 0, 4)]:
        attributes = {"dim": dim, "start": start}
        cases.add(f"slice.{name}", "slice", [normal(*shape)], lambda x: x.narrow(dim, start, size).clone(), attributes)
    for name, shape, samples in [("class", (1, 6), 3), ("flat", (5,), 2), ("one", (2, 3), 1)]:
        cases.add(f"expand.{name}", "expand", [normal(*shape), integers(9, samples, 4)], lambda x, like: x.expand(like.shape[0], *shape).clone())
    for name, shape, dims in [("matrix", (5, 7), (1, 0)), ("patches", (2, 3, 6), (0, 2, 1)), ("same", (2, 3), (0, 1)), ("heads", (2, 3, 4, 5), (0, 2, 1, 3)),
                              ("turned", (2, 3, 4, 5), (3, 1, 2, 0)), ("ones", (1, 4, 1, 3), (3, 0, 1, 2))]:
        cases.add(f"transpose.{name}", "transpose", [normal(*shape)], lambda x: x.permute(*dims).contiguous(), {"dims": ",".join(map(str, dims))})
    for name, shape in [("class", (1, 1, 6)), ("flat", (5,))]:
        cases.add(f"parameter.{name}", "parameter", [normal(*shape)], lambda x: x.clone())
    for name, rows, dim, seq, first in [("offset", 9, 5, 4, 2), ("to_the_end", 6, 3, 4, 2)]:
        cases.add(f"positions.{name}", "positions", [normal(rows, dim)], lambda w: w[first:first + seq].clone(), {"offset": first})


def means(cases):
    for name, shape, dim in [("seq", (2, 5, 7), -2), ("plane", (2, 3, 16), -1), ("first", (4, 3), -2), ("one", (2, 1, 3), -2), ("long", (1, 300, 3), -2)]:
        cases.add(f"mean.{name}", "mean", [normal(*shape)], lambda x: x.mean(dim), {"dim": dim})


def sequences(cases):
    for name, n, cin, l, cout, k, stride, padding, bias in [("same", 2, 3, 7, 4, 3, 1, 1, True), ("halves", 2, 4, 10, 5, 3, 2, 1, True),
                                                            ("point", 1, 5, 3, 2, 1, 1, 0, False), ("wide", 1, 2, 9, 3, 5, 3, 2, False)]:
        inputs = [normal(n, cin, l), normal(cout, cin, k, scale=0.5)] + ([normal(cout)] if bias else [])
        cases.add(f"conv1d.{name}", "conv1d", inputs, lambda x, w, b=None: F.conv1d(x, w, b, stride, padding),
                  {"stride": stride, "padding": padding, "bias": bias})


def lengths(cases):
    """Attention without the keys from a sample's length on."""
    # name, keys, queries, heads, kv_heads, head_dim, causal, packed, lengths
    for name, s, t, h, g, d, causal, packed, counts in [
        ("packed", 7, 7, 3, 3, 4, False, True, [7, 1, 4]), ("causal", 6, 6, 2, 1, 5, True, False, [3, 6]), ("cross", 9, 4, 4, 2, 3, False, False, [5, 9, 2]),
        ("long", 70, 70, 1, 1, 4, True, True, [65, 20]), ("blocks", 130, 66, 1, 1, 3, False, False, [64, 130]),
    ]:
        count = torch.tensor(counts, dtype=torch.int32)
        b = len(counts)

        def attend(*operands):
            q, k, v = operands[0].split([h * d, g * d, g * d], -1) if packed else operands[:3]
            heads = lambda x, n: x.reshape(b, x.shape[1], n, d).transpose(1, 2)
            q, k, v = heads(q, h), heads(k, g).repeat_interleave(h // g, dim=1), heads(v, g).repeat_interleave(h // g, dim=1)
            seen = (torch.arange(s)[None, :] < count[:, None])[:, None, None, :].expand(b, 1, t, s)
            if causal:
                seen = seen & torch.ones(t, s, dtype=torch.bool).tril()
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            scores = (q @ k.transpose(-1, -2) / math.sqrt(d)).masked_fill(~seen, -math.inf)
            return o.transpose(1, 2).flatten(2), torch.logsumexp(scores, -1)

        inputs = [normal(b, t, (h + 2 * g) * d)] if packed else [normal(b, t, h * d), normal(b, s, g * d), normal(b, s, g * d)]
        cases.add(f"attention.lengths_{name}", "attention", inputs + [count], attend,
                  {"heads": h, "kv_heads": g, "causal": causal, "packed": packed, "rope_theta": 0.0, "padded": True})


def documents(cases):
    """Attention within the documents of a row, by a mask of blocks, and the places in documents."""
    rows_of = lambda t, rows: torch.tensor([sum(([i] * n for i, n in enumerate(row)), [])[:t] + [-1] * (t - sum(row)) for row in rows], dtype=torch.int32)
    # name, seq, heads, kv_heads, head_dim, causal, packed, theta, lengths of documents by row
    for name, t, h, g, d, causal, packed, theta, rows in [
        ("packed", 9, 2, 2, 4, True, True, 0.0, [[4, 1, 3], [9]]), ("rope", 7, 4, 2, 6, True, False, 500.0, [[1, 6], [2, 3], []]),
        ("full", 8, 2, 1, 4, False, False, 500.0, [[5, 3]]), ("long", 140, 1, 1, 4, True, True, 100.0, [[1, 66, 70]]), ("blocks", 130, 1, 1, 2, False, True, 0.0, [[64, 65]]),
    ]:
        numbers = rows_of(t, rows)
        b = len(rows)

        def attend(*operands):
            q, k, v = operands[0].split([h * d, g * d, g * d], -1) if packed else operands[:3]
            return attention(q, k, v, h, g, causal, theta, numbers)

        inputs = [normal(b, t, (h + 2 * g) * d)] if packed else [normal(b, t, h * d), normal(b, t, g * d), normal(b, t, g * d)]
        cases.add(f"attention.documents_{name}", "attention", inputs + [numbers], attend,
                  {"heads": h, "kv_heads": g, "causal": causal, "packed": packed, "rope_theta": theta, "by_document": True})
    numbers = rows_of(12, [[1, 4, 5], [12], []])
    cases.add("document_positions.rows", "document_positions", [numbers], document_places, gradients=False)
    cases.add("document_positions.offset", "document_positions", [numbers], lambda x: document_places(x) + 2, {"offset": 2}, gradients=False)


def copies(cases):
    """Behind all others, so that their numbers stay."""
    for name, shape, dim, count in [("heads", (2, 3, 4), 2, 5), ("second", (2, 3), 1, 4), ("last", (3,), 1, 2)]:
        like = [*shape[:dim], count, *shape[dim:]]
        cases.add(f"expand.{name}", "expand", [normal(*shape), integers(9, *like)], lambda x, y: x.unsqueeze(dim).expand(y.shape).clone(), {"dim": dim})


def make(path, save_file):
    GENERATOR.manual_seed(21)
    cases = Cases()
    for part in (splits, moves, means, sequences, lengths, documents, copies):
        part(cases)
    arrays = {k: np.ascontiguousarray(t.numpy()) for k, t in cases.tensors.items()}
    save_file(arrays, path, {"cases": json.dumps(cases.list), "torch": torch.__version__})
    return len(cases.list)
