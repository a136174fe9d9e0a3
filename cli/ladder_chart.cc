// The ladder as SVG: bars of milliseconds, split into stages.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ladder.h"

namespace tendon::cli {
namespace {

constexpr double kWidth = 900, kLeft = 230, kRight = 120, kTop = 74, kRow = 34, kBar = 22;
constexpr const char* kColours[] = {"#4878a8", "#e08a3c", "#5f9e6e", "#b55d60", "#857aaa"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string text(double x, double y, const std::string& what, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, escaped(what));
}

}  // namespace

std::string ladder_chart(const std::vector<RungResult>& results, std::optional<double> floor_ms,
                         const std::string& title, const std::string& subtitle) {
  double most = floor_ms.value_or(0);
  for (const RungResult& result : results) most = std::max(most, result.p50_ms);
  const double scale = (kWidth - kLeft - kRight) / std::max(most, 1e-9);
  const double height = kTop + kRow * static_cast<double>(results.size()) + 52;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, height);
  svg += text(16, 28, title, "font-size=\"17\" font-weight=\"bold\"");
  svg += text(16, 50, subtitle, "fill=\"#555\"");
  std::vector<std::string> stages;
  double y = kTop;
  for (const RungResult& result : results) {
    svg += text(kLeft - 10, y + 16, result.rung.name, "text-anchor=\"end\"");
    // Stages are measured by themselves: their bar is as long as the whole call all the same.
    double sum = 0;
    for (const auto& [name, ms] : result.stage_ms) sum += ms;
    double x = kLeft;
    if (sum <= 0)
      svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"{}\"/>\n", x, y,
                         result.p50_ms * scale, kBar, kColours[0]);
    for (const auto& [name, ms] : result.stage_ms) {
      if (sum <= 0) break;
      auto found = std::ranges::find(stages, name);
      if (found == stages.end()) found = stages.insert(stages.end(), name);
      const double width = result.p50_ms * ms / sum * scale;
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"{}\"><title>{}: {:.2f} "
          "ms</title></rect>\n",
          x, y, width, kBar, kColours[static_cast<size_t>(found - stages.begin()) % std::size(kColours)], escaped(name),
          ms);
      x += width;
    }
    svg += text(kLeft + result.p50_ms * scale + 8, y + 16, fmt::format("{:.2f} ms", result.p50_ms));
    y += kRow;
  }
  if (floor_ms) {
    const double x = kLeft + *floor_ms * scale;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#222\" stroke-dasharray=\"4 "
        "3\"/>\n",
        x, kTop - 8, y);
    svg += text(x, y + 14, fmt::format("floor {:.2f} ms", *floor_ms), "text-anchor=\"middle\" font-size=\"12\"");
  }
  double x = 16;
  for (size_t i = 0; i < stages.size(); ++i) {
    svg += fmt::format("<rect x=\"{:.0f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", x, height - 22,
                       kColours[i % std::size(kColours)]);
    svg += text(x + 17, height - 12, stages[i]);
    x += 110;
  }
  return svg + "</svg>\n";
}

}  // namespace tendon::cli
