#include "backend/gpu/products.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "backend/gpu/kernels.h"
#include "base/check.h"

namespace tendon::gpu {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr std::string_view kOwn = "own:";

Tensor take(char*& scratch, size_t& used, DType dtype, const Shape& shape) {
  Tensor t(dtype, shape, scratch == nullptr ? nullptr : scratch + used);
  used += (t.bytes() + 255) / 256 * 256;
  return t;
}

// bf16 rows against f32 weights: a library takes the rows widened.
bool widens_x(const Product& p) { return p.x.dtype == DType::kBf16 && p.w.dtype == DType::kF32; }

// What the library leaves for other kernels lies here; undefined parts are not needed.
struct LibraryScratch {
  Tensor x;    // (M, K) f32
  Tensor out;  // (M, 2 N) gate and up, or (M, N) before a gated residual
  size_t bytes = 0;
};
LibraryScratch library_scratch(const Product& p, void* memory) {
  LibraryScratch s;
  char* base = static_cast<char*>(memory);
  if (widens_x(p)) s.x = take(base, s.bytes, DType::kF32, {p.x.rows(), p.x.cols()});
  if (p.up.defined()) s.out = take(base, s.bytes, p.out.dtype, {p.out.rows(), 2 * p.out.cols()});
  if (p.gate.defined()) s.out = take(base, s.bytes, p.out.dtype, {p.out.rows(), p.out.cols()});
  return s;
}

// Of f32 results, another kernel computes the activation: a library's own is approximate there, and it has no SiLU.
bool activation_after(const Product& p) { return p.activation != Activation::kNone && p.out.dtype == DType::kF32; }

GemmArgs library_args(const Product& p, const LibraryScratch& scratch) {
  GemmArgs args{.x = p.x, .w = p.w, .out = p.out, .bias = p.bias, .residual = p.residual, .gelu = false};
  args.gelu = p.activation == Activation::kGeluTanh && !activation_after(p);
  if (widens_x(p)) args.x = scratch.x;
  if (p.up.defined()) args.w = *stacked({p.w, p.up}), args.out = scratch.out;
  if (p.gate.defined()) args.residual = {}, args.out = scratch.out;
  return args;
}

// "128x256x64x3/2"
std::optional<Cut> parse_cut(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return {};
  Cut cut;
  const auto [end, error] = std::from_chars(text.data() + slash + 1, text.data() + text.size(), cut.splits);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  for (const Tile& tile : tiles()) {
    if (tile.name() == text.substr(0, slash)) {
      cut.tile = static_cast<int>(&tile - tiles().data());
      return cut;
    }
  }
  return {};
}

std::string own_name(const Cut& cut) {
  return fmt::format("{}{}/{}", kOwn, tiles()[static_cast<size_t>(cut.tile)].name(), cut.splits);
}

// The part of "cublaslt:66.20" behind the name of who computes it; nothing when another does, or it is not here.
template <class Computes>
std::optional<std::string_view> algorithm_of(const Computes* who, std::string_view kernel) {
  if (who == nullptr) return {};
  const std::string_view name = who->name();
  if (!kernel.starts_with(name) || !kernel.substr(name.size()).starts_with(":")) return {};
  return kernel.substr(name.size() + 1);
}

Product without_rope(Product p) {
  p.rope = {};
  return p;
}

// Without a rope, another kernel rotates what they write.
bool takes(const SpecialProducts& special, const Product& p, std::string_view kernel) {
  return special.takes(p, kernel) || (p.rope.defined() && special.takes(without_rope(p), kernel));
}
std::vector<std::string> special_kernels(const SpecialProducts& special, const Product& p) {
  std::vector<std::string> names = special.kernels(p);
  if (p.rope.defined()) {
    for (std::string& name : special.kernels(without_rope(p))) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
    }
  }
  return names;
}

// What a kernel without a rope leaves to another one.
Launch then_rope(const Product& p, Launch product) {
  if (!p.rope.defined() || !product) return product;
  return [product = std::move(product), rope = p.rope, out = p.out](Stream stream) {
    product(stream);
    launch_rope_cache(rope, out, stream);
  };
}

}  // namespace

gemm::Desc describe(const Product& p) {
  std::string epilogue;
  const auto add = [&](const char* word) { epilogue += (epilogue.empty() ? "" : "+") + std::string(word); };
  if (p.up.defined()) add("gelu_mul");
  if (p.bias.defined()) add("bias");
  if (p.activation == Activation::kGeluTanh) add("gelu");
  if (p.activation == Activation::kSilu) add("silu");
  if (p.table.defined()) add("table");
  if (p.residual.defined()) add(p.gate.defined() ? "gated" : "residual");
  if (p.rope.defined()) add("rope");
  return {.m = p.out.rows(),
          .n = p.out.cols(),
          .k = p.x.cols(),
          .x = p.x.dtype,
          .w = p.w.dtype,
          .out = p.out.dtype,
          .epilogue = epilogue.empty() ? "none" : epilogue};
}

size_t product_scratch_bytes(const Product& p) { return library_scratch(p, nullptr).bytes; }

std::optional<Tensor> stacked(std::initializer_list<Tensor> parts) {
  Tensor all;
  for (const Tensor& part : parts) {
    if (!part.defined()) continue;
    if (!all.defined()) {
      all = part;
      continue;
    }
    const bool follows = part.dtype == all.dtype && all.contiguous() && part.contiguous() &&
                         static_cast<char*>(all.data) + all.bytes() == part.data &&
                         (all.scales == nullptr || all.scales + all.rows() == part.scales);
    if (!follows) return {};
    all.shape =
        all.shape.rank() == 1 ? Shape{all.elements() + part.elements()} : Shape{all.rows() + part.rows(), all.cols()};
  }
  return all;
}

Products::Products(Runtime& runtime, const LibraryGemm* library, const SpecialProducts* special,
                   std::optional<gemm::Table> table)
    : runtime_(runtime),
      library_(library),
      special_(special),
      table_(std::move(table)),
      multiprocessors_(runtime.info().threads_or_sms),
      room_(kWorkspaceBytes, runtime.shared_bytes_per_block()) {
  if (!table_) return;
  for (const gemm::Row& row : table_->rows()) {
    const auto tile = algorithm_of(special_, row.kernel);
    if ((tile && !special_->exists(*tile)) ||
        (row.kernel.starts_with(kOwn) && !parse_cut(std::string_view(row.kernel).substr(kOwn.size())))) {
      throw_bad_input("{}, line {}: there is no tile '{}'. Measure this product again with `tendon tune`.",
                      table_->name(), row.line, row.kernel);
    }
  }
}

Products::~Products() { runtime_.release(workspace_); }

// The library computes out = act(x · wᵀ + bias) + residual in one type; what it lacks, other kernels add.
bool Products::library_takes(const Product& p) const {
  if (library_ == nullptr || p.table.defined()) return false;
  const bool scaled = is_scaled(p.w.dtype);
  const bool types = scaled ? library_->multiplies(p.w.dtype) && p.out.dtype == DType::kBf16
                            : p.w.dtype == p.out.dtype && (p.x.dtype == p.w.dtype || widens_x(p));
  // Rounded before the activation, a bf16 result would be rounded twice.
  const bool activation = p.activation != Activation::kSilu || p.out.dtype == DType::kF32;
  const bool residual = !p.residual.defined() || (p.residual.dtype == p.out.dtype && p.activation == Activation::kNone);
  return types && activation && residual && (!p.up.defined() || stacked({p.w, p.up}).has_value());
}

std::string Products::own_default(const Product& p) const { return own_name(default_cut(p, multiprocessors_, room_)); }

Products::Choice Products::choose(const Product& p) const {
  const char* why = "unmeasured: this card has no GEMM table";
  if (table_) {
    why = "unmeasured: not in this card's GEMM table";
    const gemm::Desc desc = describe(p);
    const gemm::Row* row = table_->find(desc);
    if (row == nullptr) row = table_->find(gemm::without_rope(desc));
    if (row != nullptr) {
      bool usable = algorithm_of(library_, row->kernel) && library_takes(p);
      if (const auto tile = algorithm_of(special_, row->kernel)) {
        usable = takes(*special_, p, *tile);
      } else if (row->kernel.starts_with(kOwn)) {
        usable = cut_fits(p, *parse_cut(std::string_view(row->kernel).substr(kOwn.size())), room_);
      }
      if (usable) {
        const bool whole = row->desc.epilogue == desc.epilogue;
        const bool same_rows = row->desc.m == desc.m;
        return {row->kernel, !whole ? "measured without rotation" : same_rows ? "" : "measured with other rows"};
      }
    }
  }
  if (special_ != nullptr && is_scaled(p.w.dtype)) {  // better at codes than a library, where there is one
    const std::vector<std::string> own = special_kernels(*special_, p);
    if (!own.empty()) return {fmt::format("{}:{}", special_->name(), own.front()), why};
  }
  if (library_takes(p)) return {fmt::format("{}:", library_->name()), why};
  return {own_default(p), why};
}

std::string Products::kernel_name(const Product& p) const {
  const Choice choice = choose(p);
  std::string name = choice.kernel;
  if (name.ends_with(':')) name.pop_back();
  return *choice.why == '\0' ? name : fmt::format("{}, {}", name, choice.why);
}

Launch Products::prepare(const Product& p, const ProductMemory& memory) const {
  if (p.out.elements() == 0) return [](Stream) {};
  const Choice choice = choose(p);
  if (Launch launch = prepare_kernel(p, choice.kernel, memory)) return launch;
  // The table was made with another version of the library, or the bias is none that the library can add.
  if (library_takes(p)) {
    if (Launch launch = prepare_library(p, {}, memory)) return launch;
  }
  return prepare_kernel(p, own_default(p), memory);
}

Launch Products::prepare_codes(const Product& p, const Product& plain) const {
  const Choice choice = choose(plain);
  const auto tile = algorithm_of(special_, choice.kernel);
  return tile && p.out.elements() > 0 ? special_->prepare(p, *tile) : Launch();
}

std::vector<std::string> Products::candidates(const Product& p) const {
  std::vector<std::string> names;
  if (library_takes(p)) {
    for (const std::string& algorithm : library_->algorithms(library_args(p, library_scratch(p, nullptr))))
      names.push_back(fmt::format("{}:{}", library_->name(), algorithm));
  }
  if (special_ != nullptr) {
    for (const std::string& tile : special_kernels(*special_, p))
      names.push_back(fmt::format("{}:{}", special_->name(), tile));
  }
  for (int t = 0; t < static_cast<int>(tiles().size()); ++t) {
    for (const int splits : {1, 2, 3, 4, 5, 6, 8, 12, 16}) {
      if (cut_fits(p, {t, splits}, room_)) names.push_back(own_name({t, splits}));
    }
  }
  return names;
}

Launch Products::prepare_kernel(const Product& p, std::string_view kernel, const ProductMemory& memory) const {
  if (const auto algorithm = algorithm_of(library_, kernel)) {
    return library_takes(p) ? prepare_library(p, *algorithm, memory) : Launch();
  }
  if (const auto tile = algorithm_of(special_, kernel)) {
    if (special_->takes(p, *tile) || !p.rope.defined()) return special_->prepare(p, *tile);
    return then_rope(p, special_->prepare(without_rope(p), *tile));
  }
  if (!kernel.starts_with(kOwn)) return {};
  const std::optional<Cut> cut = parse_cut(kernel.substr(kOwn.size()));
  if (!cut || !cut_fits(p, *cut, room_)) return {};
  void* const parts = cut->splits > 1 ? workspace() : nullptr;
  return then_rope(p, [p, cut = *cut, parts](Stream stream) { launch_product(p, cut, parts, stream); });
}

Launch Products::prepare_library(const Product& p, std::string_view algorithm, const ProductMemory& memory) const {
  const LibraryScratch scratch = library_scratch(p, memory.scratch);
  GemmArgs args = library_args(p, scratch);
  const bool casts_bias = p.bias.defined() && p.out.dtype == DType::kBf16;  // a library adds a bias of out's type
  if (casts_bias) {
    if (!bf16_holds(p.bias)) return {};
    args.bias = Tensor(DType::kBf16, p.bias.shape, memory.allocate(p.bias.bytes() / 2));
  }
  const std::shared_ptr<Gemm> gemm = library_->prepare(args, algorithm);
  if (gemm == nullptr) return {};
  if (casts_bias) {
    const Shape row = {1, p.bias.elements()};
    launch_cast({.x = p.bias.reshaped(row), .out = args.bias.reshaped(row)}, runtime_.stream());
  }
  return then_rope(p, [=](Stream stream) {
    if (scratch.x.defined()) launch_cast({.x = p.x, .out = scratch.x}, stream);
    gemm->launch(stream);
    const int64_t n = p.out.cols();
    if (p.up.defined()) {
      launch_gelu_mul({.gate = scratch.out.col_range(0, n), .up = scratch.out.col_range(n, n), .out = p.out}, stream);
    } else if (p.gate.defined()) {
      launch_gated_residual({.x = p.residual, .y = scratch.out, .gate = p.gate, .out = p.out}, stream);
    } else if (activation_after(p)) {
      launch_bias_activation(p.out, {}, p.activation, p.out, stream);
    }
  });
}

bool Products::bf16_holds(const Tensor& bias) const {
  std::vector<float> values(static_cast<size_t>(bias.elements()));
  runtime_.copy_to_host(values.data(), bias.data, bias.bytes());
  runtime_.synchronize();
  return std::ranges::all_of(values, [](float v) { return round_to_bf16(v) == v; });
}

void* Products::workspace() const {
  if (workspace_ == nullptr) {
    workspace_ = runtime_.allocate(kWorkspaceBytes);
    if (workspace_ == nullptr) {
      throw_device("Not enough memory on the card for the workspace of products ({} MB). Close other programs on it.",
                   kWorkspaceBytes >> 20);
    }
  }
  return workspace_;
}

}  // namespace tendon::gpu
