"""What the benchmarks of whole steps train: a graph of configs/models with its sizes, a batch, and random samples for it."""

import array
import json
import os
import random
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


@dataclass(frozen=True)
class Cell:
    graph: str  # of configs/models
    batch: int  # samples
    seq: int = 0  # tokens of a sample; 0: samples are no text
    sizes: dict = field(default_factory=dict)  # the graph's parameters
    short: int = 1  # how many steps are timed where others time one: some take a millisecond

    @property
    def units(self):
        """What a step's throughput counts: tokens, or samples that are no text."""
        return self.batch * max(1, self.seq)

    def inputs(self):
        """The shape of a sample that is no text, and the number of classes."""
        s = self.sizes
        if self.graph == "mlp":
            return "features", [s["features"]], s["classes"]
        side = [s["image"]] * 2 if self.graph == "vit" else [s["height"], s["width"]] if self.graph == "resnet" else [s["rows"], s["cols"]]
        return "images", [s["channels"], *side], s["classes"]


CELLS = {
    "124m-64": Cell("gpt2", 4, 64, dict(layers=12, heads=12, dim=768, vocab=50304, context=1024)),
    "124m-256": Cell("gpt2", 4, 256, dict(layers=12, heads=12, dim=768, vocab=50304, context=1024)),
    "nano": Cell("gpt2", 12, 64, dict(layers=4, heads=4, dim=128, vocab=65, context=64), short=4),
    "char": Cell("gpt2", 64, 256, dict(layers=6, heads=6, dim=384, vocab=65, context=256)),
    "llama": Cell("llama", 16, 256, dict(layers=6, heads=8, kv_heads=2, dim=256, hidden=704, vocab=256)),
    "mlp": Cell("mlp", 64, sizes=dict(features=64, hidden=512, layers=3, classes=10), short=50),
    "mlp-wide": Cell("mlp", 256, sizes=dict(features=1024, hidden=4096, layers=4, classes=1000)),
    "convnet": Cell("convnet", 128, sizes=dict(channels=1, rows=28, cols=28, width=16, hidden=128, classes=10), short=10),
    "resnet18": Cell("resnet", 32, sizes=dict(channels=3, height=64, width=64, widths=[64, 128, 256, 512], depths=[2, 2, 2, 2],
                                              bottleneck=False, classes=200)),
    "resnet50": Cell("resnet", 8, sizes=dict(channels=3, height=224, width=224, widths=[256, 512, 1024, 2048], depths=[3, 4, 6, 3],
                                             bottleneck=True, classes=1000)),
    "vit": Cell("vit", 8, sizes=dict(layers=12, heads=6, dim=384, hidden=1536, channels=3, image=224, patch=16, classes=1000)),
}


def write_data(cell, samples, path):
    """Random samples: a flat file of u16 ids, or a safetensors file with a tensor of inputs and one of classes."""
    rng = random.Random(1)
    if cell.seq:
        with open(path, "wb") as f:
            array.array("H", (rng.randrange(cell.sizes["vocab"]) for _ in range(samples * cell.seq + 1))).tofile(f)
        return
    name, shape, classes = cell.inputs()
    elements = 1
    for size in shape:
        elements *= size
    drawn = array.array("f", (rng.gauss(0, 1) for _ in range(1 << 16)))
    bytes_of_inputs = 4 * elements * samples
    header = json.dumps({name: {"dtype": "F32", "shape": [samples, *shape], "data_offsets": [0, bytes_of_inputs]},
                         "targets": {"dtype": "I32", "shape": [samples], "data_offsets": [bytes_of_inputs, bytes_of_inputs + 4 * samples]}})
    header += " " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header.encode())
        for _ in range(samples):  # a sample is a part of what was drawn, again and again
            start = rng.randrange(len(drawn))
            sample = drawn[start:] + drawn[:start]
            while len(sample) < elements:
                sample += sample
            sample[:elements].tofile(f)
        array.array("i", (rng.randrange(classes) for _ in range(samples))).tofile(f)


def overrides(cell, precision, data, micro=0):
    """The job as key=value over train_cell.yaml, but for the steps. `data`: what write_data wrote; `micro`: samples of a
    micro-batch, by default all."""
    sizes = ", ".join(f"{key}: {json.dumps(value)}" for key, value in cell.sizes.items())
    if cell.seq:
        data = f"{{format: tokens, token_type: u16, train: {data}, seq_len: {cell.seq}, shuffle: true}}"
    else:
        data = f"{{format: tensors, train: {data}, shuffle: true}}"
    graph = os.path.join(ROOT, "configs", "models", f"{cell.graph}.yaml")
    return [f"model={{graph: {graph}, with: {{{sizes}}}}}", f"data={data}", f"train.batch={{global: {cell.batch}, micro: {micro or cell.batch}}}",
            f"precision.compute={precision}"]
