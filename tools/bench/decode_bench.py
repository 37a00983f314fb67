"""Tokens per second of greedy decoding, beside transformers and beside the floor that memory sets.

    python3 tools/bench/decode_bench.py [--trainer build/trainer] [--shape qwen2.5-0.5b] [--tokens 64]

A folder of random weights with a published model's shape is made once, in bf16. For f32 and bf16 each of the two
generates from a prompt of four ids, one token and then 1 + N; the difference is N tokens, without start-up and prompt.
The floor is bytes of all weights that a token reads over the bandwidth of a sum over 1 GiB with the same threads.
Needs torch 2.15 and transformers 5.23.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import torch
import transformers

SHAPES = {
    "qwen2.5-0.5b": transformers.Qwen2Config(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True),
    "smollm2-135m": transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True),
}
PROMPT = [5, 6, 7, 8]
REPEATS = 3


def bandwidth():
    """Bytes a second of reading, best of several."""
    x = torch.ones(2**28)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        x.sum()
        times.append(time.perf_counter() - begin)
    return x.numel() * 4 / min(times)


def trainer_seconds(command, folder, dtype, tokens):
    ids = " ".join(map(str, PROMPT))
    arguments = [command, "sample", folder, "--prompt", ids, "--temperature", "0", "--json", "data.format=tokens",
                 f"precision.compute={dtype}"]

    def once(count):
        begin = time.perf_counter()
        done = subprocess.run([*arguments, "--tokens", str(count)], check=True, capture_output=True, text=True)
        return time.perf_counter() - begin, json.loads(done.stdout)["ids"]

    short = min(once(1)[0] for _ in range(REPEATS))
    runs = [once(1 + tokens) for _ in range(REPEATS)]
    return min(seconds for seconds, _ in runs) - short, runs[0][1]


def transformers_seconds(folder, dtype, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, {"f32": "float32", "bf16": "bfloat16"}[dtype])).eval()

    def once(count):
        begin = time.perf_counter()
        ids = model.generate(torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT)), max_new_tokens=count,
                             do_sample=False, eos_token_id=-1, pad_token_id=0)
        return time.perf_counter() - begin, ids[0].tolist()

    once(2)
    short = min(once(1)[0] for _ in range(REPEATS))
    runs = [once(1 + tokens) for _ in range(REPEATS)]
    return min(seconds for seconds, _ in runs) - short, runs[0][1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainer", default="build/trainer")
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=SHAPES)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(SHAPES[arguments.shape]).to(torch.bfloat16)
        weights = sum(parameter.numel() for parameter in model.parameters())
        model.save_pretrained(folder)
        del model
        read = bandwidth()
        print(f"{arguments.shape}: {weights:,} weights, memory {read / 1e9:.1f} GB/s, {torch.get_num_threads()} threads")
        print("| dtype | trainer, tokens/s | transformers | ratio | floor | share of the floor | ids |")
        print("|---|---:|---:|---:|---:|---:|---|")
        for dtype, size in (("f32", 4), ("bf16", 2)):
            ours, our_ids = trainer_seconds(arguments.trainer, folder, dtype, arguments.tokens)
            theirs, their_ids = transformers_seconds(folder, dtype, arguments.tokens)
            floor = read / (weights * size)
            mine, peer = arguments.tokens / ours, arguments.tokens / theirs
            same = "equal" if our_ids == their_ids else "differ"
            print(f"| {dtype} | {mine:.1f} | {peer:.1f} | {mine / peer:.2f} | {floor:.1f} | {mine / floor:.2f} | {same} |")


if __name__ == "__main__":
    main()
