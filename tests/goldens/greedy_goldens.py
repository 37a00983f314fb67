"""Greedy generation of transformers for the model folders of tests/goldens/folders: greedy.json beside them.

Run as: python3 tests/goldens/greedy_goldens.py (transformers 5.23, torch 2.15). A line for each prompt: the folder, the
ids of the prompt, those that follow, and the smallest distance of the two best logits on the way.
"""

import json
import pathlib

import torch
import transformers

FOLDERS = pathlib.Path(__file__).parent / "folders"
PROMPTS = ([5], [3, 7, 1, 9, 2, 4], [i * 7 % 50 for i in range(30)])
LONGEST = 48


def generated(model, prompt):
    room = min(LONGEST, model.config.max_position_embeddings)
    made = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=room - len(prompt),
        do_sample=False,
        eos_token_id=-1,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    ids = made.sequences[0].tolist()[len(prompt) :]
    best = torch.stack([torch.topk(step[0].float(), 2).values for step in made.logits])
    return {"prompt": prompt, "ids": ids, "closest": float((best[:, 0] - best[:, 1]).min())}


def main():
    transformers.logging.set_verbosity_error()
    rows = []
    for folder in sorted(path for path in FOLDERS.iterdir() if (path / "model.safetensors").exists()):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        for prompt in PROMPTS:
            rows.append({"folder": folder.name, **generated(model, prompt)})
            print(folder.name, len(prompt), len(rows[-1]["ids"]), rows[-1]["closest"])
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    (FOLDERS / "greedy.json").write_text(text)


if __name__ == "__main__":
    main()
