#include "policy/tokenizer.h"

#include <sentencepiece_processor.h>

#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "policy/files/file.h"

namespace tendon {
namespace {

constexpr size_t kMaxModelBytes = size_t{64} << 20;

// The few settings of a SentencePiece ModelProto that decide how text becomes ids, with the defaults that hold when a
// field is absent from the file (sentencepiece_model.proto).
struct ModelSettings {
  int pieces = 0;
  std::string charsmap;
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  int64_t unk_id = 0;
  int64_t bos_id = 1;
  int64_t eos_id = 2;
  int64_t pad_id = -1;
};

// Reads protobuf's wire format field by field; every step is checked against the end of the data.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view data) : data_(data) {}

  // Moves to the next field; false at the end of the data or when it is malformed (see ok()).
  bool next() {
    if (!ok_ || data_.empty()) return false;
    const uint64_t key = read_varint();
    field_ = key >> 3;
    number_ = 0;
    bytes_ = {};
    switch (key & 7) {
      case 0:
        number_ = read_varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        bytes_ = take(read_varint());
        break;
      case 5:
        take(4);
        break;
      default:
        ok_ = false;
    }
    return ok_ && field_ != 0;
  }

  bool ok() const { return ok_ && data_.empty(); }
  uint64_t field() const { return field_; }
  bool flag() const { return number_ != 0; }
  int64_t number() const { return static_cast<int32_t>(number_); }
  std::string_view bytes() const { return bytes_; }

 private:
  uint64_t read_varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !data_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(data_.front());
      data_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }

  std::string_view take(uint64_t count) {
    if (!ok_ || count > data_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = data_.substr(0, static_cast<size_t>(count));
    data_.remove_prefix(static_cast<size_t>(count));
    return taken;
  }

  std::string_view data_;
  bool ok_ = true;
  uint64_t field_ = 0;
  uint64_t number_ = 0;
  std::string_view bytes_;
};

bool read_trainer_spec(std::string_view data, ModelSettings& settings) {
  ProtoReader reader(data);
  while (reader.next()) {
    if (reader.field() == 24) settings.whitespace_as_suffix = reader.flag();
    if (reader.field() == 35) settings.byte_fallback = reader.flag();
    if (reader.field() == 40) settings.unk_id = reader.number();
    if (reader.field() == 41) settings.bos_id = reader.number();
    if (reader.field() == 42) settings.eos_id = reader.number();
    if (reader.field() == 43) settings.pad_id = reader.number();
  }
  return reader.ok();
}

bool read_normalizer_spec(std::string_view data, ModelSettings& settings) {
  ProtoReader reader(data);
  while (reader.next()) {
    if (reader.field() == 2) settings.charsmap = reader.bytes();
    if (reader.field() == 3) settings.add_dummy_prefix = reader.flag();
    if (reader.field() == 4) settings.remove_extra_whitespaces = reader.flag();
    if (reader.field() == 5) settings.escape_whitespaces = reader.flag();
  }
  return reader.ok();
}

// Nothing if `data` is not a ModelProto with pieces and both specs.
std::optional<ModelSettings> read_settings(std::string_view data) {
  ModelSettings settings;
  bool has_trainer = false;
  bool has_normalizer = false;
  ProtoReader reader(data);
  while (reader.next()) {
    if (reader.field() == 1) ++settings.pieces;
    if (reader.field() == 2) {
      has_trainer = true;
      if (!read_trainer_spec(reader.bytes(), settings)) return std::nullopt;
    }
    if (reader.field() == 3) {
      has_normalizer = true;
      if (!read_normalizer_spec(reader.bytes(), settings)) return std::nullopt;
    }
  }
  if (!reader.ok() || !has_trainer || !has_normalizer || settings.pieces <= kUnknownToken) return std::nullopt;
  return settings;
}

void check_setting(const std::string& path, std::string_view setting, int64_t found, int64_t wanted) {
  if (found == wanted) return;
  throw_bad_input(
      "tokenizer model '{}' has {} = {}, but PaliGemma's tokenizer has {} = {}. Its ids would mean other words to the "
      "model: give paligemma_tokenizer.model.",
      path, setting, found, setting, wanted);
}

void check_settings(const std::string& path, const ModelSettings& settings) {
  check_setting(path, "normalizer_spec.precompiled_charsmap bytes (identity normalizer)",
                static_cast<int64_t>(settings.charsmap.size()), 0);
  check_setting(path, "normalizer_spec.add_dummy_prefix", settings.add_dummy_prefix, false);
  check_setting(path, "normalizer_spec.remove_extra_whitespaces", settings.remove_extra_whitespaces, false);
  check_setting(path, "normalizer_spec.escape_whitespaces", settings.escape_whitespaces, true);
  check_setting(path, "trainer_spec.treat_whitespace_as_suffix", settings.whitespace_as_suffix, false);
  check_setting(path, "trainer_spec.byte_fallback", settings.byte_fallback, true);
  check_setting(path, "trainer_spec.pad_id", settings.pad_id, kPadToken);
  check_setting(path, "trainer_spec.eos_id", settings.eos_id, kEosToken);
  check_setting(path, "trainer_spec.bos_id", settings.bos_id, kBosToken);
  check_setting(path, "trainer_spec.unk_id", settings.unk_id, kUnknownToken);
}

// The UTF-8 forms of the characters that Python's str.isspace accepts.
constexpr std::array<std::string_view, 29> kSpaces = {
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

size_t leading_space(std::string_view text) {
  for (const std::string_view space : kSpaces) {
    if (text.starts_with(space)) return space.size();
  }
  return 0;
}

size_t trailing_space(std::string_view text) {
  for (const std::string_view space : kSpaces) {
    if (text.ends_with(space)) return space.size();
  }
  return 0;
}

PromptTokens cut(std::vector<int32_t> ids, int max_tokens) {
  TENDON_CHECK(max_tokens > 0, "a prompt budget of {} tokens", max_tokens);
  PromptTokens result{std::move(ids), 0};
  if (result.ids.size() > static_cast<size_t>(max_tokens)) {
    result.truncated_from = static_cast<int>(result.ids.size());
    result.ids.resize(static_cast<size_t>(max_tokens));
  }
  return result;
}

}  // namespace

std::string clean_prompt(std::string_view text) {
  for (size_t bytes = leading_space(text); bytes != 0; bytes = leading_space(text)) text.remove_prefix(bytes);
  for (size_t bytes = trailing_space(text); bytes != 0; bytes = trailing_space(text)) text.remove_suffix(bytes);
  std::string cleaned(text);
  for (char& c : cleaned) {
    if (c == '_' || c == '\n') c = ' ';
  }
  return cleaned;
}

int state_bin(double x) {
  if (std::isnan(x) || x >= 1.0) return 255;
  if (x < -1.0) return -1;
  return static_cast<int>(std::floor(x * 128.0)) + 128;  // exact: the scale is a power of two
}

std::string pi05_text(std::string_view prompt, std::span<const double> normalized_state) {
  std::string text = fmt::format("Task: {}, State: ", clean_prompt(prompt));
  for (size_t i = 0; i < normalized_state.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : " ", state_bin(normalized_state[i]));
  }
  return text + ";\nAction: ";
}

Tokenizer::Tokenizer(const std::string& path) {
  const std::string model = read_small_file(path, kMaxModelBytes, "tokenizer model");
  const std::optional<ModelSettings> settings = read_settings(model);
  if (!settings) {
    throw_bad_input(
        "tokenizer model '{}' is not a SentencePiece model, or it is damaged. Give paligemma_tokenizer.model, the file "
        "that PaliGemma and openpi use.",
        path);
  }
  check_settings(path, *settings);
  processor_ = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = processor_->LoadFromSerializedProto(model);
  if (!status.ok()) {
    throw_bad_input("tokenizer model '{}' cannot be loaded: {}. Give paligemma_tokenizer.model.", path,
                    status.ToString());
  }
  vocab_size_ = settings->pieces;
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int> ids;
  const auto status = processor_->Encode(absl::string_view(text.data(), text.size()), &ids);
  if (!status.ok()) throw_bad_input("the prompt cannot be tokenized: {}.", status.ToString());
  return ids;
}

PromptTokens Tokenizer::pi0_tokens(std::string_view prompt, int max_tokens) const {
  std::vector<int32_t> ids = {kBosToken};
  const std::string cleaned = clean_prompt(prompt);
  for (const std::string_view part : {std::string_view(cleaned), std::string_view("\n")}) {
    const std::vector<int32_t> part_ids = encode(part);
    ids.insert(ids.end(), part_ids.begin(), part_ids.end());
  }
  return cut(std::move(ids), max_tokens);
}

PromptTokens Tokenizer::pi05_tokens(std::string_view prompt, std::span<const double> normalized_state,
                                    int max_tokens) const {
  std::vector<int32_t> ids = {kBosToken};
  const std::vector<int32_t> text_ids = encode(pi05_text(prompt, normalized_state));
  ids.insert(ids.end(), text_ids.begin(), text_ids.end());
  return cut(std::move(ids), max_tokens);
}

}  // namespace tendon
