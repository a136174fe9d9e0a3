#include "plan/plan.h"

#include <algorithm>

#include "base/check.h"
#include "ops/compose.h"
#include "plan/buffers.h"

namespace tendon {
namespace {

constexpr size_t kAlignmentBytes = 256;

// Appends `op` to `out`, or what it expands to, down to what the backend has kernels for.
void lower(const Op& op, const Backend& backend, const PlanOptions& options, Recorder& out) {
  const bool forced = std::ranges::find(options.expand, op_name(op)) != options.expand.end();
  if (!forced && backend.supports(op)) {
    out.add(op);
    return;
  }
  const size_t mark = out.ops().size();
  if (!expand(op, out)) {
    TENDON_CHECK(backend.supports(op), "backend {} has no kernel for {} ({})", backend.name(), describe(op),
                 op_label(op));
    out.add(op);
    return;
  }
  for (const Op& part : out.take_ops(mark)) lower(part, backend, options, out);
}

std::vector<Lifetime> lifetimes(const Recorder& recorded) {
  const auto& values = recorded.values();
  const auto end = static_cast<int64_t>(recorded.ops().size());
  std::vector<Lifetime> lives(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    lives[i].bytes = static_cast<size_t>(values[i].shape.elements()) * dtype_bytes(values[i].dtype);
    const bool whole_run = values[i].kind != Value::Kind::kTemporary;
    lives[i].first = whole_run ? 0 : end;
    lives[i].last = whole_run ? end : -1;
  }
  for (int64_t index = 0; index < end; ++index) {
    for_each_tensor(recorded.ops()[static_cast<size_t>(index)], [&](const char*, const Tensor& tensor, Access) {
      if (tensor.value < 0) return;
      Lifetime& life = lives[static_cast<size_t>(tensor.value)];
      life.first = std::min(life.first, index);
      life.last = std::max(life.last, index);
    });
  }
  for (Lifetime& life : lives) {
    if (life.last < life.first) life = {};  // replaced by an expansion, or never used
  }
  return lives;
}

}  // namespace

Plan::Plan(Backend& backend, const Recorder& recorded, const PlanOptions& options) : backend_(backend) {
  Recorder lowered(recorded.values());
  for (const Op& op : recorded.ops()) lower(op, backend, options, lowered);

  const ArenaLayout layout = place_buffers(lifetimes(lowered), kAlignmentBytes);
  arena_ = DeviceBlock(backend, layout.bytes);
  if (layout.bytes > 0) backend.fill_zero(arena_.data(), layout.bytes);
  const auto address = [&](int32_t value) {
    return static_cast<char*>(arena_.data()) + layout.offsets[static_cast<size_t>(value)];
  };

  ops_ = lowered.ops();
  size_t workspace_bytes = 0;
  for (Op& op : ops_) {
    for_each_tensor(op, [&](const char*, Tensor& tensor, Access) {
      if (tensor.value < 0) return;
      tensor.data = address(tensor.value) + tensor.value_offset * static_cast<int64_t>(dtype_bytes(tensor.dtype));
    });
    workspace_bytes = std::max(workspace_bytes, backend.workspace_bytes(op));
  }
  for (size_t i = 0; i < lowered.values().size(); ++i) {
    const Value& value = lowered.values()[i];
    if (value.kind == Value::Kind::kTemporary) continue;
    const bool is_new =
        named_.emplace(value.name, Tensor(value.dtype, value.shape, address(static_cast<int32_t>(i)))).second;
    TENDON_CHECK(is_new, "two values are named '{}'", value.name);
  }
  workspace_ = DeviceBlock(backend, workspace_bytes);
  executable_ = backend.prepare(ops_, workspace_.data(), workspace_bytes);
}

const Tensor& Plan::tensor(std::string_view name) const {
  const auto found = named_.find(name);
  TENDON_CHECK(found != named_.end(), "the plan has no value named '{}'", name);
  return found->second;
}

void Plan::write(std::string_view name, const void* host, size_t bytes) {
  const Tensor& target = tensor(name);
  TENDON_CHECK(bytes == target.bytes(), "'{}' holds {} bytes, {} given", name, target.bytes(), bytes);
  if (bytes > 0) backend_.upload(target.data, host, bytes);
}

void Plan::read(std::string_view name, void* host, size_t bytes) const {
  const Tensor& source = tensor(name);
  TENDON_CHECK(bytes == source.bytes(), "'{}' holds {} bytes, {} asked for", name, source.bytes(), bytes);
  if (bytes > 0) backend_.download(host, source.data, bytes);
}

}  // namespace tendon
