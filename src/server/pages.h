// What the server answers to plain HTTP requests.
#pragma once

#include <string>
#include <string_view>

#include "server/metrics.h"

namespace tendon {

extern const std::string_view kStatusPage;

struct Page {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// `target` as in the request line. /healthz is open to everybody; metrics and status need the key where one is set.
// Anything else is 426 Upgrade Required, as openpi's server answers.
Page page_for(std::string_view target, bool authorized, const Metrics& metrics);

// Whether the value of an Authorization header, "Api-Key <key>", holds this key. The time does not depend on how much
// of it is right. An empty key lets everybody in.
bool is_authorized(std::string_view authorization, std::string_view key);

}  // namespace tendon
