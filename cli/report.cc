// tendon report: where the time goes in a trace of ours, of PyTorch's profiler or of rocprof; or what differs between
// two.
#include <algorithm>
#include <fstream>
#include <map>

#include "base/check.h"
#include "cards.h"
#include "commands.h"
#include "trace/read.h"
#include "trace/render.h"

namespace tendon::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> files;
  bool difference = false;
  std::string by = "all", format = "md", out;
  trace::SummaryOptions summary;
};

trace::Summary read(const std::string& path, const ReportOptions& options) {
  const trace::Trace trace = trace::read_trace(path);
  trace::SummaryOptions summary = options.summary;
  if (summary.peak_tflops == 0) {
    // A trace of ours names its device among the facts.
    std::vector<std::string> devices = trace.devices;
    for (const auto& [key, value] : trace.facts) {
      if (key == "device") devices.push_back(value);
    }
    for (const std::string& device : devices) summary.peak_tflops = std::max(summary.peak_tflops, peak_tflops(device));
  }
  return summarize(trace, summary);
}

int run_report(const ReportOptions& options) {
  const size_t wanted = options.difference ? 2 : 1;
  if (options.files.size() != wanted) {
    throw_bad_use("{} trace files given; {}", options.files.size(),
                  options.difference ? "--diff compares two" : "give one, or two with --diff");
  }
  const std::map<std::string, trace::Format> formats = {
      {"md", trace::Format::kMarkdown}, {"csv", trace::Format::kCsv}, {"json", trace::Format::kJson}};
  const std::map<std::string, trace::By> parts = {
      {"all", trace::By::kAll}, {"stage", trace::By::kStage}, {"op", trace::By::kOp}, {"kernel", trace::By::kKernel}};
  const trace::Format format = formats.at(options.format);
  const trace::Summary first = read(options.files[0], options);
  const std::string text =
      options.difference ? render_difference(first, read(options.files[1], options), format, 2 * options.summary.top)
                         : render(first, format, parts.at(options.by));
  if (options.out.empty() || options.out == "-") {
    std::fputs(text.c_str(), stdout);
    return kExitOk;
  }
  std::ofstream out(options.out);
  out << text;
  if (!out.flush()) throw_bad_input("cannot write '{}'. Check the directory and its rights.", options.out);
  return kExitOk;
}

}  // namespace

Command add_report(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  app.add_option("files", options->files,
                 "a trace: JSON, plain or gzipped, of tendon trace, PyTorch's profiler, rocprof or rocprofv3")
      ->required();
  app.add_flag("--diff", options->difference, "compare two traces, by stage and operation");
  app.add_option("--by", options->by, "all | stage | op | kernel: what is shown below the totals")
      ->check(CLI::IsMember({"all", "stage", "op", "kernel"}))
      ->capture_default_str();
  app.add_option("--format", options->format, "md | csv | json")
      ->check(CLI::IsMember({"md", "csv", "json"}))
      ->capture_default_str();
  app.add_option("--out", options->out, "write there instead of to standard output");
  app.add_option("--top", options->summary.top, "rows of each table")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--peak-tflops", options->summary.peak_tflops,
                 "the device's best product rate, for the share of peak (default: of known cards, else none)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--vision-layers", options->summary.layers.vision, "layers that stages are told by")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  app.add_option("--prefix-layers", options->summary.layers.prefix, "of the prefix and of the expert")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  return [options] { return run_report(*options); };
}

}  // namespace tendon::cli
