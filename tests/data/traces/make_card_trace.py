"""Writes a trace as PyTorch's profiler does for a card, of whatever size: calls of π0's structure (27 vision layers, 18 prefix layers,
steps times 18 expert layers) one behind the other, an operator, a launch, a kernel and the arrow between them for each piece. Nothing
was recorded: times are made up. For the time and memory that `tendon report` needs.

    python3 make_card_trace.py --mb 200 --out trace.json       trace.json.gz is compressed
"""
import argparse
import gzip

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--mb", type=float, default=200, help="10^6 bytes, before compression; whole calls, so somewhat more")
p.add_argument("--steps", type=int, default=10)
a = p.parse_args()

PID, STREAM = 4242, 7
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{}x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<8, at::native::{}, std::array<char*, 3ul> >(int, at::native::{}, std::array<char*, 3ul>)"
ATTENTION = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{}, 64, 64, 4, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)"


def layer(rows, width, mlp, head):
    """Operator, inputs' shapes, kernel, grid, µs."""
    def product(out, inner):
        tile = 128 if rows > 64 else 64
        return ("aten::mm", [[rows, inner], [inner, out]], GEMM.format(tile), [max(1, rows // 128), out // 128 + 1, 1], 20)

    def elementwise(op, functor, columns):
        return (f"aten::{op}", [[1, rows, columns], [columns]], ELEMENTWISE.format(functor, functor), [rows, 1, 1], 3)

    attention = ("aten::_flash_attention_forward", [[1, rows, 8, head]] * 3, ATTENTION.format(head), [rows // 64 + 1, 8, 1], 15)
    return [
        elementwise("native_layer_norm", "layer_norm_functor<c10::BFloat16>", width), product(3 * width, width), attention,
        product(width, width), elementwise("add", "CUDAFunctor_add<c10::BFloat16>", width), product(mlp, width),
        elementwise("gelu", "GeluCUDAKernelImpl<c10::BFloat16>", mlp), product(width, mlp),
        elementwise("add", "CUDAFunctor_add<c10::BFloat16>", width),
    ]


def events(steps):
    """The text of every event of call after call; endless."""
    call = [*layer(768, 1152, 4304, 72) * 27, *layer(788, 2048, 16384, 256) * 18, *layer(11, 1024, 4096, 256) * 18 * steps]
    host, device, number = 5316512340000.0, 5316512340500.0, 0
    while True:
        for op, shapes, kernel, grid, us in call:
            number += 1
            host += 9.5
            device = max(device + 1.1, host + 6.0)
            types = ", ".join('"c10::BFloat16"' for _ in shapes)
            yield (f'{{\n    "ph": "X", "cat": "cpu_op", "name": "{op}", "pid": {PID}, "tid": {PID},\n    "ts": {host - 8:.3f}, "dur": 7.500,\n'
                   f'    "args": {{\n      "External id": {number},"Record function id": 0, "Concrete Inputs": ["", ""], "Input type": [{types}], '
                   f'"Input Strides": [[1]], "Input Dims": {shapes}, "Ev Idx": {number - 1}\n    }}\n  }}')
            yield (f'{{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": {PID}, "tid": {PID},\n    "ts": {host - 4:.3f}, '
                   f'"dur": 3.250,\n    "args": {{\n      "External id": {number}, "cbid": 211, "correlation": {number}\n    }}\n  }}')
            yield (f'{{\n    "ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": {STREAM},\n    "ts": {device:.3f}, "dur": {us:.3f},\n'
                   f'    "args": {{\n      "External id": {number},\n      "queued": 0, "device": 0, "context": 1,\n      "stream": {STREAM}, '
                   f'"correlation": {number},\n      "registers per thread": 128,\n      "shared memory": 65536,\n      "blocks per SM": 0.97,\n'
                   f'      "warps per SM": 7.76,\n      "grid": {grid},\n      "block": [128, 1, 1],\n      "est. achieved occupancy %": 12\n    }}\n  }}')
            yield f'{{\n    "ph": "s", "id": {number}, "pid": {PID}, "tid": {PID}, "ts": {host - 4:.3f},\n    "cat": "ac2g", "name": "ac2g"\n  }}'
            yield f'{{\n    "ph": "f", "id": {number}, "pid": 0, "tid": {STREAM}, "ts": {device:.3f},\n    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }}'
            device += us
        yield None


opener = gzip.open if a.out.endswith(".gz") else open
with opener(a.out, "wt", encoding="utf-8") as file:
    size = file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  "record_shapes": 1,\n  "displayTimeUnit": "ms",\n  "traceEvents": [\n  ')
    size += file.write(f'{{"ph": "M", "name": "process_name", "pid": {PID}, "tid": 0, "args": {{"name": "python"}}}}')
    for event in events(a.steps):
        if event is not None:
            size += file.write(",\n  " + event)
        elif size >= a.mb * 1e6:
            break
    file.write("\n  ]\n}\n")
