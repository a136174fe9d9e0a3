"""Ceilings of one card for the standard workload: its best bf16 product, the library's products at our shapes with cold
weights, read and copy bandwidth, and the gap between kernels of a graph. Needs PyTorch. Every figure is the median of
20 replays of a captured graph."""
import argparse
import json

import torch

DEVICE, BF16 = "cuda", torch.bfloat16


def replay_ms(call, replays=20):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for i in range(replays + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def product(m, n, k, copies):
    """One x·wᵀ, through as many weights as do not fit the caches together."""
    weights = [torch.randn(n, k, device=DEVICE, dtype=BF16) * 0.02 for _ in range(copies)]
    x, out = torch.randn(m, k, device=DEVICE, dtype=BF16), torch.empty(m, n, device=DEVICE, dtype=BF16)

    def call():
        for weight in weights:
            torch.mm(x, weight.t(), out=out)

    ms = replay_ms(call) / copies
    moved = 2 * (n * k + m * k + m * n)
    return {"us": ms * 1e3, "tflop_per_s": 2 * m * n * k / ms * 1e-9, "gb_per_s": moved / ms * 1e-6}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    result = {"card": torch.cuda.get_device_name(0), "torch": torch.__version__, "products": {}}

    result["best_product"] = product(8192, 8192, 8192, 1)
    shapes = {
        "vision": (768, {"qkv": (3456, 1152), "out": (1152, 1152), "fc1": (4304, 1152), "fc2": (1152, 4304)}),
        "prefix": (788, {"qkv": (2560, 2048), "o": (2048, 2048), "gate_up": (32768, 2048), "down": (2048, 16384)}),
        "expert": (11, {"qkv": (2560, 1024), "o": (1024, 2048), "gate_up": (8192, 1024), "down": (1024, 4096)}),
    }
    for group, (m, products) in shapes.items():
        for name, (n, k) in products.items():
            copies = max(1, min(18, 2**31 // (2 * n * k)))
            result["products"][f"{group}.{name} {m}x{n}x{k}"] = product(m, n, k, copies)

    block = torch.empty(2**31, device=DEVICE, dtype=torch.uint8).random_()
    other = torch.empty_like(block)
    result["copy_gb_per_s"] = 2 * block.numel() / replay_ms(lambda: other.copy_(block)) * 1e-6
    floats = block.view(torch.float32)
    result["read_gb_per_s"] = block.numel() / replay_ms(lambda: torch.sum(floats)) * 1e-6
    del block, other, floats

    small = torch.zeros(1024, device=DEVICE)

    def chain():
        for _ in range(1000):
            small.add_(1)

    result["graph_gap_us"] = replay_ms(chain)  # ms of 1000 kernels = µs of one

    best = result["best_product"]
    print(f"{result['card']}, PyTorch {result['torch']}")
    print(f"8192³ bf16 {best['tflop_per_s']:.0f} TFLOP/s; read {result['read_gb_per_s']:.0f} GB/s, copy {result['copy_gb_per_s']:.0f} GB/s; "
          f"{result['graph_gap_us']:.2f} µs a kernel in a chain of 1000")
    for name, row in result["products"].items():
        print(f"{name:<32} {row['us']:8.2f} µs {row['tflop_per_s']:7.1f} TFLOP/s {row['gb_per_s']:7.1f} GB/s")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
