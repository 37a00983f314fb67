"""Golden of a model that predicts two tokens at each position (multi-token prediction): folders/deepseek_v3 with one more layer, which is
transformers' MtpLayer, and 20 steps of AdamW in f64 with the bias of routers moved, as in expert_goldens.py. Needs torch and
transformers 5.23.

folders/deepseek_v3_mtp: config.json and model.safetensors, with the layer, its copies of embedding and head, and in expected.safetensors
the log-probabilities of the model without it. experts/deepseek_v3_mtp.*: as in expert_goldens.py, and in the .json `mtp_loss`, the mean
over the layer's own targets, and `mtp_weight`.

The objective is the mean loss of the model plus `mtp_weight` times the sum of the layer's over the number of the model's targets
(DeepSeek-V3 technical report, formulas 24 and 25). The last position of a row has no later target.
"""

import json
import os
import shutil
import tempfile

import numpy as np
import torch
import transformers as T
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

from expert_goldens import BATCH, CLEAR, HERE, OUT, RATE, SEQ, STEPS, Choices, tokens_of

BASE, FOLDER, WEIGHT = os.path.join(HERE, "folders", "deepseek_v3"), os.path.join(HERE, "folders", "deepseek_v3_mtp"), 0.3
OWN = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "post_norm": "shared_head.norm"}


def load():
    """The model with a layer more than its config says, which the further head has as its block."""
    config = T.AutoConfig.from_pretrained(BASE)
    layers = config.num_hidden_layers
    torch.manual_seed(7)
    config.num_hidden_layers = layers + 1
    model = T.DeepseekV3ForCausalLM._from_config(config, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(1 + 0.1 * torch.randn_like(parameter) if "norm" in name else 0.15 * torch.randn_like(parameter))
        model.model.layers[layers].mlp.gate.e_score_correction_bias.uniform_(-0.2, 0.2)
    known = T.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32).state_dict()
    model.load_state_dict(known, strict=False)
    model = model.double().train()
    config.num_hidden_layers = model.config.num_hidden_layers = model.model.config.num_hidden_layers = layers
    further = MtpModel(model, 1).double().train()
    further.layers[0].mtp_block = model.model.layers[layers]
    with torch.no_grad():
        for name in OWN:
            weight = getattr(further.layers[0], name).weight
            weight.copy_(0.15 * torch.randn_like(weight) + (0 if name == "eh_proj" else 1))
    return model, further.layers[0], layers


def hidden_of(model, inputs):
    return model.model(input_ids=inputs, use_cache=False).last_hidden_state


def further_logits(model, layer, hidden, next_tokens):
    """The token that is joined to position i is that of i + 1, and so is its position; a rotation is relative."""
    positions = torch.arange(1, SEQ + 1).unsqueeze(0)
    mask = torch.full((SEQ, SEQ), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)[None, None]
    turned = model.model.rotary_emb(hidden, position_ids=positions)
    out = layer(model.model.embed_tokens(next_tokens), hidden, position_embeddings=turned, attention_mask=mask,
                position_ids=positions, cache=None)
    return model.lm_head(out)


def save(model, layer, layers, path):
    """As DeepSeek publishes it."""
    with tempfile.TemporaryDirectory() as saved:
        model.config.num_hidden_layers = layers + 1
        copy = {name: value.float() for name, value in model.state_dict().items()}
        whole = T.DeepseekV3ForCausalLM._from_config(model.config).float()
        whole.load_state_dict(copy)
        whole.save_pretrained(saved)
        model.config.num_hidden_layers = layers
        tensors = load_file(os.path.join(saved, "model.safetensors"))
    at = f"model.layers.{layers}."
    for name, theirs in OWN.items():
        tensors[at + theirs + ".weight"] = getattr(layer, name).weight.detach().float()
    tensors[at + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[at + "shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, {"format": "pt"})


def train(tokens):
    model, layer, _ = load()
    choices = Choices(model)
    parameters = list({id(p): p for p in [*model.parameters(), *layer.parameters()]}.values())
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.999), eps=1e-3, weight_decay=0.0)
    told = {"loss": [], "mtp_loss": [], "grad_norm": []}
    for step in range(STEPS):
        first = step * BATCH * SEQ
        inputs = tokens[first : first + BATCH * SEQ].view(BATCH, SEQ)
        targets = tokens[first + 1 : first + 1 + BATCH * SEQ].view(BATCH, SEQ)
        none = torch.full((BATCH, 1), -100)
        next_tokens = torch.cat([inputs[:, 1:], torch.zeros_like(none)], 1)
        later = torch.cat([targets[:, 1:], none], 1)
        hidden = hidden_of(model, inputs)
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden).flatten(0, 1), targets.flatten())
        logits = further_logits(model, layer, hidden, next_tokens)
        further = torch.nn.functional.cross_entropy(logits.flatten(0, 1), later.flatten(), reduction="sum")
        optimizer.zero_grad()
        (loss + WEIGHT * further / targets.numel()).backward()
        told["loss"].append(loss.item())
        told["mtp_loss"].append(further.item() / (later >= 0).sum().item())
        told["grad_norm"].append(torch.sqrt(sum((p.grad**2).sum() for p in parameters)).item())
        optimizer.step()
        with torch.no_grad():
            choices.balance(RATE)
    return model, layer, told, choices.closest


def main():
    model, layer, layers = load()
    os.makedirs(FOLDER, exist_ok=True)
    shutil.copy(os.path.join(BASE, "config.json"), FOLDER)
    shutil.copy(os.path.join(BASE, "expected.safetensors"), FOLDER)
    save(model, layer, layers, os.path.join(FOLDER, "model.safetensors"))
    for seed in range(1, 200):
        tokens = tokens_of(seed)
        model, layer, told, closest = train(tokens)
        if closest > CLEAR:
            break
    else:
        raise SystemExit("no seed leaves every choice clear")
    out = os.path.join(OUT, "deepseek_v3_mtp")
    tokens.numpy().astype(np.uint16).tofile(out + ".bin")
    with open(out + ".json", "w") as file:
        json.dump({**told, "closest": closest, "balance_rate": RATE, "mtp_weight": WEIGHT}, file, indent=1)
    save(model, layer, layers, out + ".safetensors")
    print(out, seed, told["loss"][0], told["loss"][-1], told["mtp_loss"][0], told["mtp_loss"][-1], closest)


if __name__ == "__main__":
    T.logging.set_verbosity_error()
    main()
