// The library never prints: it hands text to a sink that the program sets. Nothing is logged during inference.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace tendon {

enum class LogLevel { kInfo, kWarning };

// Passed down by whoever owns a long operation (loading, planning); an empty sink drops the text.
using LogSink = std::function<void(LogLevel, const std::string&)>;

template <class... A>
void log_info(const LogSink& sink, fmt::format_string<A...> format, A&&... args) {
  if (sink) sink(LogLevel::kInfo, fmt::format(format, std::forward<A>(args)...));
}

template <class... A>
void log_warning(const LogSink& sink, fmt::format_string<A...> format, A&&... args) {
  if (sink) sink(LogLevel::kWarning, fmt::format(format, std::forward<A>(args)...));
}

}  // namespace tendon
