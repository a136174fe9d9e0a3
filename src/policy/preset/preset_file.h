// A robot of the user's own, described in a JSON file in place of a preset's name. docs/serving.md has the fields.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policy/preset/presets.h"

namespace tendon {

// A preset with the memory that it refers to.
class PresetFile {
 public:
  // `where` is for messages. Throws Error(kBadInput) naming the file, the field, what it holds and what is wanted:
  // malformed JSON, a field that is missing, unknown, of another kind or out of range, fields that do not go together.
  static PresetFile parse(std::string_view text, const std::string& where);

  const Preset& preset() const { return content_->preset; }

 private:
  struct Content {
    Preset preset;
    Robot robot;
    std::deque<std::string> texts;  // what the string_views show
    std::vector<int> delta_runs;
    std::vector<double> reset_pose;
  };
  friend class PresetReader;
  std::unique_ptr<Content> content_ = std::make_unique<Content>();
};

// What --preset names: a published configuration, or a file (a name that ends in .json).
class PresetChoice {
 public:
  // Throws as find_preset and PresetFile::parse do.
  explicit PresetChoice(const std::string& name);
  const Preset& preset() const { return *preset_; }

 private:
  std::unique_ptr<PresetFile> file_;
  const Preset* preset_ = nullptr;
};

}  // namespace tendon
