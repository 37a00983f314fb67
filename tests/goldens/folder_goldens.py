"""Goldens of model folders: tiny random models of every family, as transformers saves them, with what transformers
computes. Needs torch and transformers 5.23.

Each is a folder folders/<name>/: config.json and model.safetensors as `save_pretrained` writes them;
config_v4.json, the same as transformers 4 wrote it, where that differs; expected.safetensors with `ids` [rows, tokens], the
log-probability of every id but the first, and grad/<parameter>: the gradient of the mean of their negatives, by the
parameter's name in the file. No model has a pad_token_id, whose row of the embedding transformers would not train.
"""

import json
import os
import shutil
import sys

import torch
import transformers as T
from safetensors.torch import save_file

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "folders")
BASE = dict(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=48)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
GEMMA3 = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
          "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.25], "long_factor": [2.0, 3.5]}

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 12}
LATENT = {**BASE, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 14, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
          "v_head_dim": 5, "moe_intermediate_size": 12, "rms_norm_eps": 1e-5}

FAMILIES = {
    "llama3": lambda: T.LlamaForCausalLM(T.LlamaConfig(**BASE, rope_parameters=dict(LLAMA3))),
    "llama_tied": lambda: T.LlamaForCausalLM(
        T.LlamaConfig(**BASE, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**BASE, sliding_window=7, head_dim=8)),
    "qwen2": lambda: T.Qwen2ForCausalLM(
        T.Qwen2Config(**BASE, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen3": lambda: T.Qwen3ForCausalLM(T.Qwen3Config(**BASE, head_dim=8)),
    "gemma2": lambda: T.Gemma2ForCausalLM(
        T.Gemma2Config(**BASE, pad_token_id=None, head_dim=8, sliding_window=5, query_pre_attn_scalar=12, attn_logit_softcapping=5.0,
                       final_logit_softcapping=3.0)),
    "gemma3_text": lambda: T.Gemma3ForCausalLM(
        T.Gemma3TextConfig(**{**BASE, "num_hidden_layers": 3}, pad_token_id=None, head_dim=8, sliding_window=5, rope_parameters=GEMMA3,
                           layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "phi3": lambda: T.Phi3ForCausalLM(
        T.Phi3Config(**BASE, pad_token_id=None, bos_token_id=1, eos_token_id=2, original_max_position_embeddings=16,
                     rope_parameters=dict(LONG))),
    "mixtral": lambda: T.MixtralForCausalLM(
        T.MixtralConfig(**BASE, head_dim=8, sliding_window=7, num_local_experts=5, num_experts_per_tok=2, experts_implementation="eager")),
    "qwen2_moe": lambda: T.Qwen2MoeForCausalLM(
        T.Qwen2MoeConfig(**BASE, use_sliding_window=False, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12,
                         shared_expert_intermediate_size=20, norm_topk_prob=False, experts_implementation="eager")),
    "qwen3_moe": lambda: T.Qwen3MoeForCausalLM(
        T.Qwen3MoeConfig(**{**BASE, "num_hidden_layers": 3}, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
                         norm_topk_prob=True, mlp_only_layers=[1], experts_implementation="eager")),
    # Published folders say 1 for num_nextn_predict_layers, as does transformers where it is left out.
    "deepseek_v3": lambda: T.DeepseekV3ForCausalLM(
        T.DeepseekV3Config(**{**LATENT, "num_hidden_layers": 3}, q_lora_rank=10, n_routed_experts=8, n_group=4, topk_group=2,
                           num_experts_per_tok=3, n_shared_experts=2, first_k_dense_replace=1, rope_parameters=dict(YARN),
                           experts_implementation="eager")),
    "deepseek_v3_plain": lambda: T.DeepseekV3ForCausalLM(
        T.DeepseekV3Config(**LATENT, q_lora_rank=None, n_routed_experts=6, n_group=1, topk_group=1, num_experts_per_tok=2,
                           n_shared_experts=1, first_k_dense_replace=0, norm_topk_prob=False, rope_interleave=False, attention_bias=True,
                           tie_word_embeddings=True, num_mtp_layers=0, experts_implementation="eager")),
    "gpt2": lambda: T.GPT2LMHeadModel(
        T.GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=4, n_positions=48, n_inner=40, bos_token_id=0,
                     eos_token_id=0)),
}


def as_v4(config):
    """The keys as transformers 4 had them; nothing where they are the same."""
    old = dict(config)
    if "dtype" in old:
        old["torch_dtype"] = old.pop("dtype")
    rope = old.pop("rope_parameters", None)
    if rope is None:
        return None
    if "full_attention" in rope:
        old["rope_theta"] = rope["full_attention"]["rope_theta"]
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        old["rope_scaling"] = {"rope_type": "linear", "factor": rope["full_attention"]["factor"]}
        return old
    old["rope_theta"] = rope.pop("rope_theta")
    rope.pop("partial_rotary_factor", None)
    kind = rope.pop("rope_type")
    old["rope_scaling"] = None if kind == "default" else {"type" if kind == "longrope" else "rope_type": kind, **rope}
    if old["rope_scaling"] and old.get("original_max_position_embeddings"):
        old["rope_scaling"].pop("original_max_position_embeddings", None)
    return old


def in_files(key, tensor):
    """A parameter as the tensors that the engine has of it: transformers keeps gate and up of all experts in one."""
    if key.endswith(".experts.gate_up_proj"):
        gate, up = tensor.chunk(2, 1)
        return [(key.replace("gate_up_proj", "gate_proj.weight"), gate), (key.replace("gate_up_proj", "up_proj.weight"), up)]
    return [(key + ".weight" if key.endswith(".experts.down_proj") else key, tensor)]


def make(name):
    torch.manual_seed(sum(map(ord, name)))
    model = FAMILIES[name]().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.mul_(5.0)
            parameter.copy_(parameter.float())
        for name_, buffer in model.named_buffers():
            if name_.endswith("e_score_correction_bias"):
                buffer.copy_((torch.randn_like(buffer) * 0.1).float())
    ids = torch.randint(0, 61, (2, 24), generator=torch.Generator().manual_seed(1))
    logprobs = torch.log_softmax(model(ids).logits, -1)
    picked = logprobs[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    (-picked.mean()).backward()

    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.float().save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    with open(os.path.join(folder, "config.json")) as file:
        old = as_v4(json.load(file))
    if old is not None:
        with open(os.path.join(folder, "config_v4.json"), "w") as file:
            json.dump(old, file, indent=2)
    tensors = {"ids": ids.int(), "logprobs": picked.detach().float()}
    for key, parameter in model.named_parameters():
        for named, gradient in in_files(key, parameter.grad.float()):
            tensors["grad/" + named] = gradient.contiguous()
    save_file(tensors, os.path.join(folder, "expected.safetensors"))
    print(name, sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    for family in sys.argv[1:] or FAMILIES:
        make(family)
