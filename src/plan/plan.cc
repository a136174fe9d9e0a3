#include "plan/plan.h"

#include <algorithm>
#include <cstring>

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

size_t bytes_of(const Value& value) { return buffer_bytes(value.dtype, value.shape); }

// Whether the caller shares the value with the run.
bool is_shared(Value::Kind kind) { return kind == Value::Kind::kInput || kind == Value::Kind::kOutput; }

// Of the values that are not shared.
std::vector<Lifetime> lifetimes(const Recorder& recorded) {
  const auto& values = recorded.values();
  const auto end = static_cast<int64_t>(recorded.ops().size());
  std::vector<Lifetime> lives(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    lives[i].bytes = bytes_of(values[i]);
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
  for (size_t i = 0; i < values.size(); ++i) {
    const bool replaced = lives[i].last < lives[i].first;  // by an expansion, or never used
    if (replaced || is_shared(values[i].kind)) lives[i] = {};
  }
  return lives;
}

// Where every value lies: inputs, outputs, and the rest by lifetimes.
struct Arena {
  std::vector<size_t> offsets;
  size_t input_bytes = 0, output_bytes = 0, bytes = 0;
  size_t shared_bytes() const { return input_bytes + output_bytes; }
};

Arena place(const Recorder& recorded) {
  const std::vector<Value>& values = recorded.values();
  const ArenaLayout rest = place_buffers(lifetimes(recorded), kAlignmentBytes);
  Arena arena{.offsets = rest.offsets};
  size_t end = 0;
  const auto append = [&](Value::Kind kind) {
    const size_t begin = end;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].kind != kind) continue;
      arena.offsets[i] = end;
      end += (bytes_of(values[i]) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    }
    return end - begin;
  };
  arena.input_bytes = append(Value::Kind::kInput);
  arena.output_bytes = append(Value::Kind::kOutput);
  for (size_t i = 0; i < values.size(); ++i) {
    if (!is_shared(values[i].kind)) arena.offsets[i] += arena.shared_bytes();
  }
  arena.bytes = arena.shared_bytes() + rest.bytes;
  return arena;
}

}  // namespace

Plan::Plan(Backend& backend, const Recorder& recorded, const PlanOptions& options) : backend_(backend) {
  Recorder lowered(recorded.values());
  for (const Op& op : recorded.ops()) lower(op, backend, options, lowered);

  const Arena layout = place(lowered);
  arena_ = DeviceBlock(backend, layout.bytes);
  if (layout.bytes > 0) backend.fill_zero(arena_.data(), layout.bytes);
  char* const device = static_cast<char*>(arena_.data());
  char* host = device;
  Transfers transfers;
  if (!backend.uses_host_memory() && layout.shared_bytes() > 0) {
    mirror_ = HostBlock(backend, layout.shared_bytes());
    host = static_cast<char*>(mirror_.data());
    std::memset(host, 0, layout.shared_bytes());
    transfers.inputs = {device, host, layout.input_bytes};
    transfers.outputs = {device + layout.input_bytes, host + layout.input_bytes, layout.output_bytes};
  }
  const auto offset = [&](int32_t value) { return layout.offsets[static_cast<size_t>(value)]; };

  ops_ = lowered.ops();
  for (Op& op : ops_) {
    for_each_tensor(op, [&](const char*, Tensor& tensor, Access) {
      if (tensor.value < 0) return;
      bind(tensor, lowered.values()[static_cast<size_t>(tensor.value)].shape, device + offset(tensor.value));
    });
    workspace_bytes_ = std::max(workspace_bytes_, backend.workspace_bytes(op));
  }
  for (size_t i = 0; i < lowered.values().size(); ++i) {
    const Value& value = lowered.values()[i];
    if (value.kind == Value::Kind::kTemporary) continue;
    const Named entry{.device = Tensor(value.dtype, value.shape, device + layout.offsets[i]),
                      .host = is_shared(value.kind) ? host + layout.offsets[i] : nullptr};
    TENDON_CHECK(named_.emplace(value.name, entry).second, "two values are named '{}'", value.name);
  }
  const bool shares = options.workspace && workspace_bytes_ > 0;
  if (!shares) workspace_ = DeviceBlock(backend, workspace_bytes_);
  void* const workspace = shares ? options.workspace(workspace_bytes_) : workspace_.data();
  executable_ = backend.prepare(ops_, workspace, workspace_bytes_, transfers);
}

const Plan::Named& Plan::named(std::string_view name) const {
  const auto found = named_.find(name);
  TENDON_CHECK(found != named_.end(), "the plan has no value named '{}'", name);
  return found->second;
}

const Tensor& Plan::tensor(std::string_view name) const { return named(name).device; }

Tensor Plan::host(std::string_view name) const {
  const Named& value = named(name);
  TENDON_CHECK(value.host != nullptr, "'{}' is neither an input nor an output", name);
  return {value.device.dtype, value.device.shape, value.host};
}

void Plan::write(std::string_view name, const void* host, size_t bytes) {
  const Named& target = named(name);
  TENDON_CHECK(bytes == target.device.bytes(), "'{}' holds {} bytes, {} given", name, target.device.bytes(), bytes);
  if (bytes == 0) return;
  if (target.host != nullptr) {
    std::memcpy(target.host, host, bytes);
  } else {
    backend_.upload(target.device.data, host, bytes);
  }
}

void Plan::read(std::string_view name, void* host, size_t bytes) const {
  const Named& source = named(name);
  TENDON_CHECK(bytes == source.device.bytes(), "'{}' holds {} bytes, {} asked for", name, source.device.bytes(), bytes);
  if (bytes == 0) return;
  if (source.host != nullptr) {
    std::memcpy(host, source.host, bytes);
  } else {
    backend_.download(host, source.device.data, bytes);
  }
}

}  // namespace tendon
