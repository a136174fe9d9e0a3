// Small traces in the formats of other tools, written by hand: none of them was recorded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

namespace tendon::trace::test {

// A file in the temporary directory, removed with the object.
class TempFile {
 public:
  explicit TempFile(const std::string& bytes, const std::string& suffix = ".json") {
    static int number = 0;
    path_ = std::filesystem::temp_directory_path() / fmt::format("tendon_trace_{}_{}{}", getpid(), number++, suffix);
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// A trace of PyTorch's profiler on a card, as far as it matters here: operators with shapes, launches, kernels.
class PyTorchTrace {
 public:
  // One kernel of `us`, launched by `op` (with input shapes), `gap_us` after the one before.
  void kernel(const std::string& name, const std::string& grid, double us, const std::string& op = "aten::other",
              const std::string& dims = "[[1]]", double gap_us = 0) {
    const int64_t id = ++count_;
    const double start = 5316512345678.0 + 1000 + at_us_ + gap_us;
    at_us_ += us + gap_us;
    events_.push_back(fmt::format(
        R"({{"ph":"X","cat":"cpu_op","name":"{}","pid":7,"tid":7,"ts":{:.3f},"dur":1.5,"args":{{"External id":{},"Input type":["c10::BFloat16","c10::BFloat16"],"Input Dims":{}}}}})",
        op, start - 900, id, dims));
    events_.push_back(fmt::format(
        R"({{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":7,"tid":7,"ts":{:.3f},"dur":1.0,"args":{{"External id":{},"cbid":211,"correlation":{}}}}})",
        start - 899.5, id, id));
    events_.push_back(fmt::format(
        R"({{"ph":"X","cat":"kernel","name":"{}","pid":0,"tid":7,"ts":{:.3f},"dur":{:.3f},"args":{{"External id":{},"device":0,"stream":7,"correlation":{},"grid":{},"block":[128,1,1]}}}})",
        name, start, us, id, id, grid));
  }
  void event(const std::string& json) { events_.push_back(json); }

  std::string text() const {
    return fmt::format(
        "{{\n\"schemaVersion\": 1,\n\"deviceProperties\": [{{\"id\": 0, \"name\": \"NVIDIA H100 80GB HBM3\", "
        "\"major\": 9}}],\n\"traceEvents\": [\n{}\n]}}\n",
        fmt::join(events_, ",\n"));
  }

 private:
  std::vector<std::string> events_;
  double at_us_ = 0;
  int64_t count_ = 0;
};

// A call of a π0-shaped network with `steps` steps: every layer is norm, product, attention, product.
struct CallShape {
  int64_t vision = 27, prefix = 18, steps = 3, expert = 18;
  std::string vision_attention = "flash_fwd_kernel<72>", prefix_attention = "flash_fwd_kernel<256>",
              expert_attention = "flash_fwd_kernel<256>";
  std::string prefix_grid = "[7,8,1]", expert_grid = "[1,8,1]";
};

inline void add_call(PyTorchTrace& trace, const CallShape& shape = {}) {
  const auto layer = [&](const std::string& norm, const std::string& attention, const std::string& grid, double us) {
    trace.kernel(norm, "[1,1,1]", us);
    trace.kernel("nvjet_tst_a", grid, us);
    trace.kernel(attention, grid, us);
    trace.kernel("nvjet_tst_b", grid, us);
  };
  trace.kernel("patch_embedding", "[1,1,1]", 5);
  for (int64_t i = 0; i < shape.vision; ++i) layer("layer_norm_kernel", shape.vision_attention, "[2,48,1]", 2);
  trace.kernel("projector_gemm", "[1,1,1]", 7);
  for (int64_t i = 0; i < shape.prefix; ++i) layer("rms_norm_kernel", shape.prefix_attention, shape.prefix_grid, 3);
  for (int64_t step = 0; step < shape.steps; ++step) {
    trace.kernel("action_in_gemm", "[1,1,1]", 1);
    for (int64_t i = 0; i < shape.expert; ++i) layer("rms_norm_kernel", shape.expert_attention, shape.expert_grid, 1);
    trace.kernel("action_out_gemm", "[1,1,1]", 1);
  }
}

}  // namespace tendon::trace::test
