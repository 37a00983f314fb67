"""Goldens of adapters that peft saved: peft/<name>/, each a folder as `save_pretrained` writes it (adapter_config.json and
adapter_model.safetensors) beside a model of folders/, with expected.safetensors: `ids` [rows, tokens] and `logprobs`, the
log-probability of every id but the first under the base with the adapter, in f64. B is far from zero, and so the adapter from no adapter;
modules that are trained whole are far from the base's.

  python tests/goldens/peft_goldens.py      (torch, transformers 5.23, peft 0.21)
"""

import json
import os
import shutil
import sys

import peft
import torch
import transformers
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDERS, OUT = os.path.join(HERE, "folders"), os.path.join(HERE, "peft")
CASES = {
    "llama": ("llama_tied", dict(r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.05)),
    "gpt2": ("gpt2", dict(r=4, lora_alpha=6, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "llama_dora": ("llama_tied", dict(r=2, lora_alpha=3, target_modules=["o_proj", "up_proj"], use_dora=True, lora_dropout=0.05)),
    "gpt2_dora": ("gpt2", dict(r=3, lora_alpha=4, target_modules=["c_attn", "c_proj"], use_dora=True, fan_in_fan_out=True)),
    "llama_head": ("llama3", dict(r=2, lora_alpha=3, target_modules=["q_proj"], modules_to_save=["lm_head"])),
    "gpt2_positions": ("gpt2", dict(r=2, lora_alpha=3, target_modules=["c_fc"], modules_to_save=["wpe", "ln_f"], fan_in_fan_out=True)),
}


def logprobs(model, ids):
    with torch.no_grad():
        return torch.log_softmax(model(ids).logits, -1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]


def make(name, base, options):
    torch.manual_seed(sum(map(ord, name)))
    ids = torch.randint(0, 61, (2, 20), generator=torch.Generator().manual_seed(2))
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(FOLDERS, base), dtype=torch.float64, attn_implementation="eager").eval()
    plain = logprobs(model, ids)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options), autocast_adapter_dtype=False).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                if "lora_B" in key:
                    parameter.copy_(torch.randn_like(parameter) * 0.3)
                if "magnitude" in key:
                    parameter.mul_(1 + 0.3 * torch.rand_like(parameter))
            if "modules_to_save" in key:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            if "lora_" in key or "modules_to_save" in key:
                parameter.copy_(parameter.float())
    adapted = logprobs(model, ids)
    folder = os.path.join(OUT, name)
    shutil.rmtree(folder, ignore_errors=True)
    for parameter in model.parameters():
        parameter.data = parameter.data.float()
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as file:
        config = json.load(file)
    for key in ("target_modules", "modules_to_save"):
        config[key] = config[key] and sorted(config[key])
    with open(path, "w") as file:
        json.dump(config, file, indent=2)
    save_file({"ids": ids.int(), "logprobs": adapted.contiguous()}, os.path.join(folder, "expected.safetensors"))
    print(name, "moved the log-probabilities by", (adapted - plain).abs().max().item())


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make(name, *CASES[name])
