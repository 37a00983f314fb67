"""Goldens of direct preference optimization by TRL's DPOTrainer: dpo/model, a tiny Llama with a tokenizer and a chat template; dpo/pairs.jsonl
and dpo/chats.jsonl, rows of text and of messages, these with a prompt and without; dpo/lora, an adapter as peft starts it; and dpo/expected.json with

  pairs, chats   ids and masks of every row: {"chosen": ids, "rejected": ids, "prompt": number of ids before what is trained}
  full, lora     of 20 steps, in f32: loss, rewards/chosen, rewards/rejected and rewards/accuracies of every step

  python tests/goldens/dpo_goldens.py      (torch, transformers 5.23, peft 0.21, trl 1.16)
"""

import json
import os
import random
import shutil

import peft
import tokenizers
import torch
import transformers
import trl
from datasets import Dataset

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "dpo")
STEPS, BATCH = 20, 4
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
NOUNS = "river stone garden window letter market bridge candle forest island".split()
VERBS = "finds paints follows watches carries repairs forgets measures".split()
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def sentence(rng):
    return f"the {rng.choice(NOUNS)} {rng.choice(VERBS)} a {rng.choice(NOUNS)}"


def rows(rng, count):
    for i in range(count):
        prompt, noun = sentence(rng), rng.choice(NOUNS)
        chosen, rejected = f"it is the {noun}", " ".join(rng.choice(VERBS) for _ in range(rng.randint(1, 4)))
        if i % 8 == 5:  # an answer that changes the last token of its prompt
            yield {"prompt": prompt + " wi", "chosen": "ndow here", "rejected": " " + rejected}
        elif i % 8 == 6:
            yield {"prompt": prompt + "?", "chosen": " " + chosen, "rejected": ""}
        else:
            yield {"prompt": prompt + ("? " if i % 2 else "?\n"), "chosen": chosen, "rejected": rejected}


def chats(rng, count, with_prompt):
    for i in range(count):
        say = lambda role: {"role": role, "content": sentence(rng)}
        prompt = ([say("system")] if i % 3 == 0 else []) + [say("user")]
        if i % 4 == 1:
            prompt += [say("assistant"), say("user")]
        chosen, rejected = [say("assistant")], [say("assistant")]
        if i % 4 == 3:
            chosen += [say("user"), say("assistant")]
        if not with_prompt:
            yield {"chosen": prompt + chosen, "rejected": prompt + rejected}
        else:
            yield {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def write(name, lines):
    path = os.path.join(OUT, name)
    with open(path, "w") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")
    return path


def make_tokenizer(texts):
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(vocab_size=320, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False))
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=MARKS[0], pad_token=MARKS[0])
    made.chat_template = TEMPLATE
    return made


class InOrder(trl.DPOTrainer):
    """Rows in their order, and losses that are not rounded."""

    def __init__(self, *args, **kwargs):
        self.losses = []
        super().__init__(*args, **kwargs)

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.losses.append(loss.item())
        return loss


def trainer_of(dataset, tokenizer, **options):
    config = trl.DPOConfig(
        output_dir="/tmp/dpo_goldens", per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=5e-4, lr_scheduler_type="constant",
        adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-6, weight_decay=0.0, max_grad_norm=1.0, beta=0.3, max_length=None, logging_steps=1,
        report_to=[], use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False, save_strategy="no", disable_tqdm=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(OUT, "model"), dtype=torch.float32, attn_implementation="eager")
    return InOrder(model=model, args=config, train_dataset=dataset, processing_class=tokenizer, **options)


def tokens_of(trainer):
    return [{"chosen": row["prompt_ids"] + row["chosen_ids"], "rejected": row["prompt_ids"] + row["rejected_ids"], "prompt": len(row["prompt_ids"])}
            for row in trainer.train_dataset]


def run(trainer):
    trainer.train()
    log = [line for line in trainer.state.log_history if "rewards/chosen" in line]
    assert len(log) == STEPS == len(trainer.losses)
    return {"loss": trainer.losses} | {key: [line[key] for line in log] for key in ["rewards/chosen", "rewards/rejected", "rewards/accuracies"]}


def main():
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    rng = random.Random(7)
    pairs = list(rows(rng, STEPS * BATCH))
    write("pairs.jsonl", pairs)
    kinds = [list(chats(rng, 8, with_prompt)) for with_prompt in (True, False)]
    write("chats.jsonl", kinds[0] + kinds[1])
    tokenizer = make_tokenizer([sentence(rng) + " it is the answer user assistant system\n" for _ in range(200)])
    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.2, bos_token_id=None, eos_token_id=0, pad_token_id=None)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(os.path.join(OUT, "model"))
    tokenizer.save_pretrained(os.path.join(OUT, "model"))
    expected = {"versions": {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}}
    expected["chats"] = [row for kind in kinds for row in tokens_of(trainer_of(Dataset.from_list(kind), tokenizer))]
    pairs = Dataset.from_list(pairs)
    full = trainer_of(pairs, tokenizer)
    expected["pairs"] = tokens_of(full)
    expected["full"] = run(full)
    lora = trainer_of(pairs, tokenizer, peft_config=peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
    lora.model.peft_config["default"].base_model_name_or_path = "model"
    lora.model.save_pretrained(os.path.join(OUT, "lora"))
    os.remove(os.path.join(OUT, "lora", "README.md"))
    expected["lora"] = run(lora)
    with open(os.path.join(OUT, "expected.json"), "w") as file:
        json.dump(expected, file)
    for name in ["full", "lora"]:
        print(name, [round(x, 4) for x in expected[name]["loss"]], expected[name]["rewards/chosen"][-1], expected[name]["rewards/rejected"][-1])


if __name__ == "__main__":
    main()
