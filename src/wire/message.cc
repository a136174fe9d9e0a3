#include "wire/message.h"

#include <bit>
#include <charconv>
#include <limits>

#define MSGPACK_NO_BOOST
#include <msgpack.hpp>

#include "base/check.h"

namespace tendon {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are written in the machine's byte order");

constexpr size_t kMaxRank = 8;

std::string shown(std::string_view text) {
  std::string result(text.substr(0, 60));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return text.size() > 60 ? result + "..." : result;
}

std::string_view text_or_bytes(const WireValue* value) {
  if (value == nullptr) return {};
  if (const auto* text = value->get_if<std::string_view>()) return *text;
  if (const auto* bytes = value->get_if<WireBytes>())
    return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
  return {};
}

bool is_supported(char kind, int64_t size) {
  switch (kind) {
    case 'b':
      return size == 1;
    case 'i':
    case 'u':
      return size == 1 || size == 2 || size == 4 || size == 8;
    case 'f':
      return size == 2 || size == 4 || size == 8;
    case 'S':
    case 'U':
      return size >= 0 && size <= (int64_t{1} << 28);
    default:
      return false;
  }
}

// "<f4" into kind, size and byte order.
WireArray parse_dtype(std::string_view dtype, const std::string& path) {
  WireArray array;
  std::string_view rest = dtype;
  char order = '|';
  if (!rest.empty() && std::string_view("<>|=").find(rest[0]) != std::string_view::npos) {
    order = rest[0];
    rest.remove_prefix(1);
  }
  int64_t size = 0;
  const bool parsed = rest.size() >= 2 && [&] {
    const auto result = std::from_chars(rest.data() + 1, rest.data() + rest.size(), size);
    return result.ec == std::errc{} && result.ptr == rest.data() + rest.size();
  }();
  if (!parsed || !is_supported(rest[0], size)) {
    throw_bad_input(
        "'{}' is an array of dtype '{}', which cannot be read. Send integers, booleans, float16, float32, float64 or "
        "text.",
        path, shown(dtype));
  }
  array.kind = rest[0];
  array.item_bytes = static_cast<int>(array.kind == 'U' ? size * 4 : size);
  array.big_endian = order == '>';
  return array;
}

WireArray make_array(const WireMap& map, std::string_view dtype_key, const std::string& path) {
  for (const std::string_view needed : {dtype_key, std::string_view("data")}) {
    if (find_key(map, needed) == nullptr) throw_bad_input("'{}' is an array without its entry '{}'.", path, needed);
  }
  WireArray array = parse_dtype(text_or_bytes(find_key(map, dtype_key)), path);
  const auto* data = find_key(map, "data")->get_if<WireBytes>();
  if (data == nullptr)
    throw_bad_input("'{}' is an array whose data is {}, not bytes.", path, find_key(map, "data")->describe());
  int64_t bytes = array.item_bytes;
  if (const WireValue* const shape = find_key(map, "shape")) {
    const auto* dims = shape->get_if<WireList>();
    if (dims == nullptr || dims->size() > kMaxRank)
      throw_bad_input("'{}' is an array whose shape is not a list of at most {} integers.", path, kMaxRank);
    for (const WireValue& dim : *dims) {
      const auto* size = dim.get_if<int64_t>();
      if (size == nullptr || *size < 0)
        throw_bad_input("'{}' is an array whose shape has an entry that is no size.", path);
      array.shape.push_back(*size);
    }
    bool is_empty = false;
    for (const int64_t dim : array.shape) is_empty = is_empty || dim == 0;
    for (const int64_t dim : array.shape) {
      if (!is_empty && __builtin_mul_overflow(bytes, dim, &bytes))
        throw_bad_input("'{}' is an array whose shape is larger than any memory.", path);
    }
    if (is_empty) bytes = 0;
  }
  if (static_cast<uint64_t>(bytes) > data->size()) {
    throw_bad_input("'{}' is an array {} whose shape needs {} bytes, but its data has {}.", path, array.dtype_text(),
                    bytes, data->size());
  }
  array.data = data->first(static_cast<size_t>(bytes));
  return array;
}

bool is_true(const WireValue* value) {
  const bool* const flag = value == nullptr ? nullptr : value->get_if<bool>();
  return flag != nullptr && *flag;
}

// A map of the message, or the array or number that it stands for.
WireValue interpret(WireMap&& map, const std::string& path) {
  if (find_key(map, "__ndarray__") != nullptr) {
    if (find_key(map, "shape") == nullptr) throw_bad_input("'{}' is an array without its entry 'shape'.", path);
    return {make_array(map, "dtype", path)};
  }
  if (find_key(map, "__npgeneric__") != nullptr) {
    const WireValue* const data = find_key(map, "data");
    if (data == nullptr) throw_bad_input("'{}' is a NumPy number without its entry 'data'.", path);
    return *data;
  }
  const WireValue* const marker = find_key(map, "nd");
  if (marker != nullptr && marker->get_if<bool>() != nullptr) {
    const std::string_view kind = text_or_bytes(find_key(map, "kind"));
    if (kind == "O" || kind == "V") {
      throw_bad_input("'{}' is an array of dtype kind '{}' (objects or structures), which cannot be read.", path, kind);
    }
    return {make_array(map, "type", path)};
  }
  if (is_true(find_key(map, "complex"))) throw_bad_input("'{}' is a complex number, which cannot be read.", path);
  return {std::move(map)};
}

class Decoder : public msgpack::null_visitor {
 public:
  Decoder(const WireLimits& limits, bool may_be_cut) : limits_(limits), may_be_cut_(may_be_cut) {}

  // The object, or what there is of it.
  WireValue take() {
    while (!frames_.empty()) {
      Frame open = std::move(frames_.back());
      frames_.pop_back();
      put_closed(open.is_map ? WireValue{std::move(open.map)} : WireValue{std::move(open.list)});
    }
    return std::move(result_);
  }

  bool visit_nil() { return put({std::monostate{}}); }
  bool visit_boolean(bool value) { return put({value}); }
  bool visit_positive_integer(uint64_t value) {
    if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return put({static_cast<int64_t>(value)});
    return put({value});
  }
  bool visit_negative_integer(int64_t value) { return put({value}); }
  bool visit_float32(float value) { return put({double{value}}); }
  bool visit_float64(double value) { return put({value}); }
  bool visit_str(const char* data, uint32_t size) {
    const std::string_view text(data, size);
    return reads_key() ? set_key(text) : put({text});
  }
  bool visit_bin(const char* data, uint32_t size) {
    if (reads_key()) return set_key({data, size});
    return put({WireBytes(reinterpret_cast<const std::byte*>(data), size)});
  }
  bool visit_ext(const char*, uint32_t) {
    throw_bad_input("'{}' is a msgpack extension value, which cannot be read.", path());
  }
  bool start_array(uint32_t) { return open(false); }
  bool end_array() {
    WireList list = std::move(frames_.back().list);
    frames_.pop_back();
    return put_closed({std::move(list)});
  }
  bool start_map(uint32_t) { return open(true); }
  bool start_map_key() {
    frames_.back().reads_key = true;
    return true;
  }
  bool end_map_key() {
    frames_.back().reads_key = false;
    return true;
  }
  bool end_map() {
    WireMap map = std::move(frames_.back().map);
    frames_.pop_back();
    return put_closed(interpret(std::move(map), path()));
  }
  void parse_error(size_t, size_t at) { throw_bad_input("the message is not msgpack: byte {} begins no value.", at); }
  void insufficient_bytes(size_t, size_t at) {
    if (may_be_cut_) return;
    throw_bad_input("the message is cut short: it ends after {} bytes, inside a value.", at);
  }

 private:
  struct Frame {
    bool is_map = false, reads_key = false;
    std::string_view key;
    WireMap map;
    WireList list;
  };

  bool reads_key() const { return !frames_.empty() && frames_.back().reads_key; }

  // Keys of the maps around the value being read.
  std::string path() const {
    std::string text;
    for (const Frame& frame : frames_) {
      if (frame.is_map && !frame.key.empty()) text += (text.empty() ? "" : "/") + shown(frame.key);
    }
    return text.empty() ? "message" : text;
  }

  bool set_key(std::string_view key) {
    count();
    frames_.back().key = key;
    return true;
  }
  void count() {
    if (++values_ > limits_.max_values) {
      throw_bad_input("the message has more than {} values. Send pictures and other large data as NumPy arrays.",
                      limits_.max_values);
    }
  }
  void require_no_key() const {
    if (reads_key()) throw_bad_input("'{}' has a map key that is neither text nor bytes.", path());
  }
  bool open(bool is_map) {
    require_no_key();
    count();
    if (frames_.size() >= limits_.max_depth)
      throw_bad_input("'{}' is nested deeper than {} levels.", path(), limits_.max_depth);
    frames_.emplace_back().is_map = is_map;
    return true;
  }
  bool put(WireValue&& value) {
    require_no_key();
    count();
    return put_closed(std::move(value));
  }
  bool put_closed(WireValue&& value) {
    if (frames_.empty()) {
      result_ = std::move(value);
    } else if (frames_.back().is_map) {
      frames_.back().map.push_back({frames_.back().key, std::move(value)});
    } else {
      frames_.back().list.push_back(std::move(value));
    }
    return true;
  }

  WireLimits limits_;
  bool may_be_cut_;
  size_t values_ = 0;
  std::vector<Frame> frames_;
  WireValue result_;
};

// What msgpack::packer writes into.
struct StringStream {
  std::string& out;
  void write(const char* data, size_t size) { out.append(data, size); }
};

msgpack::packer<StringStream> packer(StringStream& stream) { return msgpack::packer<StringStream>(stream); }

void pack_marker(msgpack::packer<StringStream>& packer, std::string_view key) {
  packer.pack_bin(static_cast<uint32_t>(key.size()));
  packer.pack_bin_body(key.data(), static_cast<uint32_t>(key.size()));
}

void pack_text(msgpack::packer<StringStream>& packer, std::string_view text) {
  packer.pack_str(static_cast<uint32_t>(text.size()));
  packer.pack_str_body(text.data(), static_cast<uint32_t>(text.size()));
}

void pack_bytes(msgpack::packer<StringStream>& packer, std::span<const std::byte> bytes) {
  packer.pack_bin(static_cast<uint32_t>(bytes.size()));
  packer.pack_bin_body(reinterpret_cast<const char*>(bytes.data()), static_cast<uint32_t>(bytes.size()));
}

}  // namespace

WireValue decode_message(std::span<const std::byte> message, const WireLimits& limits) {
  if (message.empty()) throw_bad_input("the message is empty; a msgpack map was expected.");
  Decoder decoder(limits, false);
  size_t offset = 0;
  // Nothing but the end of the bytes makes this return false: the decoder throws.
  if (!msgpack::parse(reinterpret_cast<const char*>(message.data()), message.size(), offset, decoder))
    throw_bad_input("the message is not msgpack.");
  if (offset != message.size()) {
    throw_bad_input("the message goes on after its object: {} of {} bytes belong to it.", offset, message.size());
  }
  return decoder.take();
}

WireValue decode_begun(std::span<const std::byte> begun, const WireLimits& limits) {
  Decoder decoder(limits, true);
  size_t offset = 0;
  msgpack::parse(reinterpret_cast<const char*>(begun.data()), begun.size(), offset, decoder);
  return decoder.take();
}

WireWriter& WireWriter::map(size_t entries) {
  StringStream stream{out_};
  packer(stream).pack_map(static_cast<uint32_t>(entries));
  return *this;
}

WireWriter& WireWriter::list(size_t items) {
  StringStream stream{out_};
  packer(stream).pack_array(static_cast<uint32_t>(items));
  return *this;
}

WireWriter& WireWriter::text(std::string_view value) {
  StringStream stream{out_};
  auto pack = packer(stream);
  pack_text(pack, value);
  return *this;
}

WireWriter& WireWriter::bytes(std::span<const std::byte> value) {
  StringStream stream{out_};
  auto pack = packer(stream);
  pack_bytes(pack, value);
  return *this;
}

// By hand: the library writes a double that is a whole number as an integer, which Python would read as int.
WireWriter& WireWriter::number(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  out_ += static_cast<char>(0xcb);
  for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>((bits >> shift) & 0xff);
  return *this;
}

WireWriter& WireWriter::integer(int64_t value) {
  StringStream stream{out_};
  packer(stream).pack_int64(value);
  return *this;
}

WireWriter& WireWriter::boolean(bool value) {
  StringStream stream{out_};
  auto pack = packer(stream);
  value ? pack.pack_true() : pack.pack_false();
  return *this;
}

WireWriter& WireWriter::array(std::string_view dtype, std::span<const int64_t> shape, std::span<const std::byte> data) {
  StringStream stream{out_};
  auto pack = packer(stream);
  pack.pack_map(4);
  pack_marker(pack, "__ndarray__");
  pack.pack_true();
  pack_marker(pack, "data");
  pack_bytes(pack, data);
  pack_marker(pack, "dtype");
  pack_text(pack, dtype);
  pack_marker(pack, "shape");
  pack.pack_array(static_cast<uint32_t>(shape.size()));
  for (const int64_t dim : shape) pack.pack_int64(dim);
  return *this;
}

}  // namespace tendon
