"""The runs of gpu_bench.sh as Markdown: each cell's speed beside the peer's, and its kernels beside their floors.

  python speed_table.py DIR CELL…
"""

import json
import os
import sys

# Layers, width, sequence; parameters as llm.c counts them.
CELLS = {
    "gpt2-124m": (12, 768, 1024, 124_475_904),
    "gpt2-1558m": (48, 1600, 1024, 1_557_686_400),
    "llama-1b": (16, 2048, 4096, 1_498_482_688),
}


def flops_per_token(name):
    layers, width, seq, parameters = CELLS[name]
    return 6 * parameters + 6 * layers * width * seq


def read(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return None
    text = open(path).read().strip()
    return json.loads(text) if text else None


def peak_flops(folder, name):
    """FLOP/s of dense bf16 products by the GPU's hardware file, as the plan counts them."""
    plan = read(folder, name + ".plan.json")
    predicted = plan["predicted"] if plan else {}
    return plan["model_flops_per_step"] / (predicted["mfu"] * predicted["step_ms"] * 1e-3) if predicted.get("mfu") else None


def failure(folder, name):
    path = os.path.join(folder, name + ".failed")
    return open(path).read().strip() if os.path.exists(path) else None


def speed(folder, names):
    print("| model | trainer, tokens/s | step | of peak | torch.compile, tokens/s | ratio | memory, trainer | torch |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        ours, peer = read(folder, name + ".json"), read(folder, name + ".peer.json")
        failed = failure(folder, name)
        rate = ours["tokens_per_s"] if ours and not failed else None
        mine = f"{rate:,.0f} | {ours['step_ms']['median']:.2f} ms" if rate else f"{failed or 'not run'} | –"
        peak = peak_flops(folder, name)
        share = f"{100 * flops_per_token(name) * rate / peak:.1f}%" if rate and peak else "–"
        theirs = f"{peer['tokens_per_s']:,}" if peer and "tokens_per_s" in peer else "–"
        ratio = f"{rate / peer['tokens_per_s']:.2f}" if rate and theirs != "–" else "–"
        memory = f"{ours['allocated_bytes'] / 2**30:.1f} GiB" if rate else "–"
        print(f"| {name} | {mine} | {share} | {theirs} | {ratio} | {memory} | {peer.get('peak_gib', '–') if peer else '–'} |")


def kernels(folder, name, most=25):
    report = read(folder, name + ".works.json")
    if not report or "works" not in report:
        return
    works = sorted(report["works"], key=lambda w: -w["measured_ms"])
    total = sum(w["measured_ms"] for w in works)
    print(f"\n{name}: a step issued kernel by kernel, {total:.2f} ms in all\n")
    print("| work | count | ms | share | floor, ms | of floor | predicted, ms |")
    print("|---|---|---|---|---|---|---|")
    for w in works[:most]:
        floor = f"{w['floor_ms']:.3f} | {100 * w['floor_ms'] / w['measured_ms']:.0f}%" if w["floor_ms"] and w["measured_ms"] else "– | –"
        print(f"| {w['work']} | {w['count']:.0f} | {w['measured_ms']:.3f} | {100 * w['measured_ms'] / total:.1f}% | {floor} | {w['predicted_ms']:.3f} |")
    rest = works[most:]
    if rest:
        print(f"| {len(rest)} others | {sum(w['count'] for w in rest):.0f} | {sum(w['measured_ms'] for w in rest):.3f} | | | | |")


def main():
    folder, names = sys.argv[1], sys.argv[2:]
    speed(folder, names)
    for name in names:
        kernels(folder, name)


if __name__ == "__main__":
    main()
