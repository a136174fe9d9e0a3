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

namespace {

float scale_of(const Value& value, const void* data, int64_t index) {
  return reinterpret_cast<const float*>(static_cast<const char*>(data) +
                                        scales_offset_bytes(value.shape))[index / value.shape[-1]];
}

}  // namespace

double decode(const Value& value, const void* data, int64_t index) {
  switch (value.dtype) {
    case DType::kE4m3:
      return static_cast<double>(to_float(static_cast<const E4m3*>(data)[index])) *
             static_cast<double>(scale_of(value, data, index));
    case DType::kI8:
      return static_cast<double>(static_cast<const int8_t*>(data)[index]) *
             static_cast<double>(scale_of(value, data, index));
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
      throw_bad_use("no test data of type {}", dtype_name(value.dtype));
  }
}

void encode(const Value& value, void* data, int64_t index, double number) {
  switch (value.dtype) {
    case DType::kE4m3:
      static_cast<E4m3*>(data)[index] = to_e4m3(static_cast<float>(number) / scale_of(value, data, index));
      return;
    case DType::kI8:
      static_cast<int8_t*>(data)[index] = to_i8(static_cast<float>(number) / scale_of(value, data, index));
      return;
    case DType::kF32:
      static_cast<float*>(data)[index] = static_cast<float>(number);
      return;
    case DType::kBf16:
      static_cast<Bf16*>(data)[index] = to_bf16(static_cast<float>(number));
      return;
    case DType::kI32:
      static_cast<int32_t*>(data)[index] = static_cast<int32_t>(number);
      return;
    case DType::kU8:
    case DType::kBool:
      static_cast<uint8_t*>(data)[index] = static_cast<uint8_t>(number);
      return;
    default:
      throw_bad_use("no test data of type {}", dtype_name(value.dtype));
  }
}

void encode_wrong(const Value& value, void* data, int64_t index, double number, double off) {
  if (!is_scaled(value.dtype)) {
    const bool is_byte = value.dtype == DType::kU8;  // the next byte, for `off` may be less
    encode(value, data, index, is_byte ? (number > 0 ? number - 1 : 1) : number + off);
    return;
  }
  // Two codes beside the right one, or further where that may be off by more.
  encode(value, data, index, number);
  auto& code = static_cast<uint8_t*>(data)[index];
  if (value.dtype == DType::kE4m3) {
    code = static_cast<uint8_t>((code & 0x7fU) >= 2 ? code - 2 : code + 2);
  } else {
    code = static_cast<uint8_t>(static_cast<int8_t>(code) > 0 ? code - 2 : code + 2);
  }
  if (std::fabs(decode(value, data, index) - number) < off) {
    encode(value, data, index, number > 0 ? number - off : number + off);
  }
}

std::byte poison(DType dtype) { return dtype == DType::kI8 ? std::byte{0x80} : std::byte{0xff}; }

double unit_roundoff(DType dtype) {
  if (dtype == DType::kE4m3) return 0x1p-4;
  return dtype == DType::kBf16 || dtype == DType::kI8 ? 0x1p-8 : 0x1p-24;
}

std::vector<std::byte> make_bytes(const Buffer& buffer, uint64_t seed) {
  const int64_t count = buffer.value.shape.elements();
  std::vector<std::byte> bytes(buffer_bytes(buffer.value.dtype, buffer.value.shape), std::byte{0xff});
  if (!buffer.fill) {
    std::fill_n(bytes.begin(), Tensor(buffer.value.dtype, buffer.value.shape).bytes(), poison(buffer.value.dtype));
    return bytes;
  }
  if (is_scaled(buffer.value.dtype)) {  // some rows have their largest numbers cut off, some use a few codes only
    auto* const scales = reinterpret_cast<float*>(bytes.data() + scales_offset_bytes(buffer.value.shape));
    for (int64_t row = 0; row < count / std::max<int64_t>(buffer.value.shape[-1], 1); ++row) {
      scales[row] = 0.0003F * static_cast<float>(1 + row * 7 % 23);
    }
  }
  constexpr int64_t kBlock = 1 << 16;  // a stream of its own for each block, so that the threads do not matter
  parallel_for((count + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      Random random(seed * 1000003 + static_cast<uint64_t>(block));
      for (int64_t i = block * kBlock; i < std::min(count, (block + 1) * kBlock); ++i) {
        encode(buffer.value, bytes.data(), i, buffer.fill(random, i));
      }
    }
  });
  return bytes;
}

}  // namespace tendon::op_check
