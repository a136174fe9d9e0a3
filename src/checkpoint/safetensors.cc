#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "checkpoint/json_text.h"

namespace tendon {
namespace {

constexpr uint64_t kLengthBytes = 8;

struct DTypeWord {
  std::string_view word;
  DType dtype;
};
constexpr DTypeWord kDTypeWords[] = {{"F32", DType::kF32}, {"BF16", DType::kBf16}, {"F16", DType::kF16},
                                     {"F64", DType::kF64}, {"I64", DType::kI64},   {"I32", DType::kI32},
                                     {"U8", DType::kU8},   {"BOOL", DType::kBool}};

std::optional<DType> dtype_from_word(std::string_view word) {
  for (const DTypeWord& known : kDTypeWords) {
    if (known.word == word) return known.dtype;
  }
  return {};
}

std::string_view word_of(DType dtype) {
  for (const DTypeWord& known : kDTypeWords) {
    if (known.dtype == dtype) return known.word;
  }
  return "?";
}

std::string system_message() { return std::strerror(errno); }

// The value of a required field of a tensor's header entry.
const nlohmann::json& field(const nlohmann::json& entry, const char* name, const std::string& where) {
  const auto found = entry.find(name);
  if (found == entry.end())
    throw_bad_input("{}: the header entry has no '{}'; the file is not valid safetensors", where, name);
  return *found;
}

uint64_t to_unsigned(const nlohmann::json& value, const char* name, const std::string& where) {
  if (!value.is_number_unsigned()) {
    throw_bad_input("{}: '{}' holds {} where a non-negative integer is expected", where, name, json_type(value));
  }
  return value.get<uint64_t>();
}

// Shape and its size in bytes; all products are checked against the 63-bit range.
uint64_t read_shape(const nlohmann::json& dims, DType dtype, const std::string& where, Shape& shape) {
  if (!dims.is_array()) throw_bad_input("{}: 'shape' is {}, expected a list", where, json_type(dims));
  if (dims.size() > Shape::kMaxRank) {
    throw_bad_input("{}: rank {}, expected at most {} dimensions", where, dims.size(), Shape::kMaxRank);
  }
  int64_t bytes = static_cast<int64_t>(dtype_bytes(dtype));
  for (const nlohmann::json& dim : dims) {
    const uint64_t value = to_unsigned(dim, "shape", where);
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
        __builtin_mul_overflow(bytes, static_cast<int64_t>(value), &bytes)) {
      throw_bad_input("{}: the shape {} overflows 63 bits", where, shorten(dims.dump()));
    }
    shape.push_back(static_cast<int64_t>(value));
  }
  return static_cast<uint64_t>(bytes);
}

// `offset_bytes` counts from the start of the data section here; parse() moves it.
SafetensorsEntry read_entry(const std::string& name, const nlohmann::json& value, const std::string& description) {
  const std::string where = fmt::format("{}: tensor '{}'", description, shorten(name));
  if (!value.is_object()) throw_bad_input("{}: the header entry is {}, expected an object", where, json_type(value));
  SafetensorsEntry entry;
  entry.name = name;
  const nlohmann::json& word = field(value, "dtype", where);
  if (!word.is_string()) throw_bad_input("{}: 'dtype' is {}, expected a string", where, json_type(word));
  const std::optional<DType> dtype = dtype_from_word(word.get_ref<const std::string&>());
  if (!dtype) {
    throw_bad_input("{}: dtype {} is not supported (F32, BF16, F16, F64, I64, I32, U8 and BOOL are); convert the file",
                    where, shorten(word.get_ref<const std::string&>(), 40));
  }
  entry.dtype = *dtype;
  const uint64_t shape_bytes = read_shape(field(value, "shape", where), entry.dtype, where, entry.shape);
  const nlohmann::json& span = field(value, "data_offsets", where);
  if (!span.is_array() || span.size() != 2) {
    throw_bad_input("{}: 'data_offsets' is not a list of two integers; the file is not valid safetensors", where);
  }
  const uint64_t begin = to_unsigned(span[0], "data_offsets", where);
  const uint64_t end = to_unsigned(span[1], "data_offsets", where);
  if (begin > end || end - begin != shape_bytes) {
    throw_bad_input("{}: data_offsets [{}, {}] do not span the {} bytes of shape {} in {}", where, begin, end,
                    shape_bytes, to_string(entry.shape), word_of(entry.dtype));
  }
  entry.offset_bytes = begin;
  entry.size_bytes = shape_bytes;
  return entry;
}

// The entries must tile the data section: no gap, no overlap, nothing after the last.
void check_tiling(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes, const std::string& description) {
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.offset_bytes > data_bytes || entry.size_bytes > data_bytes - entry.offset_bytes) {
      throw_bad_input(
          "{}: tensor '{}' needs bytes {} to {} of the data section, which has {} bytes: the file is truncated; copy "
          "or "
          "download it again",
          description, shorten(entry.name), entry.offset_bytes, entry.offset_bytes + entry.size_bytes, data_bytes);
    }
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return std::pair(a->offset_bytes, a->size_bytes) < std::pair(b->offset_bytes, b->size_bytes);
  });
  uint64_t reached = 0;
  const SafetensorsEntry* previous = nullptr;
  for (const SafetensorsEntry* entry : order) {
    if (entry->offset_bytes < reached) {
      throw_bad_input("{}: the tensors '{}' and '{}' overlap; the file is not valid safetensors", description,
                      shorten(previous->name), shorten(entry->name));
    }
    if (entry->offset_bytes > reached) {
      throw_bad_input("{}: {} bytes before tensor '{}' belong to no tensor; the file is not valid safetensors",
                      description, entry->offset_bytes - reached, shorten(entry->name));
    }
    reached = entry->offset_bytes + entry->size_bytes;
    previous = entry;
  }
  if (reached != data_bytes) {
    throw_bad_input("{}: {} bytes after the last tensor belong to no tensor; the file is damaged or not safetensors",
                    description, data_bytes - reached);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------- file

struct SafetensorsFile::Storage {
  std::vector<std::byte> memory;  // from_memory
  void* mapping = nullptr;        // open
  size_t mapping_bytes = 0;
  std::vector<std::vector<std::byte>> aligned;  // copies of tensors that lie at addresses their dtype forbids

  Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage() {
    if (mapping != nullptr) ::munmap(mapping, mapping_bytes);
  }
  std::span<const std::byte> bytes() const {
    if (mapping != nullptr) return {static_cast<const std::byte*>(mapping), mapping_bytes};
    return memory;
  }
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<Storage> storage, std::string description)
    : storage_(std::move(storage)), description_(std::move(description)), file_bytes_(storage_->bytes().size()) {
  parse();
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  const std::string where = path.string();
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not hang us
  if (file < 0) throw_bad_input("{}: cannot be opened: {}", where, system_message());
  auto storage = std::make_unique<Storage>();
  struct stat info {};
  std::string trouble;
  if (::fstat(file, &info) != 0) {
    trouble = system_message();
  } else if (!S_ISREG(info.st_mode)) {
    trouble = "not a regular file; a .safetensors file is expected";
  } else if (info.st_size > 0) {
    storage->mapping_bytes = static_cast<size_t>(info.st_size);
    void* mapping = ::mmap(nullptr, storage->mapping_bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (mapping == MAP_FAILED) {
      trouble = "cannot be mapped into memory: " + system_message();
    } else {
      storage->mapping = mapping;
      ::posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL);  // larger read-ahead: weights are read once, mostly in order
    }
  }
  ::close(file);
  if (!trouble.empty()) throw_bad_input("{}: {}", where, trouble);
  return SafetensorsFile(std::move(storage), where);
}

SafetensorsFile SafetensorsFile::from_memory(std::vector<std::byte> bytes, std::string description) {
  auto storage = std::make_unique<Storage>();
  storage->memory = std::move(bytes);
  return SafetensorsFile(std::move(storage), std::move(description));
}

void SafetensorsFile::parse() {
  const std::span<const std::byte> bytes = storage_->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("version https://git-lfs")) {
    throw_bad_input(
        "{}: this is a git-lfs pointer of {} bytes, not the weights; run 'git lfs pull' or download the file",
        description_, bytes.size());
  }
  if (bytes.size() < kLengthBytes) {
    throw_bad_input("{}: {} bytes is too short for a safetensors file (empty or truncated); copy or download it again",
                    description_, bytes.size());
  }
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_bytes |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    throw_bad_input(
        "{}: the header claims {} bytes, more than the format's limit of {}: this is not a safetensors file",
        description_, header_bytes, kMaxSafetensorsHeaderBytes);
  }
  if (header_bytes > bytes.size() - kLengthBytes) {
    throw_bad_input(
        "{}: the header needs {} bytes but only {} follow: the file is truncated; copy or download it again",
        description_, header_bytes, bytes.size() - kLengthBytes);
  }
  const nlohmann::json header =
      parse_json_header(text.substr(kLengthBytes, static_cast<size_t>(header_bytes)), description_ + ": header");
  if (!header.is_object()) throw_bad_input("{}: the header is {}, expected an object", description_, json_type(header));

  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      entries_.push_back(read_entry(name, value, description_));  // in order of name: the parser sorts
      continue;
    }
    if (!value.is_object())
      throw_bad_input("{}: '__metadata__' is {}, expected an object", description_, json_type(value));
    for (const auto& [key, entry] : value.items()) {
      if (!entry.is_string()) {
        throw_bad_input("{}: '__metadata__' entry '{}' is {}, expected a string", description_, shorten(key),
                        json_type(entry));
      }
      metadata_[key] = entry.get<std::string>();
    }
  }
  const uint64_t data_begin = kLengthBytes + header_bytes;
  check_tiling(entries_, bytes.size() - data_begin, description_);
  for (SafetensorsEntry& entry : entries_) {
    entry.offset_bytes += data_begin;
    const std::span<const std::byte> span = bytes.subspan(entry.offset_bytes, entry.size_bytes);
    entry.data = span.data();
    if (reinterpret_cast<uintptr_t>(span.data()) % dtype_bytes(entry.dtype) != 0) {
      storage_->aligned.emplace_back(span.begin(), span.end());
      // An empty vector has no memory of its own, and an empty tensor needs only a pointer that is not null.
      if (!span.empty()) entry.data = storage_->aligned.back().data();
    }
  }
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), name,
                       [](const SafetensorsEntry& entry, std::string_view key) { return entry.name < key; });
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

Tensor SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) throw_bad_input("{}: no tensor '{}' among {}", description_, shorten(name), entries_.size());
  return tensor_of(*entry);
}

void SafetensorsFile::prefetch(const SafetensorsEntry& entry) const {
  if (storage_->mapping == nullptr || entry.size_bytes == 0) return;
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = entry.offset_bytes / page * page;
  ::madvise(static_cast<std::byte*>(storage_->mapping) + begin, entry.offset_bytes + entry.size_bytes - begin,
            MADV_WILLNEED);
}

Tensor tensor_of(const SafetensorsEntry& entry) {
  return {entry.dtype, entry.shape, const_cast<void*>(static_cast<const void*>(entry.data))};
}

std::vector<double> to_doubles(const Tensor& tensor) {
  TENDON_CHECK(tensor.contiguous(), "to_doubles of a strided view {}", to_string(tensor.shape));
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  const auto fill = [&](auto convert) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = convert(i);
  };
  switch (tensor.dtype) {
    case DType::kF32:
      fill([&](size_t i) { return static_cast<double>(tensor.as<const float>()[i]); });
      break;
    case DType::kF64:
      fill([&](size_t i) { return tensor.as<const double>()[i]; });
      break;
    case DType::kBf16:
      fill([&](size_t i) { return static_cast<double>(to_float(tensor.as<const Bf16>()[i])); });
      break;
    case DType::kF16:
      fill([&](size_t i) { return static_cast<double>(half_to_float(tensor.as<const uint16_t>()[i])); });
      break;
    case DType::kI64:
      fill([&](size_t i) { return static_cast<double>(tensor.as<const int64_t>()[i]); });
      break;
    case DType::kI32:
      fill([&](size_t i) { return static_cast<double>(tensor.as<const int32_t>()[i]); });
      break;
    case DType::kU8:
    case DType::kBool:
      fill([&](size_t i) { return static_cast<double>(tensor.as<const uint8_t>()[i]); });
      break;
    case DType::kE4m3:
    case DType::kI8:
      TENDON_CHECK(false, "files hold no {}", dtype_name(tensor.dtype));
  }
  return values;
}

// -------------------------------------------------------------------------------------------------------------- writer

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, const std::vector<SafetensorsSpec>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), partial_path_(path_) {
  partial_path_ += ".partial";
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const SafetensorsSpec& spec : tensors) {
    if (spec.name == "__metadata__" || header.contains(spec.name)) {
      throw_bad_use("{}: cannot write a tensor called '{}': the name is taken", path_.string(), spec.name);
    }
    std::vector<int64_t> dims;
    for (int axis = 0; axis < spec.shape.rank(); ++axis) dims.push_back(spec.shape[axis]);
    const uint64_t begin = data_bytes_;
    data_bytes_ += static_cast<uint64_t>(spec.shape.elements()) * dtype_bytes(spec.dtype);
    header[spec.name] = {{"dtype", word_of(spec.dtype)}, {"shape", dims}, {"data_offsets", {begin, data_bytes_}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  file_ = ::open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) throw_bad_input("{}: cannot be written: {}", partial_path_.string(), system_message());
  std::byte length[kLengthBytes];
  for (size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<std::byte>(text.size() >> (8 * i));
  try {
    write(length, sizeof(length));
    write(text.data(), text.size());
  } catch (...) {  // no destructor runs for an object that was never complete
    discard();
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() { discard(); }

void SafetensorsWriter::discard() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(partial_path_.c_str());
  file_ = -1;
}

void SafetensorsWriter::write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(file_, next, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) throw_bad_input("{}: cannot be written: {}", partial_path_.string(), system_message());
    next += done;
    bytes -= static_cast<size_t>(done);
  }
}

void SafetensorsWriter::append(std::span<const std::byte> chunk) {
  if (file_ < 0 || chunk.size() > missing_bytes()) {
    throw_bad_use("{}: {} bytes appended where {} are missing", path_.string(), chunk.size(), missing_bytes());
  }
  write(chunk.data(), chunk.size());
  written_bytes_ += chunk.size();
}

void SafetensorsWriter::finish() {
  if (file_ < 0) throw_bad_use("{}: finished twice", path_.string());
  if (missing_bytes() > 0) {
    throw_bad_use("{}: {} of {} data bytes are missing", path_.string(), missing_bytes(), data_bytes_);
  }
  const int file = std::exchange(file_, -1);
  if (::close(file) != 0 || ::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    const std::string trouble = system_message();
    ::unlink(partial_path_.c_str());
    throw_bad_input("{}: cannot be written: {}", path_.string(), trouble);
  }
}

}  // namespace tendon
