"""The models of train_bench.sh in PyTorch, as its own documentation would write them: each is the graph in configs/models of
the same name, with the same parameters, so that both sides compute the same function. Every model maps (inputs, targets) to
a loss.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


def split_heads(x, heads):
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x):
    return x.transpose(1, 2).flatten(2)


class GptBlock(nn.Module):
    def __init__(self, heads, d):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.c_fc, self.c_out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        q, k, v = (split_heads(p, self.heads) for p in self.c_attn(self.ln_1(x)).chunk(3, dim=2))
        x = x + self.c_proj(join_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


def classes_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


class Gpt(nn.Module):
    def __init__(self, layers, heads, dim, vocab, context):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
        self.h = nn.ModuleList(GptBlock(heads, dim) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return classes_loss(F.linear(self.ln_f(x), self.wte.weight), targets)


class LlamaBlock(nn.Module):
    def __init__(self, heads, kv_heads, dim, hidden):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        kv_dim = dim // heads * kv_heads
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.norm_1, self.norm_2 = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)
        self.q, self.k, self.v, self.o = linear(dim, dim), linear(dim, kv_dim), linear(dim, kv_dim), linear(dim, dim)
        self.gate, self.up, self.down = linear(dim, hidden), linear(dim, hidden), linear(hidden, dim)

    def forward(self, x, cos, sin):
        def rotated(p):
            a, b = p.chunk(2, dim=-1)
            return p * cos + torch.cat((-b, a), dim=-1) * sin

        y = self.norm_1(x)
        q, k, v = rotated(split_heads(self.q(y), self.heads)), rotated(split_heads(self.k(y), self.kv_heads)), split_heads(self.v(y), self.kv_heads)
        x = x + self.o(join_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers, heads, kv_heads, dim, hidden, vocab, theta=500000.0):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(LlamaBlock(heads, kv_heads, dim, hidden) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim, eps=1e-5), nn.Linear(dim, vocab, bias=False)
        size = dim // heads
        self.frequencies = (theta ** (-torch.arange(0, size, 2) / size)).repeat(2)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        angles = torch.arange(tokens.shape[1])[:, None] * self.frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return classes_loss(self.head(self.norm(x)), targets)


class Mlp(nn.Module):
    def __init__(self, features, hidden, layers, classes):
        super().__init__()
        sizes = [features] + [hidden] * layers
        hidden_layers = [part for i, o in zip(sizes, sizes[1:]) for part in (nn.Linear(i, o), nn.ReLU())]
        self.layers = nn.Sequential(*hidden_layers, nn.Linear(hidden, classes))

    def forward(self, features, targets):
        return classes_loss(self.layers(features), targets)


class ConvNet(nn.Module):
    def __init__(self, channels, rows, cols, width, hidden, classes):
        super().__init__()
        conv = lambda i, o: (nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        flat = 2 * width * (rows // 4) * (cols // 4)
        self.layers = nn.Sequential(*conv(channels, width), *conv(width, 2 * width), nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(),
                                    nn.Linear(hidden, classes))

    def forward(self, images, targets):
        return classes_loss(self.layers(images), targets)


def conv_norm(enters, leaves, kernel, stride=1):
    return nn.Sequential(nn.Conv2d(enters, leaves, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(leaves))


class ResidualBlock(nn.Module):
    def __init__(self, enters, leaves, stride, bottleneck):
        super().__init__()
        inner = leaves // 4
        if bottleneck:
            self.layers = nn.Sequential(conv_norm(enters, inner, 1), nn.ReLU(True), conv_norm(inner, inner, 3, stride), nn.ReLU(True),
                                        conv_norm(inner, leaves, 1))
        else:
            self.layers = nn.Sequential(conv_norm(enters, leaves, 3, stride), nn.ReLU(True), conv_norm(leaves, leaves, 3))
        self.shortcut = conv_norm(enters, leaves, 1, stride) if enters != leaves or stride != 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.layers(x) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, channels, height, width, widths, depths, bottleneck, classes, stem=64):
        super().__init__()
        blocks, enters = [], stem
        for stage, (leaves, depth) in enumerate(zip(widths, depths)):
            for place in range(depth):
                blocks.append(ResidualBlock(enters, leaves, 2 if stage > 0 and place == 0 else 1, bottleneck))
                enters = leaves
        self.layers = nn.Sequential(conv_norm(channels, stem, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1), *blocks)
        self.head = nn.Linear(enters, classes)

    def forward(self, images, targets):
        return classes_loss(self.head(self.layers(images).mean((2, 3))), targets)


class VitBlock(nn.Module):
    def __init__(self, heads, dim, hidden):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(dim, eps=1e-12), nn.LayerNorm(dim, eps=1e-12)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.fc, self.out = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        y = self.norm_1(x)
        q, k, v = (split_heads(part(y), self.heads) for part in (self.q, self.k, self.v))
        x = x + self.o(join_heads(F.scaled_dot_product_attention(q, k, v)))
        return x + self.out(F.gelu(self.fc(self.norm_2(x))))


class Vit(nn.Module):
    def __init__(self, layers, heads, dim, hidden, channels, image, patch, classes):
        super().__init__()
        self.patches = nn.Conv2d(channels, dim, patch, patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.places = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*(VitBlock(heads, dim, hidden) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-12), nn.Linear(dim, classes)

    def forward(self, images, targets):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), dim=1) + self.places
        return classes_loss(self.head(self.norm(self.blocks(x))[:, 0]), targets)


MODELS = {"gpt2": Gpt, "llama": Llama, "mlp": Mlp, "convnet": ConvNet, "resnet": ResNet, "vit": Vit}
