"""Our fine-tuning steps beside those of transformers and peft, cell by cell: a model folder with a published config and random
weights, full training and LoRA (rank 16, all linears), f32 and bf16, and f32 with AVX2 alone. In every round first `trainer
run`, then the peer: in the first round every way of it (peer/peft_train.py) in eager mode, then the fastest compiled; later ones
repeat the faster of the two. The fastest step of all rounds counts on both sides; ratios are ours over theirs.

Two ratios stand side by side: of tokens a second, and of tokens a second of processor time (the whole process, all threads,
per step, without start-up), which says more where other work runs on the same cores. `lora/full` is our LoRA over our full
training. `resident` is the most memory that our process had of its own (VmHWM less mapped files) over the plan's peak.

Then packing: chats of mixed lengths, rows of their own against packed rows, in tokens of chats a second (ours alone).

Writes one JSON object a cell to stdout and a table to stderr. Needs torch, transformers and peft.
"""

import argparse
import array
import json
import os
import random
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PUBLISHED = os.path.join(ROOT, "tests", "job", "published")
SHAPES = {"smollm2-135m": 2, "qwen2.5-0.5b": 1}  # samples a step
LORA = "{kind: lora, rank: 16, alpha: 32, dropout: 0}"
WAYS = {("full", "f32"): [""], ("lora", "f32"): [""], ("full", "bf16"): ["+autocast", "+masters"],
        ("lora", "bf16"): ["+mixed", "+pure"]}
ISA = {"avx2": {"TRAINER_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
                "MKL_ENABLE_INSTRUCTIONS": "AVX2"}, "best": {}}
say = lambda text: print(text, file=sys.stderr, flush=True)


def make_folder(shape, folder):
    """A folder that from_pretrained opens, with random weights in bf16."""
    code = ("import sys, torch, transformers as T; torch.manual_seed(0); T.utils.logging.disable_progress_bar();"
            "T.AutoModelForCausalLM.from_config(T.AutoConfig.from_pretrained(sys.argv[1]), dtype=torch.bfloat16)"
            ".save_pretrained(sys.argv[2])")
    subprocess.run([sys.executable, "-c", code, os.path.join(PUBLISHED, shape), folder], check=True)


def make_tokens(path, vocab, count):
    rng = random.Random(1)
    with open(path, "wb") as f:
        array.array("I", (rng.randrange(vocab) for _ in range(count))).tofile(f)


def make_chats(path, rows):
    """Chats as long as people's: the logarithm of the length is normal, the median 60 words, one in ten over 200."""
    rng = random.Random(1)
    words = ["the", "a", "file", "sea", "is", "to", "sum", "of", "what", "print", "and", "list", "name", "then", "light", "it"]
    text = lambda count: " ".join(rng.choice(words) for _ in range(count))
    with open(path, "w") as f:
        for _ in range(rows):
            length = min(400, max(4, int(rng.lognormvariate(4.1, 0.95))))
            turns = [{"role": "user", "content": text(max(1, length // 3))}, {"role": "assistant", "content": text(length - length // 3)}]
            f.write(json.dumps({"messages": turns}) + "\n")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid):
    """Memory of the process but for mapped files, at this moment."""
    with open(f"/proc/{pid}/status") as f:
        lines = dict(line.split(":", 1) for line in f if ":" in line)
    return sum(int(lines[key].split()[0]) * 1024 for key in ("RssAnon", "RssShmem") if key in lines)


def run_ours(trainer, overrides, steps, warm, threads, environment):
    """Runs warm + steps steps: seconds a step (fastest), processor seconds a step, most resident and planned bytes, the log."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        command = [trainer, "run", os.path.join(HERE, "finetune_cell.yaml"), *overrides, f"train.steps={warm + steps}",
                   f"log.jsonl={log}", "log.every=1", "--json"]
        environment = {**os.environ, "TRAINER_THREADS": str(threads), **environment}
        errors = open(os.path.join(folder, "stderr"), "w+")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        cpu, resident, done = {}, 0, 0
        while process.poll() is None:
            try:
                now, most = cpu_seconds(process.pid), resident_bytes(process.pid)
            except (OSError, KeyError):  # it has just ended
                break
            resident = max(resident, most)
            if os.path.exists(log):
                lines = sum('"step_ms"' in line for line in open(log))
                for n in range(done + 1, lines + 1):
                    cpu[n] = now
                done = lines
            time.sleep(0.02)
        if process.wait() != 0:
            errors.seek(0)
            sys.exit(f"{' '.join(command)}: exit {process.returncode}\n{errors.read()}")
        lines = [json.loads(line) for line in open(log)]
        lines = [line for line in lines if "step_ms" in line]
    last = max(cpu)  # the process may end before the last step's line is seen
    per_step = (cpu[last] - cpu[warm]) / (last - warm) if last > warm else float("nan")
    return {"step_s": min(line["step_ms"] for line in lines[warm:]) / 1e3, "cpu_s": per_step, "resident": resident,
            "planned": lines[-1]["memory_bytes"], "log": lines}


def run_peer(folder, method, precision, variants, args, batch, environment):
    command = [sys.executable, os.path.join(HERE, "peer", "peft_train.py"), folder, "--method", method, "--precision", precision,
               "--variants", ",".join(variants), "--batch", str(batch), "--seq", str(args.seq), "--steps", str(args.steps),
               "--warm", str(args.warm), "--threads", str(args.threads)]
    if environment:
        command += ["--simd-bits", "256"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def bench(shape, folder, method, precision, isa, args):
    batch = args.batch or SHAPES[shape]
    tokens = batch * args.seq
    overrides = [f"model.from={folder}", f"data.train={folder}/tokens.bin", f"data.seq_len={args.seq}", f"train.batch.global={batch}",
                 f"train.batch.micro={batch}", f"precision.compute={precision}"]
    if method == "lora":
        overrides.append(f"adapter={LORA}")
    ours, theirs = [], {}
    best = lambda: min(theirs, key=lambda v: min(r["step_s"] for r in theirs[v]))

    def try_peer(variants):
        for result in run_peer(folder, method, precision, variants, args, batch, ISA[isa]):
            theirs.setdefault(result["variant"], []).append(result)

    for number in range(args.rounds):
        ours.append(run_ours(args.trainer, overrides, args.steps, args.warm, args.threads, ISA[isa]))
        if number > 0 and theirs:
            try_peer([best()])
            continue
        if "eager" in args.kinds:
            try_peer(["eager" + way for way in WAYS[method, precision]])
        if "compile" in args.kinds:
            try_peer(["compile" + (best().removeprefix("eager") if theirs else WAYS[method, precision][0])])
    step, cpu = (min(run[key] for run in ours) for key in ("step_s", "cpu_s"))
    row = {"shape": shape, "method": method, "precision": precision, "isa": isa, "batch": batch, "seq": args.seq,
           "tokens_per_s": round(tokens / step, 1), "cpu_s_per_step": round(cpu, 3),
           "resident_bytes": max(run["resident"] for run in ours), "planned_bytes": ours[-1]["planned"]}
    if theirs:
        fastest = theirs[best()]
        peer_step, peer_cpu = min(r["step_s"] for r in fastest), min(r["cpu_s"] for runs in theirs.values() for r in runs)
        row |= {"peer": best(), "peer_tokens_per_s": round(tokens / peer_step, 1), "peer_cpu_s_per_step": round(peer_cpu, 3),
                "ratio": round(peer_step / step, 2), "cpu_ratio": round(peer_cpu / cpu, 2),
                "peer_peak_bytes": max(r["peak_rss"] for r in fastest)}
    return row


def bench_packing(shape, folder, args):
    """Tokens of chats a second, from the share of the file that the timed steps go through."""
    chats = os.path.join(folder, "chats.jsonl")
    make_chats(chats, 400)
    tokenizer = os.path.join(folder, "tokenizer")
    subprocess.run([args.trainer, "tokenizer", "train", "--vocab", "400", chats, "-o", tokenizer], check=True, capture_output=True)
    batch = args.batch or SHAPES[shape]
    speed = {}
    for packing in ("none", "documents"):
        data = (f"data={{format: chat, train: {chats}, tokenizer: {tokenizer}/tokenizer.json, template: chatml, seq_len: 512, "
                f"too_long: truncate, packing: {packing}}}")
        overrides = [f"model.from={folder}", data, f"train.batch.global={batch}", f"train.batch.micro={batch}", f"adapter={LORA}"]
        run = run_ours(args.trainer, overrides, args.steps, args.warm, args.threads, {})
        share = run["log"][-1]["epoch"] / len(run["log"])
        speed[packing] = {"wall": share / run["step_s"], "cpu": share / run["cpu_s"]}
    gain = {key: round(speed["documents"][key] / speed["none"][key], 2) for key in ("wall", "cpu")}
    return {"shape": shape, "packing_gain": gain["wall"], "packing_cpu_gain": gain["cpu"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=os.path.join(ROOT, "build", "trainer"))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--methods", default="full,lora")
    parser.add_argument("--cells", default="f32:best,bf16:best,f32:avx2", help="precisions, each with its instruction set")
    parser.add_argument("--kinds", default="eager,compile", help="of the peer; empty: ours alone")
    parser.add_argument("--batch", type=int, help="samples a step (2 of SmolLM2, 1 of Qwen2.5)")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2, help="steps timed a round")
    parser.add_argument("--warm", type=int, default=1, help="steps before them")
    parser.add_argument("--threads", type=int, default=2, help="1 where other work takes the cores: threads that wait spin")
    parser.add_argument("--no-packing", action="store_true")
    parser.add_argument("--quick", action="store_true", help="SmolLM2, 2 × 128 tokens, two steps, the peer without torch.compile")
    args = parser.parse_args()
    if args.quick:
        args.shapes, args.batch, args.seq, args.steps, args.kinds = "smollm2-135m", 2, 128, 2, "eager"
    say(f"{'shape':14} {'method':6} {'dtype':5} {'isa':5} {'ours':>8} {'theirs':>8} {'ratio':>6} {'by CPU':>6} {'lora/full':>9} "
        f"{'by CPU':>6} {'planned':>9} {'resident':>8}  peer's best")
    full = {}
    with tempfile.TemporaryDirectory() as place:
        for shape in args.shapes.split(","):
            folder = os.path.join(place, shape)
            make_folder(shape, folder)
            vocab = json.load(open(os.path.join(folder, "config.json")))["vocab_size"]
            make_tokens(os.path.join(folder, "tokens.bin"), vocab, 40 * 4 * args.seq)
            for precision, isa in (cell.split(":") for cell in args.cells.split(",")):
                for method in args.methods.split(","):
                    row = bench(shape, folder, method, precision, isa, args)
                    gain, cpu_gain = "", ""
                    if method == "full":
                        full[shape, precision, isa] = row
                    elif base := full.get((shape, precision, isa)):
                        row["lora_over_full"] = round(row["tokens_per_s"] / base["tokens_per_s"], 2)
                        row["lora_over_full_cpu"] = round(base["cpu_s_per_step"] / row["cpu_s_per_step"], 2)
                        gain, cpu_gain = row["lora_over_full"], row["lora_over_full_cpu"]
                    print(json.dumps(row), flush=True)
                    say(f"{shape:14} {method:6} {precision:5} {isa:5} {row['tokens_per_s']:8.1f} {row.get('peer_tokens_per_s', ''):>8} "
                        f"{row.get('ratio', ''):>6} {row.get('cpu_ratio', ''):>6} {gain:>9} {cpu_gain:>6} "
                        f"{row['planned_bytes'] / 2**30:5.2f} GiB {row['resident_bytes'] / row['planned_bytes']:8.3f}  {row.get('peer', '')}")
            if not args.no_packing:
                row = bench_packing(shape, folder, args)
                print(json.dumps(row), flush=True)
                say(f"{shape:14} packed rows: {row['packing_gain']} times the tokens a second, {row['packing_cpu_gain']} by CPU time")


if __name__ == "__main__":
    main()
