"""Checks the losses of a cell of gpu_bench.sh: where they begin, that they fall, and that the run that issues its steps kernel by kernel
(NAME.works.jsonl) has the very losses of the captured one (NAME.log.jsonl).

  python numbers.py DIR NAME
"""

import json
import math
import os
import sys

# Vocabulary, width, and how near the first loss must be. On random tokens with weights of N(0, 0.02) it is ln of the vocabulary and half the
# variance of the logits, 0.02² · dim, since the last norm's output has the length √dim: 10.979 for 124M, where the CPU's kernels give 10.985.
# That takes logits for independent; in wide models it is 0.1 off (two layers of each on the CPU), so theirs only tells noise from numbers.
CELLS = {"gpt2-124m": (50304, 768, 0.05), "gpt2-1558m": (50304, 1600, 0.25), "llama-1b": (128256, 2048, 0.25)}


def losses(path):
    with open(path) as file:
        return [record["loss"] for record in map(json.loads, file) if "loss" in record]


def main():
    folder, name = sys.argv[1], sys.argv[2]
    captured = losses(os.path.join(folder, name + ".log.jsonl"))
    issued = losses(os.path.join(folder, name + ".works.jsonl"))
    vocab, dim, near = CELLS[name]
    expected = math.log(vocab) + 0.02**2 * dim / 2
    wrong = []
    if not captured or not all(isinstance(loss, float) and math.isfinite(loss) for loss in captured + issued):
        wrong.append("a loss is missing or not finite")
    else:
        if abs(captured[0] - expected) > near:
            wrong.append(f"the first loss is {captured[0]}, and {expected:.3f} ± {near} is expected")
        if captured[-1] >= captured[0]:
            wrong.append(f"the loss does not fall: {captured[0]} before, {captured[-1]} after {len(captured)} steps")
        if issued != captured[: len(issued)] or not issued:
            wrong.append(f"issued steps have the losses {issued}, captured ones {captured[:len(issued)]}")
    for line in wrong:
        print(f"{name}: {line}", file=sys.stderr)
    if not wrong:
        print(f"{name}: loss {captured[0]} (expected {expected:.3f}), {captured[-1]} after {len(captured)} steps; issued = captured", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
