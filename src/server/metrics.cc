#include "server/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "server/clock.h"

namespace tendon {
namespace {

constexpr size_t kRecentRequests = 1024;
constexpr size_t kRecentErrors = 20;

// 0.1 ms to 60 s, about three a decade.
std::vector<double> second_bounds() {
  return {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60};
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

size_t resident_bytes() {
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

void head(std::string& out, const char* name, const char* type, const char* help) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

template <class T>
void single(std::string& out, const char* name, const char* type, const char* help, T value) {
  head(out, name, type, help);
  out += fmt::format("{} {}\n", name, value);
}

// The value at `percent` of sorted values, by nearest rank.
double percentile(const std::vector<double>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(percent / 100.0 * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

}  // namespace

void Histogram::add(double value) {
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  ++counts_[static_cast<size_t>(bucket)];
  sum_ += value;
  ++count_;
}

void Histogram::write(const std::string& name, std::string& out) const {
  uint64_t below = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    below += counts_[i];
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bounds_[i], below);
  }
  out += fmt::format("{}_bucket{{le=\"+Inf\"}} {}\n{}_sum {}\n{}_count {}\n", name, count_, name, sum_, name, count_);
}

Metrics::Metrics(ServerInfo info)
    : info_(std::move(info)),
      start_s_(unix_now_s()),
      queue_(second_bounds()),
      model_(second_bounds()),
      total_(second_bounds()),
      batch_({1, 2, 4, 8, 16, 32}) {}

void Metrics::connected() {
  const std::lock_guard lock(mutex_);
  ++clients_;
  ++connections_;
}

void Metrics::disconnected() {
  const std::lock_guard lock(mutex_);
  --clients_;
}

void Metrics::answered(int64_t /*client*/, const RequestTimes& times) {
  const std::lock_guard lock(mutex_);
  ++requests_;
  queue_.add(times.queue_s);
  model_.add(times.model_s);
  total_.add(times.total_s);
  if (recent_ms_.size() == kRecentRequests) recent_ms_.pop_front();
  recent_ms_.push_back(times.total_s * 1e3);
}

void Metrics::ran_batch(int64_t size) {
  const std::lock_guard lock(mutex_);
  ++batches_;
  batch_.add(static_cast<double>(size));
}

void Metrics::failed(Failure failure, int64_t client, const std::string& message) {
  const std::lock_guard lock(mutex_);
  ++failures_[static_cast<size_t>(failure)];
  if (recent_errors_.size() == kRecentErrors) recent_errors_.pop_front();
  recent_errors_.push_back({unix_now_s(), client, kFailureNames[static_cast<size_t>(failure)], message.substr(0, 500)});
}

void Metrics::set_device_memory(size_t used_bytes) {
  const std::lock_guard lock(mutex_);
  device_bytes_ = used_bytes;
}

void Metrics::set_energy(double joules_per_inference) {
  const std::lock_guard lock(mutex_);
  joules_ = joules_per_inference;
}

int64_t Metrics::clients() const {
  const std::lock_guard lock(mutex_);
  return clients_;
}

uint64_t Metrics::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

uint64_t Metrics::failures() const {
  const std::lock_guard lock(mutex_);
  return std::accumulate(failures_.begin(), failures_.end(), uint64_t{0});
}

std::string Metrics::prometheus() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  head(out, "tendon_info", "gauge", "What is served; always 1.");
  out += fmt::format(
      "tendon_info{{version=\"{}\",model=\"{}\",preset=\"{}\",backend=\"{}\",device=\"{}\",precision=\"{}\"}} 1\n",
      escaped(info_.version), escaped(info_.model), escaped(info_.preset), escaped(info_.backend),
      escaped(info_.device), escaped(info_.precision));
  single(out, "tendon_start_time_seconds", "gauge", "Unix time of the start.", start_s_);
  single(out, "tendon_clients", "gauge", "WebSocket clients connected now.", clients_);
  single(out, "tendon_connections_total", "counter", "WebSocket connections accepted.", connections_);
  single(out, "tendon_requests_total", "counter", "Requests answered with actions.", requests_);
  head(out, "tendon_errors_total", "counter", "Requests and connections that failed, by kind.");
  for (size_t i = 0; i < failures_.size(); ++i)
    out += fmt::format("tendon_errors_total{{kind=\"{}\"}} {}\n", kFailureNames[i], failures_[i]);
  head(out, "tendon_batch_size", "histogram", "Requests run together.");
  batch_.write("tendon_batch_size", out);
  head(out, "tendon_queue_wait_seconds", "histogram", "Prepared request to the start of its batch.");
  queue_.write("tendon_queue_wait_seconds", out);
  head(out, "tendon_model_seconds", "histogram", "One batch of the model.");
  model_.write("tendon_model_seconds", out);
  head(out, "tendon_request_seconds", "histogram", "Last byte of the request read to reply written.");
  total_.write("tendon_request_seconds", out);
  single(out, "tendon_resident_memory_bytes", "gauge", "Resident memory of this process.", resident_bytes());
  if (device_bytes_)
    single(out, "tendon_device_memory_used_bytes", "gauge", "Memory in use on the device.", *device_bytes_);
  if (joules_) single(out, "tendon_joules_per_inference", "gauge", "Energy of the device per request.", *joules_);
  return out;
}

std::string Metrics::status_json() const {
  const std::lock_guard lock(mutex_);
  std::vector<double> sorted(recent_ms_.begin(), recent_ms_.end());
  std::ranges::sort(sorted);
  nlohmann::ordered_json json = {{"version", info_.version},
                                 {"model", info_.model},
                                 {"preset", info_.preset},
                                 {"backend", info_.backend},
                                 {"device", info_.device},
                                 {"precision", info_.precision},
                                 {"horizon", info_.horizon},
                                 {"action_width", info_.action_width},
                                 {"max_batch", info_.max_batch},
                                 {"uptime_s", unix_now_s() - start_s_},
                                 {"clients", clients_},
                                 {"connections", connections_},
                                 {"requests", requests_},
                                 {"batches", batches_},
                                 {"p50_ms", percentile(sorted, 50)},
                                 {"p99_ms", percentile(sorted, 99)}};
  json["recent_ms"] = nlohmann::json::array();
  for (const double ms : recent_ms_) json["recent_ms"].push_back(std::round(ms * 1e3) / 1e3);
  for (size_t i = 0; i < failures_.size(); ++i) json["errors"][kFailureNames[i]] = failures_[i];
  json["recent_errors"] = nlohmann::json::array();
  for (const RecentError& error : recent_errors_) {
    json["recent_errors"].push_back(
        {{"unix_s", error.unix_s}, {"client", error.client}, {"kind", error.kind}, {"message", error.message}});
  }
  return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace tendon
