"""Goldens of model folders whose models do not write text: tiny random models, as transformers saves them, with what
transformers computes in f64. Needs torch and transformers 5.23.

Each is a folder folders/<name>/: config.json and model.safetensors as `save_pretrained` writes them; config_v4.json, the
same as transformers 4 wrote it; expected.safetensors with input/<name>: what goes in, `loss` [1], `logits`, and
grad/<tensor>: the gradient of the loss by every trained parameter, by its name in the file.
"""

import json
import os
import shutil
import sys
import tempfile

import torch
import transformers as T
from safetensors.torch import load_file, save_file

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "folders")
# No token is padding: its row of the embedding would get no gradient.
BERT = dict(vocab_size=37, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, max_position_embeddings=21, pad_token_id=None,
            attn_implementation="eager")


def draw(seed):
    return torch.Generator().manual_seed(seed)


def ids(seed, *shape, below=37):
    return torch.randint(0, below, shape, generator=draw(seed))


def bert_words():
    model = T.BertForMaskedLM(T.BertConfig(**BERT, hidden_act="gelu_new"))
    targets = ids(2, 4, 17)
    targets[torch.rand(4, 17, generator=draw(3)) < 0.6] = -100
    return model, {"tokens": ids(1, 4, 17), "targets": targets}, lambda i: model(input_ids=i["tokens"], labels=i["targets"])


def bert_classes():
    model = T.BertForSequenceClassification(T.BertConfig(**BERT, num_labels=5, type_vocab_size=3))
    inputs = {"tokens": ids(1, 4, 13), "token_types": ids(4, 4, 13, below=3), "lengths": torch.tensor([13, 4, 1, 9]), "targets": ids(5, 4, below=5)}
    there = lambda i: (torch.arange(13)[None, :] < i["lengths"][:, None]).long()
    return model, inputs, lambda i: model(input_ids=i["tokens"], token_type_ids=i["token_types"], attention_mask=there(i), labels=i["targets"])


def bert_number():
    model = T.BertForSequenceClassification(T.BertConfig(**BERT, num_labels=1))
    inputs = {"tokens": ids(11, 4, 13), "lengths": torch.tensor([2, 13, 7, 1]), "targets": torch.randn(4, generator=draw(12))}
    there = lambda i: (torch.arange(13)[None, :] < i["lengths"][:, None]).long()
    return model, inputs, lambda i: model(input_ids=i["tokens"], attention_mask=there(i), labels=i["targets"])


PAD = 36


def ends_of_rows(seed, lengths, seq):
    """Texts at the ends of their rows, the padding before them a document of its own: what decoders with a head for whole
    texts read. No text has the id of padding."""
    documents = (torch.arange(seq)[None, :] >= seq - torch.tensor(lengths)[:, None]).long()
    return {"tokens": ids(seed, len(lengths), seq, below=PAD) * documents, "documents": documents}


def classified(model):
    """Runs a decoder as transformers pads: behind the texts. The position that it reads follows from the id of padding."""

    def run(i):
        tokens = torch.full_like(i["tokens"], PAD)
        for row, (these, there) in enumerate(zip(i["tokens"], i["documents"])):
            tokens[row, : there.sum()] = these[there.bool()]
        return model(input_ids=tokens, attention_mask=(tokens != PAD).long(), labels=i["targets"])

    return run


def llama_classes():
    model = T.LlamaForSequenceClassification(
        T.LlamaConfig(vocab_size=37, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_labels=3,
                      max_position_embeddings=64, pad_token_id=PAD, attn_implementation="eager"))
    return model, ends_of_rows(13, [13, 4, 1, 9], 13) | {"targets": torch.tensor([2, 0, 1, 2])}, classified(model)


def gpt2_number():
    model = T.GPT2ForSequenceClassification(
        T.GPT2Config(vocab_size=37, n_positions=21, n_embd=24, n_layer=2, n_head=4, num_labels=1, pad_token_id=PAD, attn_implementation="eager"))
    return model, ends_of_rows(14, [3, 13, 8, 1], 13) | {"targets": torch.randn(4, generator=draw(15))}, classified(model)


def vit():
    model = T.ViTForImageClassification(
        T.ViTConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, image_size=15, patch_size=5, num_channels=3,
                    num_labels=7, qkv_bias=False, attn_implementation="eager"))
    inputs = {"images": torch.randn(4, 3, 15, 15, generator=draw(6)), "targets": ids(7, 4, below=7)}
    return model, inputs, lambda i: model(pixel_values=i["images"], labels=i["targets"])


def whisper():
    model = T.WhisperForConditionalGeneration(
        T.WhisperConfig(vocab_size=37, d_model=24, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=2, encoder_ffn_dim=40,
                        decoder_ffn_dim=36, num_mel_bins=7, max_source_positions=11, max_target_positions=14, pad_token_id=None, bos_token_id=1,
                        eos_token_id=2, decoder_start_token_id=3, attn_implementation="eager"))
    targets = ids(9, 4, 9)
    targets[1, 6:] = -100
    inputs = {"features": torch.randn(4, 7, 22, generator=draw(8)), "tokens": ids(10, 4, 9), "targets": targets}
    return model, inputs, lambda i: model(input_features=i["features"], decoder_input_ids=i["tokens"], labels=i["targets"])


FAMILIES = {"bert_words": bert_words, "bert_classes": bert_classes, "bert_number": bert_number, "llama_classes": llama_classes,
            "gpt2_number": gpt2_number, "vit": vit, "whisper": whisper}


def as_v4(config):
    old = dict(config)
    old["torch_dtype"] = old.pop("dtype")
    if old["model_type"] == "bert":
        for key in ["add_cross_attention", "is_decoder", "bos_token_id", "eos_token_id", "tie_word_embeddings"]:
            del old[key]
        old["position_embedding_type"] = "absolute"
    if old["model_type"] == "llama":
        old["rope_theta"] = old.pop("rope_parameters")["rope_theta"]
        old["rope_scaling"] = None
    if old["model_type"] == "whisper":
        del old["tie_word_embeddings"]
        old["num_hidden_layers"] = old["encoder_layers"]
        old["forced_decoder_ids"] = [[1, 5], [2, 6]]
    if old["model_type"] == "vit":
        for key in ["pooler_act", "pooler_output_size"]:
            del old[key]
    return old


def names_in_file(model):
    """Every tensor of the model by its name in a file."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(os.path.join(folder, "model.safetensors"))


def make(name):
    torch.manual_seed(sum(map(ord, name)))
    model, inputs, run = FAMILIES[name]()
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.mul_(5.0)
            parameter.copy_(parameter.float())
    out = run({key: value.double() if value.is_floating_point() else value for key, value in inputs.items()})
    out.loss.backward()

    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    frozen = {key for key, parameter in model.named_parameters() if not parameter.requires_grad}
    gradients = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
    model.float().save_pretrained(folder)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    with open(os.path.join(folder, "config.json")) as file:
        old = as_v4(json.load(file))
    with open(os.path.join(folder, "config_v4.json"), "w") as file:
        json.dump(old, file, indent=2)

    tensors = {"input/" + key: value.int() if not value.is_floating_point() else value for key, value in inputs.items()}
    tensors["loss"] = out.loss.detach().float().reshape(1)
    logits = out.logits.squeeze(-1) if name.endswith("number") else out.logits
    tensors["logits"] = logits.detach().float().contiguous()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(gradients.get(key, torch.zeros_like(parameter)).float())
    for key, value in names_in_file(model).items():
        if key not in frozen:
            if name.startswith("gpt2"):  # as the graph has them: without a prefix, and linears [out, in]
                key = key.removeprefix("transformer.")
                value = value.t() if key.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else value
            tensors["grad/" + key] = value.contiguous()
    save_file(tensors, os.path.join(folder, "expected.safetensors"))
    print(name, sum(p.numel() for p in model.parameters()), out.loss.item())


if __name__ == "__main__":
    for family in sys.argv[1:] or FAMILIES:
        make(family)
