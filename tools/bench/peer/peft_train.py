"""Fine-tuning steps of transformers and peft on a model folder, for finetune_bench.sh: AdamW (fused), clipping to norm 1,
fresh random batches, sdpa attention; LoRA of rank 16 on all linears.

One call measures one cell in the ways named by --variants and prints a JSON object for each. A way is `eager` or `compile`,
and in bf16 also how bf16 is used, joined by `+`:

  full   autocast   f32 weights under autocast
         masters    bf16 weights in the model, f32 masters in the optimizer
  lora   mixed      bf16 base, adapter in f32, under autocast: peft's default
         pure       base and adapter in bf16

  python peft_train.py FOLDER --method lora --precision bf16 --variants eager+mixed,compile+pure [--steps 3]
"""

import argparse
import contextlib
import json
import resource
import time

import peft
import torch
import torch._inductor.config as inductor
import transformers

RANK = 16


class Step:
    """One training step of a model folder."""

    def __init__(self, folder, method, precision, compiled, way):
        torch.manual_seed(1)
        narrow = precision == "bf16" and way != "autocast"
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16 if narrow else torch.float32, attn_implementation="sdpa")
        if method == "lora":
            adapter = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
            model = peft.get_peft_model(model, adapter, autocast_adapter_dtype=way != "pure")
        self.model = model.train()
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.masters = [p.detach().float().clone() for p in self.trained] if way == "masters" else None
        for master in self.masters or []:
            master.requires_grad_()
        self.optimizer = torch.optim.AdamW(self.masters or self.trained, lr=1e-5, weight_decay=0.01, fused=True)
        self.autocast = precision == "bf16" and way in ("autocast", "mixed")
        self.forward = torch.compile(self.model) if compiled else self.model

    def run(self, tokens):
        with torch.autocast("cpu", dtype=torch.bfloat16) if self.autocast else contextlib.nullcontext():
            loss = self.forward(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        if self.masters:
            for master, p in zip(self.masters, self.trained):
                master.grad = p.grad.float()
        torch.nn.utils.clip_grad_norm_(self.masters or self.trained, 1.0, foreach=True)
        self.optimizer.step()
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(self.trained, self.masters)
        self.optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)
        return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--method", choices=["full", "lora"], required=True)
    parser.add_argument("--precision", choices=["f32", "bf16"], required=True)
    parser.add_argument("--variants", default="eager,compile")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--warm", type=int, default=1, help="steps that are not timed")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--simd-bits", type=int, help="width of the vectors that torch.compile uses")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.simd_bits:
        inductor.cpp.simdlen = args.simd_bits
    for variant in args.variants.split(","):
        kind, _, way = variant.partition("+")
        step = Step(args.folder, args.method, args.precision, kind == "compile", way)
        generator = torch.Generator().manual_seed(2)
        vocab = step.model.config.vocab_size
        batch = lambda: torch.randint(0, vocab, (args.batch, args.seq), generator=generator)
        for _ in range(args.warm):
            step.run(batch())
        times, begin = [], time.process_time()
        for _ in range(args.steps):
            tokens, start = batch(), time.perf_counter()
            step.run(tokens)
            times.append(time.perf_counter() - start)
        cpu = (time.process_time() - begin) / args.steps
        print(json.dumps({"variant": variant, "step_s": min(times), "cpu_s": cpu, "trained": sum(p.numel() for p in step.trained),
                          "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "torch": torch.__version__,
                          "peft": peft.__version__}), flush=True)
        del step


if __name__ == "__main__":
    main()
