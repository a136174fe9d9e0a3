"""Records the trace `torch_cpu_tiny.json.gz`: PyTorch's profiler, on the CPU, over a network of π0's structure at small widths (27 vision
layers, 18 prefix layers, steps times 18 expert layers), eager, with shapes. `--calls` calls follow each other.

    python3 make_torch_trace.py --out torch_cpu_tiny.json.gz
"""
import argparse
import gzip
import os
import time

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

p = argparse.ArgumentParser()
p.add_argument("--out", default="torch_cpu_tiny.json.gz")
p.add_argument("--steps", type=int, default=3)
p.add_argument("--calls", type=int, default=1)
p.add_argument("--scale", type=int, default=1)
a = p.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
VW, VM, PW, PM, EW, EM, HEADS, DIM = (n * a.scale for n in (48, 96, 64, 256, 32, 128, 1, 16))
HEADS = 4
VIS, PREFIX, ROWS = 32, 40, 5


def weight(out, inner):
    return torch.randn(out, inner) * inner**-0.5


class VisionLayer:
    def __init__(self):
        self.norms = [torch.ones(VW), torch.zeros(VW), torch.ones(VW), torch.zeros(VW)]
        self.qkv, self.o, self.up, self.down = weight(3 * VW, VW), weight(VW, VW), weight(VM, VW), weight(VW, VM)

    def __call__(self, x):
        g1, b1, g2, b2 = self.norms
        q, k, v = F.linear(F.layer_norm(x, (VW,), g1, b1), self.qkv).view(1, VIS, 3, 4, VW // 4).permute(2, 0, 3, 1, 4)
        x = x + F.linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, VIS, VW), self.o)
        return x + F.linear(F.gelu(F.linear(F.layer_norm(x, (VW,), g2, b2), self.up), approximate="tanh"), self.down)


def rms(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rope(x, cos, sin):
    a1, a2 = x.chunk(2, -1)
    return torch.cat([a1 * cos - a2 * sin, a2 * cos + a1 * sin], -1)


class GemmaLayer:
    def __init__(self, width, mlp):
        self.width = width
        self.qkv, self.o = weight((HEADS + 2) * DIM, width), weight(width, HEADS * DIM)
        self.gate_up, self.down = weight(2 * mlp, width), weight(width, mlp)

    def __call__(self, x, cos, sin, past):
        rows = x.shape[1]
        h = F.linear(rms(x), self.qkv).view(1, rows, HEADS + 2, DIM).transpose(1, 2)
        q, k, v = rope(h[:, :HEADS], cos, sin), rope(h[:, HEADS : HEADS + 1], cos, sin), h[:, HEADS + 1 :]
        keys, values = (k, v) if past is None else (torch.cat([past[0], k], 2), torch.cat([past[1], v], 2))
        y = F.scaled_dot_product_attention(q, keys.expand(1, HEADS, -1, DIM), values.expand(1, HEADS, -1, DIM))
        x = x + F.linear(y.transpose(1, 2).reshape(1, rows, HEADS * DIM), self.o)
        gate, up = F.linear(rms(x), self.gate_up).chunk(2, -1)
        return x + F.linear(F.gelu(gate, approximate="tanh") * up, self.down), (k, v)


vision = [VisionLayer() for _ in range(27)]
prefix = [GemmaLayer(PW, PM) for _ in range(18)]
expert = [GemmaLayer(EW, EM) for _ in range(18)]
patches, positions, project = weight(VW, 12), torch.randn(VIS, VW), weight(PW, VW)
action_in, action_out = weight(EW, 8), weight(8, EW)
embedding = torch.randn(100, PW)
tokens = torch.arange(PREFIX - VIS)[None]
pixels, noise = torch.randn(1, VIS, 12), torch.randn(1, ROWS, 8)
angles = torch.arange(PREFIX + ROWS).float()[:, None] * 1e4 ** (-torch.arange(DIM // 2).float() / (DIM // 2))
cos, sin = angles.cos(), angles.sin()
times = {"vision": 0.0, "prefix": 0.0, "denoise": 0.0}


@torch.no_grad()
def call():
    t0 = time.perf_counter()
    x = F.linear(pixels, patches) + positions
    for layer in vision:
        x = layer(x)
    image = F.linear(F.layer_norm(x, (VW,)), project)
    t1 = time.perf_counter()
    x = torch.cat([image, F.embedding(tokens, embedding)], 1)
    cache = []
    for layer in prefix:
        x, kv = layer(x, cos[:PREFIX], sin[:PREFIX], None)
        cache.append(kv)
    t2 = time.perf_counter()
    action = noise
    for _ in range(a.steps):
        h = F.linear(action, action_in)
        for layer, past in zip(expert, cache):
            h, _ = layer(h, cos[PREFIX:], sin[PREFIX:], past)
        action = action - F.linear(rms(h), action_out) / a.steps
    t3 = time.perf_counter()
    for name, t in zip(times, (t1 - t0, t2 - t1, t3 - t2)):
        times[name] += t * 1e3 / a.calls
    return action


call()
times = dict.fromkeys(times, 0.0)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
    for _ in range(a.calls):
        call()
plain = a.out.removesuffix(".gz")
prof.export_chrome_trace(plain)
if plain != a.out:
    with open(plain, "rb") as src, gzip.GzipFile(a.out, "wb", 9, mtime=0) as dst:
        dst.write(src.read())
    os.remove(plain)
print("wall ms by stage under the profiler:", {k: round(v, 3) for k, v in times.items()})
