// One .safetensors file: mapped into memory and checked once, then read without copies; and a streaming writer.
// Layout: u64 little-endian header length, JSON header {name: {dtype, shape, data_offsets}}, then the raw bytes.
// Source: https://github.com/huggingface/safetensors (format section).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"

namespace tendon {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// A tensor of the file. `data` points into the mapping, or to a copy where the file's bytes are not aligned for dtype.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t offset_bytes = 0;  // from the start of the file
  uint64_t size_bytes = 0;
  const std::byte* data = nullptr;
};

// Read-only; movable; views stay valid as long as the object that the file was moved to lives.
// Every constructor function throws Error(kBadInput) that names the file and the tensor at fault when: the file is
// missing, unreadable, truncated or a git-lfs pointer; the header is longer than 100 MB, is not JSON or repeats a key;
// a dtype is not one of DType (the 8-bit floats and the like); a rank exceeds 4; shape and byte span disagree; spans
// leave the file, overlap, or leave bytes that belong to no tensor.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);
  // `description` stands for the path in messages.
  static SafetensorsFile from_memory(std::vector<std::byte> bytes, std::string description);

  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::string& description() const { return description_; }
  uint64_t file_bytes() const { return file_bytes_; }

  // Sorted by name.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // The header's "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Null when there is none of this name.
  const SafetensorsEntry* find(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  // View with dtype and shape as stored; its memory must not be written. Throws Error(kBadInput) for an unknown name.
  Tensor tensor(std::string_view name) const;

  // Asks the system to read this tensor's pages now; returns at once. No effect on files in memory.
  void prefetch(const SafetensorsEntry& entry) const;

 private:
  struct Storage;
  SafetensorsFile(std::unique_ptr<Storage> storage, std::string description);
  void parse();

  std::unique_ptr<Storage> storage_;
  std::string description_;
  uint64_t file_bytes_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// View of an entry. The memory must not be written.
Tensor tensor_of(const SafetensorsEntry& entry);

// Elements of a stored tensor of any dtype as doubles, in row-major order (I64 beyond 2^53 rounds).
std::vector<double> to_doubles(const Tensor& tensor);

// What the writer will hold, in the order in which the data will be appended.
struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

// Writes `<path>.partial` and renames it to `path` in finish(); an unfinished file is removed by the destructor.
// Needs memory for the header only. Throws Error(kBadUse) for repeated names or a wrong number of bytes, and
// Error(kBadInput) when the file system refuses.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path path, const std::vector<SafetensorsSpec>& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  // The next bytes of the concatenation of all tensors; chunks need not end where tensors do.
  void append(std::span<const std::byte> chunk);
  template <class T>
  void append(std::span<const T> values) {
    append(std::as_bytes(values));
  }

  // All data must have been appended.
  void finish();

  // Bytes of tensor data in all, and those still to come.
  uint64_t data_bytes() const { return data_bytes_; }
  uint64_t missing_bytes() const { return data_bytes_ - written_bytes_; }

 private:
  void write(const void* data, size_t bytes);
  void discard();

  std::filesystem::path path_;
  std::filesystem::path partial_path_;
  uint64_t data_bytes_ = 0;
  uint64_t written_bytes_ = 0;
  int file_ = -1;
};

}  // namespace tendon
