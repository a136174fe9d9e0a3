#include "server/pages.h"

namespace tendon {

Page page_for(std::string_view target, bool authorized, const Metrics& metrics) {
  if (target == "/healthz") return {.body = "OK\n"};
  if (target == "/") return {.type = "text/html; charset=utf-8", .body = std::string(kStatusPage)};
  const bool is_known = target == "/metrics" || target == "/status.json";
  if (is_known && !authorized) {
    return {.status = 401, .body = "This server wants a key: send the header \"Authorization: Api-Key <key>\".\n"};
  }
  if (target == "/metrics") return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics.prometheus()};
  if (target == "/status.json") return {.type = "application/json", .body = metrics.status_json()};
  return {.status = 426,
          .body = "This is a policy server: connect with a WebSocket client. Pages: /, /healthz, /metrics.\n"};
}

bool is_authorized(std::string_view authorization, std::string_view key) {
  if (key.empty()) return true;
  constexpr std::string_view kScheme = "Api-Key ";
  if (!authorization.starts_with(kScheme)) return false;
  authorization.remove_prefix(kScheme.size());
  size_t difference = authorization.size() ^ key.size();
  for (size_t i = 0; i < authorization.size(); ++i) {
    difference |= static_cast<unsigned char>(authorization[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0;
}

}  // namespace tendon
