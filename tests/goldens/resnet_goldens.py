"""Goldens of ResNet folders: tiny random models, as transformers saves them, with what transformers and PyTorch compute in f64.
Needs torch and transformers 5.23.

Each is a folder folders/<name>/: config.json and model.safetensors as `save_pretrained` writes them, and expected.safetensors with
input/<name>: what goes in; `eval_loss` [1] and `eval_logits`: by the running statistics of the file; in training mode `loss` [1], `logits`,
grad/<tensor>, and after/<tensor>: the running statistics that the pass leaves; `losses` [20] and steps/<tensor>: 20 steps of SGD on that
batch (rate RATE, momentum 0.9), running statistics among the tensors.
"""

import copy
import os
import shutil
import sys

import torch
import transformers as T
from safetensors.torch import save_file

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "folders")
RATE, STEPS = 0.02, 20
CONFIGS = {
    "resnet": dict(embedding_size=6, hidden_sizes=[8, 12, 16], depths=[1, 2, 1], layer_type="bottleneck", downsample_in_first_stage=False, num_labels=5),
    "resnet_basic": dict(embedding_size=5, hidden_sizes=[6, 9], depths=[2, 1], layer_type="basic", downsample_in_first_stage=True, num_labels=4),
    "resnet_early": dict(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="bottleneck", downsample_in_bottleneck=True, num_labels=3),
}


def is_statistic(name):
    return "running_" in name


def make(name):
    torch.manual_seed(sum(map(ord, name)))
    model = T.ResNetForImageClassification(T.ResNetConfig(num_channels=3, **CONFIGS[name])).double()
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if key.endswith("running_mean"):
                tensor.copy_(torch.randn_like(tensor) * 0.3)
            elif key.endswith("running_var"):
                tensor.copy_(torch.rand_like(tensor) + 0.5)
            elif tensor.dim() == 1:
                tensor.add_(torch.randn_like(tensor) * 0.2)
            if tensor.is_floating_point():
                tensor.copy_(tensor.float())
    images = torch.randn(6, 3, 22, 18).float()
    targets = torch.randint(0, CONFIGS[name]["num_labels"], (6,))
    run = lambda: model(pixel_values=images.double(), labels=targets)
    start = copy.deepcopy(model.state_dict())

    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    copy.deepcopy(model).float().save_pretrained(folder)

    tensors = {"input/images": images, "input/targets": targets.int()}
    keep = lambda key, value: tensors.__setitem__(key, value.detach().float().contiguous().clone())
    with torch.no_grad():
        out = model.eval()(pixel_values=images.double(), labels=targets)
    keep("eval_loss", out.loss.reshape(1)), keep("eval_logits", out.logits)
    model.train()
    out = run()
    out.loss.backward()
    keep("loss", out.loss.reshape(1)), keep("logits", out.logits)
    for key, parameter in model.named_parameters():
        keep("grad/" + key, parameter.grad)
    for key, value in model.state_dict().items():
        if is_statistic(key):
            keep("after/" + key, value)

    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = run().loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    keep("losses", torch.stack(losses))
    for key, value in model.state_dict().items():
        if value.is_floating_point():
            keep("steps/" + key, value)
    save_file(tensors, os.path.join(folder, "expected.safetensors"))
    print(name, sum(p.numel() for p in model.parameters()), out.loss.item(), losses[0].item(), losses[-1].item())


if __name__ == "__main__":
    for one in sys.argv[1:] or CONFIGS:
        make(one)
