"""Goldens of training on labelled rows: 20 steps of AdamW in f64 of the models in folders/ whose heads are for whole texts, as
transformers and PyTorch take them. Needs torch and transformers 5.23.

labelled/tokenizer.json has a token for each letter, and # with the id of padding. labelled/<name>/ has rows.jsonl;
expected.json: loss and gradient norm of each step, and loss and share of right answers on the rows afterwards; and
weights.safetensors, the weights afterwards, by their names in the file.
"""

import json
import os
import shutil
import string
import tempfile

import torch
import transformers as T
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "labelled")
PAD, STEPS, BATCH = 36, 20, 4
VOCAB = {letter: id for id, letter in enumerate(string.ascii_lowercase)} | {"#": PAD}
# Of one to thirteen tokens. The id of padding at the end of a text is passed over by decoders.
TEXTS = ["abcdefghijklm", "za", "q", "hello#", "wxyzwxyz", "mno##", "kk", "thequickfox"]
CLASSES = [2, 0, 1, 2, 0, 1, 1, 0]
NUMBERS = [0.5, -1.25, 2.0, 0.0, 1.0, -0.5, 0.75, -2.0]


def encode(name, texts):
    ids = [[VOCAB[letter] for letter in text] for text in texts]
    length = max(map(len, ids))
    pad = 0 if name.startswith("bert") else PAD
    tokens = torch.tensor([row + [pad] * (length - len(row)) for row in ids])
    return {"input_ids": tokens, "attention_mask": torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in ids])}


def make(name):
    model = T.AutoModelForSequenceClassification.from_pretrained(os.path.join(HERE, "folders", name), attn_implementation="eager").double().eval()
    numbers = name.endswith("number")
    labels = NUMBERS if numbers else CLASSES
    dtype = torch.float64 if numbers else torch.long
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-3, weight_decay=0.0)
    expected = {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        rows = [(step * BATCH + i) % len(TEXTS) for i in range(BATCH)]
        out = model(**encode(name, [TEXTS[i] for i in rows]), labels=torch.tensor([labels[i] for i in rows], dtype=dtype))
        optimizer.zero_grad()
        out.loss.backward()
        norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters() if p.grad is not None))
        expected["loss"].append(out.loss.item())
        expected["grad_norm"].append(norm.item())
        optimizer.step()
    with torch.no_grad():
        out = model(**encode(name, TEXTS), labels=torch.tensor(labels, dtype=dtype))
    expected["val_loss"] = out.loss.item()
    if not numbers:
        expected["val_accuracy"] = (out.logits.argmax(-1) == torch.tensor(labels)).double().mean().item()

    folder = os.path.join(OUT, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with open(os.path.join(folder, "rows.jsonl"), "w") as file:
        for i, (text, label) in enumerate(zip(TEXTS, labels)):
            # Classes by number and by name.
            file.write(json.dumps({"text": text, "label": label if numbers or i % 2 else f"LABEL_{label}"}) + "\n")
    with open(os.path.join(folder, "expected.json"), "w") as file:
        json.dump(expected, file, indent=1)
    with tempfile.TemporaryDirectory() as saved:
        model.float().save_pretrained(saved)
        save_file(load_file(os.path.join(saved, "model.safetensors")), os.path.join(folder, "weights.safetensors"))
    print(name, expected["loss"][0], expected["loss"][-1], expected["val_loss"], expected.get("val_accuracy"))


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    with open(os.path.join(OUT, "tokenizer.json"), "w") as file:
        json.dump({"model": {"type": "BPE", "vocab": VOCAB, "merges": []}, "pre_tokenizer": None, "added_tokens": []}, file)
    for name in ["bert_classes", "llama_classes", "gpt2_number"]:
        make(name)
