// Prompt text to token ids, with the user's PaliGemma SentencePiece file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace tendon {

inline constexpr int32_t kPadToken = 0;
inline constexpr int32_t kEosToken = 1;
inline constexpr int32_t kBosToken = 2;
inline constexpr int32_t kUnknownToken = 3;
inline constexpr int kPaliGemmaVocabSize = 257152;

// Token ids of one prompt, BOS first, without padding.
struct PromptTokens {
  std::vector<int32_t> ids;
  int truncated_from = 0;  // tokens before the cut; 0 if nothing was cut
};

// `text` without Unicode white space at both ends (as Python's str.strip), then '_' and newline replaced by a space.
// Case and inner runs of spaces stay. Source: openpi models/tokenizer.py.
std::string clean_prompt(std::string_view text);

// The bin of a normalised state value: (number of edges -1 + i/128, i = 0..255, that are <= x) - 1. So -1 for every
// x < -1, 0 at -1, 128 at 0, 255 from 1 - 1/128 up and for NaN. Source: openpi PaligemmaTokenizer (numpy.digitize).
int state_bin(double x);

// The π0.5 text "Task: {clean_prompt}, State: {bins joined by single spaces};\nAction: ".
std::string pi05_text(std::string_view prompt, std::span<const double> normalized_state);

class Tokenizer {
 public:
  // Loads a SentencePiece model file (paligemma_tokenizer.model). Throws kBadInput if it cannot be read or parsed, or
  // if a setting differs from PaliGemma's (identity normalizer, no dummy prefix, white space kept and escaped, byte
  // fallback, pad 0, eos 1, bos 2, unk 3), naming the setting.
  explicit Tokenizer(const std::string& path);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Number of pieces; PaliGemma has kPaliGemmaVocabSize.
  int vocab_size() const { return vocab_size_; }

  // Ids of `text` as it stands, no BOS or EOS; empty for empty text. A malformed UTF-8 byte counts as U+FFFD.
  // Safe to call from several threads.
  std::vector<int32_t> encode(std::string_view text) const;

  // BOS + encode(clean_prompt(prompt)) + encode("\n"), cut on the right to `max_tokens` (openpi: 48).
  PromptTokens pi0_tokens(std::string_view prompt, int max_tokens = 48) const;

  // BOS + encode(pi05_text(prompt, normalized_state)), cut on the right to `max_tokens` (openpi: 200). The state is
  // the robot's own width (14 ALOHA, 8 DROID), quantile-normalised and not padded.
  PromptTokens pi05_tokens(std::string_view prompt, std::span<const double> normalized_state,
                           int max_tokens = 200) const;

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  int vocab_size_ = 0;
};

}  // namespace tendon
