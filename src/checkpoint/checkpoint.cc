#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"
#include "checkpoint/json_text.h"
#include "checkpoint/key_styles.h"

namespace tendon {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr int64_t kMaxStatsElements = 65536;
constexpr int64_t kComparedRows = 8192;  // of two embedding tables; all rows of anything smaller

bool is_shard_name(std::string_view name) {
  return name.starts_with("model-") && name.ends_with(".safetensors") && name.find("-of-") != std::string_view::npos;
}

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

std::vector<std::string> list_directory(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void refuse_empty_directory(const fs::path& directory, const std::vector<std::string>& names) {
  std::string hint = "Give the directory that holds the weights, or the path of a .safetensors file.";
  for (const std::string& name : names) {
    std::error_code error;
    if (is_shard_name(name)) {
      hint = fmt::format("There are shards ({}) but no {}: download the index too.", name, kIndexFile);
    } else if (name == "params") {
      hint = "params/ looks like a JAX checkpoint: convert it with openpi's convert_jax_model_to_pytorch.py first.";
    } else if (fs::exists(directory / name / kSingleFile, error)) {
      hint = fmt::format("{} has the file; give that directory.", (directory / name).string());
    }
  }
  throw_bad_input("{}: no weights here: neither {} nor {} exists. {}", directory.string(), kSingleFile, kIndexFile,
                  hint);
}

// The shards that the index names, each checked to hold exactly the tensors that the index says.
std::vector<SafetensorsFile> open_shards(const fs::path& directory) {
  const fs::path index_path = directory / kIndexFile;
  const std::map<std::string, std::string> index = parse_shard_index(read_text_file(index_path), index_path.string());
  std::map<std::string, size_t> tensors;  // per shard
  for (const auto& [name, shard] : index) ++tensors[shard];
  std::vector<SafetensorsFile> files;
  for (const auto& [shard, count] : tensors) {
    std::error_code error;
    if (!fs::exists(directory / shard, error)) {
      throw_bad_input("{}: the shard {} is missing; {} lists {} tensors in it. Download the rest of the checkpoint.",
                      directory.string(), shard, kIndexFile, count);
    }
    files.push_back(SafetensorsFile::open(directory / shard));
    size_t listed = 0;
    for (const SafetensorsEntry& entry : files.back().entries()) {
      const auto found = index.find(entry.name);
      if (found == index.end() || found->second != shard) {
        throw_bad_input("{}: tensor '{}' is in {} but {} does not list it there; the files are of different saves",
                        directory.string(), shorten(entry.name), shard, kIndexFile);
      }
      ++listed;
    }
    if (listed == count) continue;
    for (const auto& [name, file] : index) {
      if (file == shard && !files.back().contains(name)) {
        throw_bad_input("{}: tensor '{}' is not in {} although {} lists it there; the files are of different saves",
                        directory.string(), shorten(name), shard, kIndexFile);
      }
    }
  }
  return files;
}

// Whether two tensors hold the same numbers. Tables of more than kComparedRows rows are compared on that many rows
// spread evenly: only a warning depends on the answer, and reading two gigabytes for it would slow every start.
bool same_values(const Tensor& a, const Tensor& b) {
  if (a.shape != b.shape) return false;
  const int64_t rows = a.rows();
  const int64_t compared = std::min(rows, kComparedRows);
  for (int64_t i = 0; i < compared; ++i) {
    const int64_t row = rows / compared * i + rows % compared * i / compared;
    const Tensor row_a = a.row_range(row, 1);
    const Tensor row_b = b.row_range(row, 1);
    const bool same = a.dtype == b.dtype ? std::memcmp(row_a.data, row_b.data, row_a.bytes()) == 0
                                         : to_doubles(row_a) == to_doubles(row_b);
    if (!same) return false;
  }
  return true;
}

}  // namespace

std::map<std::string, std::string> parse_shard_index(std::string_view text, const std::string& where) {
  const nlohmann::ordered_json json = parse_json(text, where);
  const auto weight_map = json.is_object() ? json.find("weight_map") : json.end();
  if (weight_map == json.end() || !weight_map->is_object() || weight_map->empty()) {
    throw_bad_input("{}: no object 'weight_map' that says which shard holds which tensor; download the index again",
                    where);
  }
  std::map<std::string, std::string> index;
  for (const auto& [name, shard] : weight_map->items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      throw_bad_input(
          "{}: weight_map['{}'] is {}, expected the name of a file in the same directory", where, shorten(name),
          shard.is_string() ? "'" + shorten(shard.get_ref<const std::string&>()) + "'" : std::string(json_type(shard)));
    }
    index[name] = shard.get<std::string>();
  }
  return index;
}

std::unique_ptr<Checkpoint> Checkpoint::open(const fs::path& path, const LogSink& log) {
  std::error_code error;
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  checkpoint->path_ = path;
  checkpoint->description_ = path.string();
  if (!fs::exists(path, error)) {
    throw_bad_input("{}: no such file or directory. Give a checkpoint directory or the path of a .safetensors file.",
                    path.string());
  }
  if (!fs::is_directory(path, error)) {
    if (path.extension() != ".safetensors") {
      throw_bad_input("{}: a checkpoint directory or a .safetensors file is expected", path.string());
    }
    checkpoint->directory_ = path.has_parent_path() ? path.parent_path() : fs::path(".");
    checkpoint->config_ = load_checkpoint_config(checkpoint->directory_, log);
    checkpoint->files_.push_back(SafetensorsFile::open(path));
  } else {
    checkpoint->directory_ = path;
    const std::vector<std::string> names = list_directory(path);
    const bool single = std::count(names.begin(), names.end(), kSingleFile) > 0;
    const bool sharded = std::count(names.begin(), names.end(), kIndexFile) > 0;
    if (!single && !sharded) refuse_empty_directory(path, names);
    checkpoint->config_ = load_checkpoint_config(path, log);
    if (single) {
      if (sharded || std::any_of(names.begin(), names.end(), is_shard_name)) {
        log_info(log, "{}: both {} and shards are here; {} is used and the shards are not", path.string(), kSingleFile,
                 kSingleFile);
      }
      checkpoint->files_.push_back(SafetensorsFile::open(path / kSingleFile));
    } else {
      checkpoint->files_ = open_shards(path);
    }
  }
  checkpoint->index(log);
  return checkpoint;
}

std::unique_ptr<Checkpoint> Checkpoint::from_files(std::vector<SafetensorsFile> files, CheckpointConfig config,
                                                   const LogSink& log) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  checkpoint->description_ = files.empty() ? "checkpoint" : files.front().description();
  checkpoint->files_ = std::move(files);
  checkpoint->config_ = std::move(config);
  checkpoint->index(log);
  return checkpoint;
}

void Checkpoint::index(const LogSink& log) {
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsEntry& entry : file.entries()) {
      KeyMapping mapping = map_key(entry.name);
      switch (mapping.kind) {
        case KeyKind::kWeight:
          add_weight(std::move(mapping.canonical), {&file, &entry});
          break;
        case KeyKind::kIgnored:
          ignored_.push_back({entry.name, std::string(mapping.note)});
          break;
        case KeyKind::kStats:
          if (entry.shape.elements() > kMaxStatsElements) {
            throw_bad_input("{}: tensor '{}' of shape {} is too large for a normalisation statistic",
                            file.description(), shorten(entry.name), to_string(entry.shape));
          }
          if (!stats_buffers_.emplace(mapping.canonical, to_doubles(tensor_of(entry))).second) {
            throw_bad_input("{}: the statistic '{}' is stored twice, with and without a leading 'model.'",
                            file.description(), shorten(mapping.canonical));
          }
          break;
        case KeyKind::kRefused:
          throw_bad_input("{}: tensor '{}' is {}", file.description(), shorten(entry.name), mapping.note);
      }
    }
  }
  settle_embedding(log);
  settle_time_mlp();
  settle_state_proj();
  check_dtypes();
  for (const auto& [name, weight] : weights_) names_.push_back(name);
  std::sort(ignored_.begin(), ignored_.end(),
            [](const IgnoredTensor& a, const IgnoredTensor& b) { return a.stored_name < b.stored_name; });
}

void Checkpoint::add_weight(std::string canonical, Weight weight) {
  const auto [found, added] = weights_.emplace(std::move(canonical), weight);
  if (added) return;
  throw_bad_input("{}: '{}' and '{}' are both names of the tensor '{}'; one of them must go", description_,
                  shorten(found->second.entry->name), shorten(weight.entry->name), shorten(found->first));
}

void Checkpoint::ignore(std::string_view canonical, std::string reason) {
  const auto found = weights_.find(canonical);
  if (found == weights_.end()) return;
  ignored_.push_back({found->second.entry->name, std::move(reason)});
  weights_.erase(found);
}

// The table is stored as lm_head (tied), as embed_tokens, or as both. Where both are, a library that does not tie them
// saved the file, and fine-tuning there moved embed_tokens only.
void Checkpoint::settle_embedding(const LogSink& log) {
  const auto embed_tokens = weights_.find(kEmbedTokensName);
  if (embed_tokens == weights_.end()) return;
  const Weight table = embed_tokens->second;
  if (const auto lm_head = weights_.find(kEmbeddingName); lm_head != weights_.end()) {
    const Weight head = lm_head->second;
    if (!same_values(tensor_of(*table.entry), tensor_of(*head.entry))) {
      log_warning(log, "{}: '{}' and '{}' differ; the first is used as the token embedding", description_,
                  table.entry->name, head.entry->name);
    }
    ignore(kEmbeddingName, "embed_tokens is there too and is used as the token embedding");
  }
  weights_.erase(embed_tokens);
  weights_.emplace(kEmbeddingName, table);
}

// Builds of LeRobot called either model's time MLP either name; the width of its input tells which it is: W for π0.5
// (time only), 2W for π0 (action and time), W being the expert's width.
void Checkpoint::settle_time_mlp() {
  const std::array<std::array<std::string, 2>, 2> pairs = {
      {{"time_mlp", "action_time_mlp"}, {"action_time_mlp", "time_mlp"}}};
  for (const auto& [from, to] : pairs) {
    const auto found = weights_.find(from + "_in.weight");
    if (found == weights_.end() || weights_.contains(to + "_in.weight")) continue;
    const Shape& shape = found->second.entry->shape;
    if (shape.rank() != 2) continue;
    const auto action_in = weights_.find("action_in_proj.weight");
    const bool known_width = action_in != weights_.end() && action_in->second.entry->shape.rank() == 2;
    const int64_t width = known_width ? action_in->second.entry->shape[0] : shape[0];
    if (shape[1] % 2 != 0 && to == "action_time_mlp") continue;
    const bool belongs_to_other = to == "action_time_mlp" ? shape[1] / 2 == width : shape[1] == width;
    if (!belongs_to_other || width == 0) continue;
    for (const char* suffix : {"_in.weight", "_in.bias", "_out.weight", "_out.bias"}) {
      const auto old = weights_.find(from + suffix);
      if (old == weights_.end()) continue;
      const Weight weight = old->second;
      weights_.erase(old);
      add_weight(to + suffix, weight);
    }
    return;
  }
}

// π0.5 gives the state as text; some builds keep π0's unused projection in the file.
void Checkpoint::settle_state_proj() {
  const bool pi05 = weights_.contains("time_mlp_in.weight") &&
                    weights_.contains("paligemma_with_expert.gemma_expert.model.norm.dense.weight");
  if (!pi05) return;
  for (const char* name : {"state_proj.weight", "state_proj.bias"}) {
    ignore(name, "pi0.5 takes the state as text, not through state_proj");
  }
}

void Checkpoint::check_dtypes() const {
  for (const auto& [name, weight] : weights_) {
    const DType dtype = weight.entry->dtype;
    if (dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16) continue;
    throw_bad_input(
        "{}: tensor '{}' is stored as {}; weights must be f32, bf16 or f16. Save the checkpoint in one of these.",
        weight.file->description(), shorten(weight.entry->name), dtype_name(dtype));
  }
}

const Checkpoint::Weight& Checkpoint::weight(std::string_view name) const {
  const auto found = weights_.find(name);
  if (found == weights_.end()) {
    throw_bad_input("{}: no tensor '{}' among its {} weights", description_, describe_key(name), weights_.size());
  }
  return found->second;
}

Tensor Checkpoint::tensor(std::string_view name) const { return tensor_of(*weight(name).entry); }

const std::string& Checkpoint::stored_name(std::string_view name) const { return weight(name).entry->name; }

void Checkpoint::prefetch(std::string_view name) const {
  const Weight& found = weight(name);
  found.file->prefetch(*found.entry);
}

std::string Checkpoint::dtype_summary() const {
  std::map<std::string_view, size_t> counts;
  for (const auto& [name, weight] : weights_) ++counts[dtype_name(weight.entry->dtype)];
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back(fmt::format("{} ({} tensors)", name, count));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// ------------------------------------------------------------------------------------------------------------- variant

Variant detect_variant(const TensorSource& source) {
  constexpr std::string_view kDense = "paligemma_with_expert.gemma_expert.model.norm.dense.weight";
  constexpr std::string_view kPlain = "paligemma_with_expert.gemma_expert.model.norm.weight";
  const bool time_mlp = source.contains("time_mlp_in.weight");
  const bool action_time_mlp = source.contains("action_time_mlp_in.weight");
  const bool state = source.contains("state_proj.weight");
  const bool dense = source.contains(kDense);
  const bool plain = source.contains(kPlain);
  if (time_mlp && dense && !action_time_mlp && !plain) return Variant::kPi05;
  if (state && action_time_mlp && plain && !time_mlp && !dense) return Variant::kPi0;
  std::vector<std::string_view> seen, unseen;
  for (const std::string_view name :
       {std::string_view("time_mlp_in.weight"), kDense, std::string_view("state_proj.weight"),
        std::string_view("action_time_mlp_in.weight"), kPlain}) {
    (source.contains(name) ? seen : unseen).push_back(name);
  }
  throw_bad_input(
      "{}: cannot tell whether this is pi0 or pi0.5. pi0.5 has time_mlp_in and gemma_expert.model.norm.dense; pi0 has "
      "state_proj, action_time_mlp_in and gemma_expert.model.norm. Present: {}. Absent: {}. The checkpoint is "
      "incomplete or "
      "of another model.",
      source.description(), seen.empty() ? "none" : fmt::format("{}", fmt::join(seen, ", ")), fmt::join(unseen, ", "));
}

Variant checkpoint_variant(const Checkpoint& checkpoint, std::optional<Variant> option) {
  const Variant variant = detect_variant(checkpoint);
  if (option && *option != variant) {
    throw_bad_input("{}: the tensors are those of {}, but {} was asked for; drop the option or give another checkpoint",
                    checkpoint.description(), variant_name(variant), variant_name(*option));
  }
  const std::optional<Variant> claim = checkpoint.config().variant;
  if (claim && *claim != variant) {
    throw_bad_input("{}: the tensors are those of {}, but {} says {}; config and weights are of different checkpoints",
                    checkpoint.description(), variant_name(variant), checkpoint.config().where, variant_name(*claim));
  }
  return variant;
}

}  // namespace tendon
