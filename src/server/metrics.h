// Counters of the server, as Prometheus text and as the JSON that the status page draws.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tendon {

// Cumulative histogram with fixed upper bounds.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void add(double value);
  // Lines "<name>_bucket{le=…} n", sum and count.
  void write(const std::string& name, std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;  // of each bucket, not cumulative; the last one has no bound
  double sum_ = 0;
  uint64_t count_ = 0;
};

// Why a request or a connection failed.
enum class Failure { kBadRequest, kDevice, kInternal, kTooBig, kProtocol, kUnauthorized, kTooManyClients };
inline constexpr std::array<const char*, 7> kFailureNames = {
    "bad_request", "device", "internal", "too_big", "protocol", "unauthorized", "too_many_clients"};

// Times of one answered request, seconds.
struct RequestTimes {
  double queue_s = 0;  // from prepared to the start of its batch
  double model_s = 0;  // the batch on the device, host wait included
  double total_s = 0;  // last byte of the request read to reply written
};

// What the server is, for the status page and the label of tendon_info.
struct ServerInfo {
  std::string version, model, preset, backend, device, precision;
  int64_t horizon = 0, action_width = 0, max_batch = 1;
};

// All functions may be called from any thread.
class Metrics {
 public:
  explicit Metrics(ServerInfo info);

  void connected();
  void disconnected();
  void answered(int64_t client, const RequestTimes& times);
  void ran_batch(int64_t size);
  void failed(Failure failure, int64_t client, const std::string& message);
  void set_device_memory(size_t used_bytes);
  void set_energy(double joules_per_inference);

  int64_t clients() const;
  uint64_t requests() const;
  uint64_t failures() const;

  std::string prometheus() const;
  // Latency of the last requests, percentiles, clients, recent errors.
  std::string status_json() const;

 private:
  struct RecentError {
    double unix_s = 0;
    int64_t client = 0;
    const char* kind = "";
    std::string message;
  };

  ServerInfo info_;
  double start_s_ = 0;
  mutable std::mutex mutex_;
  int64_t clients_ = 0;
  uint64_t connections_ = 0, requests_ = 0, batches_ = 0;
  std::array<uint64_t, kFailureNames.size()> failures_{};
  Histogram queue_, model_, total_, batch_;
  std::deque<double> recent_ms_;  // of whole requests, oldest first
  std::deque<RecentError> recent_errors_;
  std::optional<size_t> device_bytes_;
  std::optional<double> joules_;
};

}  // namespace tendon
