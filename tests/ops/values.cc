#include "values.h"

#include <algorithm>

#include "base/parallel.h"

namespace tendon::op_check {

uint64_t Random::bits() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

double Random::uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

double Random::normal() {
  const uint64_t b = bits();  // four uniform 16-bit numbers
  const auto sum = static_cast<double>((b & 0xffffU) + ((b >> 16) & 0xffffU) + ((b >> 32) & 0xffffU) + (b >> 48));
  return (sum / 65535.0 - 2.0) * 1.7320508075688772;
}

int32_t Random::integer(int64_t begin, int64_t end) {
  return static_cast<int32_t>(begin + static_cast<int64_t>(bits() % static_cast<uint64_t>(end - begin)));
}

double decode(DType dtype, const void* data, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<double>(static_cast<const float*>(data)[index]);
    case DType::kBf16:
      return static_cast<double>(to_float(static_cast<const Bf16*>(data)[index]));
    case DType::kI32:
      return static_cast<double>(static_cast<const int32_t*>(data)[index]);
    case DType::kU8:
    case DType::kBool:
      return static_cast<double>(static_cast<const uint8_t*>(data)[index]);
    default:
      throw_bad_use("no test data of type {}", dtype_name(dtype));
  }
}

void encode(DType dtype, void* data, int64_t index, double value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      return;
    case DType::kBf16:
      static_cast<Bf16*>(data)[index] = to_bf16(static_cast<float>(value));
      return;
    case DType::kI32:
      static_cast<int32_t*>(data)[index] = static_cast<int32_t>(value);
      return;
    case DType::kU8:
    case DType::kBool:
      static_cast<uint8_t*>(data)[index] = static_cast<uint8_t>(value);
      return;
    default:
      throw_bad_use("no test data of type {}", dtype_name(dtype));
  }
}

double unit_roundoff(DType dtype) { return dtype == DType::kBf16 ? 0x1p-8 : 0x1p-24; }

std::vector<std::byte> make_bytes(const Buffer& buffer, uint64_t seed) {
  const int64_t count = buffer.value.shape.elements();
  std::vector<std::byte> bytes(static_cast<size_t>(count) * dtype_bytes(buffer.value.dtype), std::byte{0xff});
  if (!buffer.fill) return bytes;
  constexpr int64_t kBlock = 1 << 16;  // a stream of its own for each block, so that the threads do not matter
  parallel_for((count + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      Random random(seed * 1000003 + static_cast<uint64_t>(block));
      for (int64_t i = block * kBlock; i < std::min(count, (block + 1) * kBlock); ++i) {
        encode(buffer.value.dtype, bytes.data(), i, buffer.fill(random, i));
      }
    }
  });
  return bytes;
}

}  // namespace tendon::op_check
