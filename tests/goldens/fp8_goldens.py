"""A model folder as DeepSeek V3 is published: matrices in FP8 (e4m3) with a scale for each block of 128 × 128, routers, norms,
embedding and head in bf16, the bias of routers in f32, and behind the last layer one that predicts a further token. Needs
torch and transformers 5.23.

folders/deepseek_v3_fp8/: config.json, model.safetensors, and expected.safetensors with `ids` and the log-probabilities that
transformers computes in f64 with the weights that the file means. Matrices of experts have more than one block.
"""

import json
import os
import shutil

import torch
import transformers as T
from safetensors.torch import load_file, save_file

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "folders")
FOLDER = os.path.join(HERE, "deepseek_v3_fp8")
BLOCK = 128
CONFIG = dict(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
              max_position_embeddings=48, q_lora_rank=10, kv_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5,
              moe_intermediate_size=136, n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2, n_shared_experts=1,
              first_k_dense_replace=1, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, experts_implementation="eager")
QUANTIZATION = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
PLAIN = ("embed_tokens", "lm_head", "norm", "mlp.gate.weight", "e_score_correction_bias")


def quantized(weight):
    """Codes, scales, and what they mean."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK))
    codes, meant = torch.empty(rows, columns, dtype=torch.float8_e4m3fn), torch.empty(rows, columns)
    for r in range(scales.shape[0]):
        for c in range(scales.shape[1]):
            block = (slice(r * BLOCK, (r + 1) * BLOCK), slice(c * BLOCK, (c + 1) * BLOCK))
            scales[r, c] = weight[block].abs().max() / 448
            codes[block] = (weight[block] / scales[r, c]).to(torch.float8_e4m3fn)
            meant[block] = codes[block].float() * scales[r, c]
    return codes, scales, meant


def main():
    torch.manual_seed(8)
    model = T.DeepseekV3ForCausalLM(T.DeepseekV3Config(**CONFIG)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.1)
    shutil.rmtree(FOLDER, ignore_errors=True)
    model.save_pretrained(FOLDER)
    os.remove(os.path.join(FOLDER, "generation_config.json"))
    weights = os.path.join(FOLDER, "model.safetensors")
    tensors, meant = {}, {}
    for name, tensor in load_file(weights).items():
        if any(part in name for part in PLAIN):
            tensors[name] = tensor if name.endswith("bias") else tensor.bfloat16()
            meant[name] = tensors[name].float()
        else:
            tensors[name], tensors[name + "_scale_inv"], meant[name] = quantized(tensor)
    save_file(meant, weights, {"format": "pt"})
    ids = torch.randint(0, 61, (2, 24), generator=torch.Generator().manual_seed(1))
    exact = T.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        picked = torch.log_softmax(exact.eval()(ids).logits, -1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    save_file({"ids": ids.int(), "logprobs": picked.float()}, os.path.join(FOLDER, "expected.safetensors"))
    # The layer that predicts a further token: as the last one, with a projection and norms of its own.
    further = CONFIG["num_hidden_layers"]
    for name in [name for name in tensors if name.startswith(f"model.layers.{further - 1}.")]:
        tensors[name.replace(f"layers.{further - 1}.", f"layers.{further}.")] = tensors[name].clone()
    tensors[f"model.layers.{further}.eh_proj.weight"] = torch.zeros(24, 48).bfloat16()
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"model.layers.{further}.{norm}.weight"] = torch.ones(24).bfloat16()
    save_file(tensors, weights, {"format": "pt"})
    path = os.path.join(FOLDER, "config.json")
    with open(path) as file:
        config = json.load(file)
    with open(path, "w") as file:
        json.dump({**config, "dtype": "bfloat16", "quantization_config": QUANTIZATION}, file, indent=2)
    print(len(tensors), "tensors", os.path.getsize(weights), "bytes")


if __name__ == "__main__":
    T.logging.set_verbosity_error()
    main()
