// Host tensors into device memory, on the simulated card: it reads pinned memory as late as a card may, so that a
// window filled too early shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <vector>

#include "backend/sim/sim_backend.h"
#include "base/check.h"
#include "base/convert.h"
#include "engine/upload.h"

namespace tendon::test {
namespace {

using testing::HasSubstr;

// Pieces with memory of their own, one behind the other at multiples of 256 bytes.
class Pieces {
 public:
  void add(DType stored, int64_t elements, DType wanted, size_t extra_gap = 0) {
    std::vector<char>& memory = memory_.emplace_back(static_cast<size_t>(elements) * dtype_bytes(stored));
    for (int64_t i = 0; i < elements; ++i) {
      const auto value = static_cast<float>(std::sin(static_cast<double>(i + 7 * std::ssize(memory_))));
      if (stored == DType::kF32) std::memcpy(memory.data() + 4 * i, &value, 4);
      if (stored == DType::kBf16) reinterpret_cast<Bf16*>(memory.data())[i] = to_bf16(value);
      if (stored == DType::kF16) reinterpret_cast<uint16_t*>(memory.data())[i] = static_cast<uint16_t>(i % 0x7bff);
    }
    bytes_ += extra_gap;
    list_.push_back({Tensor(stored, {elements}, memory.data()), wanted, bytes_});
    bytes_ += (list_.back().bytes() + 255) / 256 * 256;
  }
  const std::vector<UploadPiece>& list() const { return list_; }
  size_t bytes() const { return bytes_; }

 private:
  std::deque<std::vector<char>> memory_;
  std::vector<UploadPiece> list_;
  size_t bytes_ = 0;
};

Pieces ragged_pieces() {
  Pieces pieces;
  pieces.add(DType::kF32, 1000, DType::kBf16, 512);
  pieces.add(DType::kBf16, 3001, DType::kBf16);
  pieces.add(DType::kBf16, 0, DType::kBf16);
  pieces.add(DType::kBf16, 513, DType::kF32);
  pieces.add(DType::kF16, 77, DType::kF32);
  pieces.add(DType::kF32, 1, DType::kF32, 4096);  // a gap that another owner fills
  pieces.add(DType::kF32, 5000, DType::kF32);
  return pieces;
}

void expect_there(Backend& backend, const void* block, const Pieces& pieces) {
  for (size_t i = 0; i < pieces.list().size(); ++i) {
    const UploadPiece& piece = pieces.list()[i];
    std::vector<char> want(piece.bytes()), got(piece.bytes());
    convert(piece.host, piece.dtype, want.data());
    backend.download(got.data(), static_cast<const char*>(block) + piece.offset, got.size());
    EXPECT_EQ(want, got) << "piece " << i;
  }
}

TEST(Upload, PutsEveryPieceInItsPlaceWhateverTheWindow) {
  const Pieces pieces = ragged_pieces();
  for (const size_t window : {size_t{4}, size_t{252}, size_t{1024}, size_t{6000}, kUploadWindowBytes}) {
    const auto backend = sim::make_sim_backend({}, {});
    const DeviceBlock block(*backend, pieces.bytes());
    backend->fill_zero(block.data(), pieces.bytes());
    upload_pieces(*backend, block.data(), pieces.list(), window);
    expect_there(*backend, block.data(), pieces);
    std::vector<char> gap(4096);
    backend->download(gap.data(), static_cast<char*>(block.data()) + pieces.list()[5].offset - 4096, 4096);
    EXPECT_EQ(gap, std::vector<char>(4096)) << "window " << window;
  }
}

TEST(Upload, OfNothingNeedsNoMemory) {
  gpu::Runtime* card = nullptr;
  const auto backend = sim::make_sim_backend({}, {}, &card);
  upload_pieces(*backend, nullptr, {});
  Pieces empty;
  empty.add(DType::kF32, 0, DType::kF32);
  upload_pieces(*backend, nullptr, empty.list());
  EXPECT_EQ(card->counters().host_allocations, 0U);
}

TEST(Upload, PinsTwoWindowsNoLargerThanNeeded) {
  gpu::Runtime* card = nullptr;
  const auto backend = sim::make_sim_backend({}, {}, &card);
  const Pieces pieces = ragged_pieces();
  const DeviceBlock block(*backend, pieces.bytes());
  upload_pieces(*backend, block.data(), pieces.list());
  EXPECT_EQ(card->counters().host_allocations, 2U);
}

TEST(Upload, FailuresAreTheDevicesAndNothingStaysUnderWay) {
  const Pieces pieces = ragged_pieces();
  std::vector<sim::SimOptions> faults;
  for (uint64_t n = 1; n <= 4; ++n) faults.push_back({.failing_copy = n});
  for (uint64_t n = 1; n <= 2; ++n) faults.push_back({.failing_host_allocation = n});
  for (const sim::SimOptions& fault : faults) {
    const auto backend = sim::make_sim_backend(fault, {});
    const DeviceBlock block(*backend, pieces.bytes());
    try {
      upload_pieces(*backend, block.data(), pieces.list(), 4096);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDevice);
      EXPECT_THAT(error.what(), HasSubstr(fault.failing_copy > 0 ? "ordered fault" : "page-locked host memory"));
    }
    upload_pieces(*backend, block.data(), pieces.list(), 4096);  // the next try goes well
    expect_there(*backend, block.data(), pieces);
  }
}

TEST(Upload, RefusesWhatCannotBeConverted) {
  const auto backend = sim::make_sim_backend({}, {});
  std::vector<int32_t> numbers(8);
  const UploadPiece piece{Tensor(DType::kI32, {8}, numbers.data()), DType::kF32, 0};
  EXPECT_THROW(upload_pieces(*backend, nullptr, std::span(&piece, 1)), Error);
}

// --- values made on the card ----------------------------------------------------------------------------------------

// Rule, host side, written down once more.
Bf16 value_at(const ValueRule& rule, int64_t i) {
  const uint64_t h = splitmix64(rule.seed + static_cast<uint64_t>(i));
  const double r = static_cast<double>(h >> 40) / 8388608.0 - 1.0;
  return to_bf16(static_cast<float>(rule.offset + rule.scale * r));
}

TEST(FillByRule, MakesTheHostsBitsAndNothingBeyond) {
  for (const simt::Order order : {simt::Order::kForward, simt::Order::kReverse, simt::Order::kShuffled}) {
    const auto backend = sim::make_sim_backend({.order = order}, {});
    for (const ValueRule& rule : {ValueRule{0xfedcba9876543210ULL, 0, 0.04}, ValueRule{~uint64_t{0} - 100, 1, 0.2},
                                  ValueRule{7, 0, std::sqrt(3.0 / 1152)}}) {
      for (const int64_t elements : {1, 7, 8, 9, 2048, 5003}) {
        for (const DType dtype : {DType::kBf16, DType::kF32}) {
          const size_t bytes = static_cast<size_t>(elements) * dtype_bytes(dtype);
          const DeviceBlock block(*backend, bytes + 16);
          backend->fill_zero(block.data(), bytes + 16);
          ASSERT_TRUE(backend->fill_by_rule(Tensor(dtype, {elements}, block.data()), rule));
          backend->finish_uploads();
          std::vector<char> got(bytes + 16), want(bytes + 16);
          for (int64_t i = 0; i < elements; ++i) {
            const Bf16 value = value_at(rule, i);
            const float wide = to_float(value);
            if (dtype == DType::kBf16) std::memcpy(want.data() + 2 * i, &value, 2);
            if (dtype == DType::kF32) std::memcpy(want.data() + 4 * i, &wide, 4);
          }
          backend->download(got.data(), block.data(), got.size());
          EXPECT_EQ(got, want) << elements << " " << dtype_name(dtype);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tendon::test
