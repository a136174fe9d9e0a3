// The host-side work around a call, by Google Benchmark: what a control loop pays besides the network.
#include <benchmark/benchmark.h>

#include <vector>

#include "engine/noise.h"
#include "model/schedule.h"
#include "model/weights/synth.h"
#include "policy/resize.h"
#include "policy/tokenizer.h"

namespace tendon {
namespace {

// A 1080p, 720p or 480p frame to 224×224.
void resize_frame(benchmark::State& state) {
  Image image{static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), {}};
  image.rgb.resize(static_cast<size_t>(image.height) * static_cast<size_t>(image.width) * 3);
  for (size_t i = 0; i < image.rgb.size(); ++i) image.rgb[i] = static_cast<uint8_t>(splitmix64(i));
  for (auto _ : state) benchmark::DoNotOptimize(resize_with_pad(image));
}
BENCHMARK(resize_frame)->Args({1080, 1920})->Args({720, 1280})->Args({480, 640})->Unit(benchmark::kMicrosecond);

void make_noise(benchmark::State& state) {
  std::vector<float> noise(static_cast<size_t>(state.range(0)) * 32);
  uint64_t request = 0;
  for (auto _ : state) fill_noise(1, request++, noise);
}
BENCHMARK(make_noise)->Arg(10)->Arg(50)->Unit(benchmark::kMicrosecond);

void bin_state(benchmark::State& state) {
  std::vector<double> values(14);
  for (size_t i = 0; i < values.size(); ++i) values[i] = -1.0 + static_cast<double>(i) / 7.0;
  for (auto _ : state) benchmark::DoNotOptimize(pi05_text("pick up the cup", values));
}
BENCHMARK(bin_state)->Unit(benchmark::kMicrosecond);

void make_rope_table(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(rope_table(state.range(0), 256, 1e4, RopeFrequencies::kExact));
}
BENCHMARK(make_rope_table)->Arg(1100)->Unit(benchmark::kMillisecond);

// One million synthetic weights.
void make_weights(benchmark::State& state) {
  std::vector<Bf16> weights(1 << 20);
  for (auto _ : state) synthetic_weight("action_in_proj.weight", {1024, 1024}, 0, 1 << 20, weights.data());
  state.SetItemsProcessed(state.iterations() * (1 << 20));
}
BENCHMARK(make_weights)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tendon
