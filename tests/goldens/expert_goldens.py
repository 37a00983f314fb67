"""Goldens of training models with experts: 20 steps of AdamW in f64 of models in folders/, as transformers and PyTorch take them,
without losses of routers and with the bias of DeepSeek V3 as it stands; and once more with that bias moved by the formula
here, since transformers has none. Needs torch and transformers 5.23.

experts/<name>.bin: u16 ids, of which the rows of a step follow one another. experts/<name>.json: the loss and the norm of the
gradient of each step. experts/<name>.safetensors: the weights afterwards, by their names in the folder's file.

Which experts a token goes to is a matter of comparison. So that rounding decides none of them, `closest`, the smallest
distance between the scores of the last that is chosen and the first that is not, is above 1e-5; for that a seed of the
tokens is sought.
"""

import json
import os
import tempfile

import numpy as np
import torch
import transformers as T
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "experts")
STEPS, BATCH, SEQ, RATE, CLEAR = 20, 4, 8, 0.01, 1e-5
CASES = [("mixtral", 0.0), ("qwen3_moe", 0.0), ("deepseek_v3", 0.0), ("deepseek_v3", RATE)]


def tokens_of(seed):
    return torch.randint(0, 61, (STEPS * BATCH * SEQ + 1,), generator=torch.Generator().manual_seed(seed))


class Choices:
    """The routers of a model: what they chose in a forward pass, and how clearly."""

    def __init__(self, model):
        self.closest, self.chosen = 1.0, {}
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(lambda module, _, out: self.note(module, *out))

    def note(self, module, logits, weights, choices):
        self.chosen[module] = choices
        bias = getattr(module, "e_score_correction_bias", None)
        by = logits.double().softmax(-1) if bias is None else logits.double().sigmoid() + bias
        groups = getattr(module, "num_group", 1)
        if groups > 1:
            pairs = by.view(len(by), groups, -1).topk(2, -1)[0].sum(-1).sort(-1, descending=True)
            taken = module.topk_group
            self.closest = min(self.closest, (pairs[0][:, taken - 1] - pairs[0][:, taken]).min().item())
            kept = torch.zeros(len(by), groups, dtype=torch.bool).scatter_(1, pairs[1][:, :taken], True)
            by = by.masked_fill(~kept.repeat_interleave(by.shape[1] // groups, 1), -1)
        best, k = by.sort(-1, descending=True)[0], choices.shape[-1]
        self.closest = min(self.closest, (best[:, k - 1] - best[:, k]).min().item())

    def balance(self, rate):
        """Down for an expert with more choices than the mean of the step's, up for one with fewer."""
        for module, choices in self.chosen.items():
            counts = torch.bincount(choices.flatten(), minlength=module.num_experts).double()
            module.e_score_correction_bias -= rate * torch.sign(counts - counts.mean())


def train(name, rate, tokens):
    model = T.AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "folders", name), dtype=torch.float64, attn_implementation="eager",
                                                   experts_implementation="eager").train()
    choices = Choices(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.999), eps=1e-3, weight_decay=0.0)
    told = {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        first = step * BATCH * SEQ
        inputs = tokens[first : first + BATCH * SEQ].view(BATCH, SEQ)
        targets = tokens[first + 1 : first + 1 + BATCH * SEQ]
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)
        optimizer.zero_grad()
        loss.backward()
        told["loss"].append(loss.item())
        told["grad_norm"].append(torch.sqrt(sum((p.grad**2).sum() for p in model.parameters())).item())
        optimizer.step()
        with torch.no_grad():
            if rate > 0:
                choices.balance(rate)
    return model, told, choices.closest


def make(name, rate):
    for seed in range(1, 100):
        tokens = tokens_of(seed)
        model, told, closest = train(name, rate, tokens)
        if closest > CLEAR:
            break
    else:
        raise SystemExit("no seed leaves every choice clear")
    out = os.path.join(OUT, name + ("_balanced" if rate > 0 else ""))
    tokens.numpy().astype(np.uint16).tofile(out + ".bin")
    with open(out + ".json", "w") as file:
        json.dump({**told, "closest": closest, "balance_rate": rate}, file, indent=1)
    with tempfile.TemporaryDirectory() as saved:
        model.float().save_pretrained(saved)
        save_file(load_file(os.path.join(saved, "model.safetensors")), out + ".safetensors")
    print(out, seed, told["loss"][0], told["loss"][-1], closest)


if __name__ == "__main__":
    T.logging.set_verbosity_error()
    os.makedirs(OUT, exist_ok=True)
    for name, rate in CASES:
        make(name, rate)
