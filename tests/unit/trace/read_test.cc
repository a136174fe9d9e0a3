#include "trace/read.h"

#include <zlib.h>

#include <gmock/gmock.h>

#include "base/check.h"
#include "trace_file.h"

namespace tendon::trace::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::string& bytes, const std::string& suffix = ".json") {
  const TempFile file(bytes, suffix);
  try {
    (void)read_trace(file.path());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_THAT(error.what(), HasSubstr(file.path()));
    return error.what();
  }
  return "no error";
}

std::string gzipped(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(compressBound(text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(ReadTrace, TakesPyTorchsProfilerWithShapesAndExactTimes) {
  PyTorchTrace writer;
  writer.kernel("nvjet_tst_a", "[2,66,1]", 9.125, "aten::mm", "[[788,2048],[2048,2560]]");
  writer.event(
      R"({"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD","pid":0,"tid":7,"ts":5316512346690.0,"dur":2,"args":{"bytes":4096}})");
  writer.event(R"({"ph":"M","name":"process_name","pid":0,"tid":0,"ts":0,"args":{"name":"python"}})");
  writer.event(R"({"ph":"s","id":1,"pid":7,"tid":7,"ts":1.5,"cat":"ac2g","name":"ac2g"})");
  const Trace trace = read_trace(TempFile(writer.text()).path());
  EXPECT_EQ(trace.tool, Tool::kPyTorch);
  EXPECT_THAT(trace.devices, ElementsAre("NVIDIA H100 80GB HBM3"));
  ASSERT_EQ(trace.events.size(), 4U);  // operator, launch, kernel, copy, in order of time
  const Event& kernel = trace.events[2];
  EXPECT_EQ(trace.events[0].start_ns, 0);
  EXPECT_EQ(kernel.start_ns, 900'000);
  EXPECT_EQ(kernel.duration_ns, 9125);
  EXPECT_EQ(kernel.kind, Kind::kKernel);
  EXPECT_EQ(trace.strings[kernel.grid], "[2,66,1]");
  EXPECT_EQ(trace.strings[trace.events[0].shape], "[[788,2048],[2048,2560]]");
  EXPECT_EQ(trace.strings[trace.events[0].types], "[c10::BFloat16,c10::BFloat16]");
  EXPECT_EQ(trace.events[0].external, kernel.external);
  EXPECT_EQ(trace.events[1].correlation, kernel.correlation);
  EXPECT_EQ(trace.events[3].kind, Kind::kCopy);
  EXPECT_EQ(trace.events[3].bytes, 4096);
  EXPECT_EQ(trace.lanes[kernel.lane].process, "python");
}

TEST(ReadTrace, KeepsNanosecondsOfTimesThatADoubleRounds) {
  const std::string text =
      R"([{"ph":"X","name":"a","cat":"kernel","pid":0,"tid":0,"ts":1723456789012345.123,"dur":0.001},)"
      R"({"ph":"X","name":"b","cat":"kernel","pid":0,"tid":0,"ts":1723456789012345.130,"dur":1e-1}])";
  const Trace trace = read_trace(TempFile(text).path());
  EXPECT_EQ(trace.events[1].start_ns, 7);
  EXPECT_EQ(trace.events[0].duration_ns, 1);
  EXPECT_EQ(trace.events[1].duration_ns, 100);
}

TEST(ReadTrace, TakesRocprofWithTimesAsText) {
  const std::string text = R"({ "traceEvents":[{}
,{"args":{"name":"2 CPU HIP API"},"ph":"M","pid":2,"name":"process_name","sort_index":2}
,{"args":{"name":"6 GPU0"},"ph":"M","pid":6,"name":"process_name","sort_index":6}
,{"args":{"name":"1 COPY"},"ph":"M","pid":1,"name":"process_name"}
,{"ts":"100","dur":"7","ph":"X","pid":"2","tid":"44","name":"hipLaunchKernel","args":{"BeginNs":"100200","EndNs":"107100","pid":"9","tid":"9","Name":"hipLaunchKernel"}}
,{"ts":"110","dur":"5","ph":"X","pid":"6","tid":"1","name":"Cijk_Alik_Bljk_BBS","args":{"BeginNs":"110300","EndNs":"115800","dev-id":"0","queue-id":"1"}}
,{"ts":"120","dur":"1","ph":"X","pid":"1","tid":"0","name":"CopyHostToDevice","args":{"BeginNs":"120000","EndNs":"121000"}}
]})";
  const Trace trace = read_trace(TempFile(text).path());
  EXPECT_EQ(trace.tool, Tool::kRocprof);
  ASSERT_EQ(trace.events.size(), 3U);
  EXPECT_EQ(trace.events[0].kind, Kind::kApi);
  EXPECT_EQ(trace.events[1].kind, Kind::kKernel);
  EXPECT_EQ(trace.name(trace.events[1]), "Cijk_Alik_Bljk_BBS");
  EXPECT_EQ(trace.events[1].start_ns, 10'100);  // the nanoseconds, not the rounded microseconds
  EXPECT_EQ(trace.events[1].duration_ns, 5'500);
  EXPECT_EQ(trace.events[2].kind, Kind::kCopy);
}

TEST(ReadTrace, TakesRocprofV3) {
  const std::string text = R"json({"rocprofiler-sdk-tool":[{"metadata":{"pid":1},
"agents":[{"type":1,"product_name":"AMD EPYC"},{"type":2,"product_name":"AMD Instinct MI300X"}],
"kernel_symbols":[{"kernel_id":3,"kernel_name":"_Z1f.kd","formatted_kernel_name":"flash_fwd(float*)"}],
"strings":{"buffer_records":[{"kind":"NONE","operations":[]},{"kind":"HIP_RUNTIME_API","operations":["hipA","hipGraphLaunch"]}]},
"buffer_records":{"kernel_dispatch":[{"size":1,"kind":0,"operation":0,"correlation_id":{"internal":5,"external":0},
 "start_timestamp":2000,"end_timestamp":3500,"dispatch_info":{"agent_id":{"handle":1},"kernel_id":3,"grid_size":{"x":64,"y":2,"z":1}}}],
"hip_api":[{"kind":1,"operation":1,"correlation_id":{"internal":5},"start_timestamp":1000,"end_timestamp":1400}],
"memory_copy":[{"kind":1,"operation":9,"start_timestamp":5000,"end_timestamp":5001,"bytes":77}]}}]})json";
  const Trace trace = read_trace(TempFile(text).path());
  EXPECT_EQ(trace.tool, Tool::kRocprofV3);
  EXPECT_THAT(trace.devices, ElementsAre("AMD Instinct MI300X"));
  ASSERT_EQ(trace.events.size(), 3U);
  EXPECT_EQ(trace.name(trace.events[0]), "hipGraphLaunch");
  EXPECT_EQ(trace.name(trace.events[1]), "flash_fwd(float*)");
  EXPECT_EQ(trace.strings[trace.events[1].grid], "[64,2,1]");
  EXPECT_EQ(trace.events[1].duration_ns, 1500);
  EXPECT_EQ(trace.events[1].correlation, 5);
  EXPECT_EQ(trace.name(trace.events[2]), "operation 9 of kind 1");
}

TEST(ReadTrace, UnpacksGzip) {
  PyTorchTrace writer;
  for (int i = 0; i < 2000; ++i) writer.kernel("k", "[1,1,1]", 1);
  const std::string packed = gzipped(writer.text());
  EXPECT_EQ(read_trace(TempFile(packed, ".json.gz").path()).events.size(), 6000U);
  EXPECT_THAT(error_of(packed.substr(0, packed.size() / 2), ".json.gz"),
              AllOf(HasSubstr("gzip data are broken"), HasSubstr("unpacked bytes")));
  std::string damaged = packed;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x55);
  EXPECT_NE(error_of(damaged, ".json.gz"), "no error");
}

TEST(ReadTrace, SaysWhereBrokenJsonIs) {
  EXPECT_THAT(error_of("{\"traceEvents\": [\n{\"ph\": \"X\", }\n]}"),
              AllOf(HasSubstr("byte 31 "), HasSubstr("line 2")));
  PyTorchTrace writer;
  writer.kernel("k", "[1,1,1]", 1);
  const std::string whole = writer.text();
  EXPECT_THAT(error_of(whole.substr(0, whole.size() - 40)), HasSubstr("ends early at byte"));
  EXPECT_THAT(error_of(""), HasSubstr("empty"));
  EXPECT_THAT(error_of("hello"), HasSubstr("byte 1"));
}

TEST(ReadTrace, CountsLinesAndBytesBehindTheFirstBuffer) {
  std::string text = "[\n";
  size_t lines = 1;
  while (text.size() < 600'000) {
    text += "{\"ph\":\"X\",\"name\":\"k\",\"cat\":\"kernel\",\"pid\":0,\"tid\":0,\"ts\":1,\"dur\":1},\n";
    ++lines;
  }
  const size_t at = text.size() + 1;
  EXPECT_THAT(error_of(text + "?\n]"),
              AllOf(HasSubstr(fmt::format("byte {} ", at)), HasSubstr(fmt::format("line {})", lines + 1))));
}

TEST(ReadTrace, RefusesOtherJson) {
  EXPECT_THAT(error_of(R"({"a": 1, "model": {"traceEvent": []}})"),
              AllOf(HasSubstr("no trace"), HasSubstr("a, model")));
  EXPECT_THAT(error_of("3"), HasSubstr("no trace"));
  EXPECT_THAT(error_of(R"([{"ph":"X","name":"k","ts":"soon","dur":1}])"),
              AllOf(HasSubstr("\"ts\""), HasSubstr("'soon'")));
  EXPECT_THAT(error_of(R"([{"ph":"X","name":"k","ts":1e300,"dur":1}])"), HasSubstr("1e300"));
  try {
    (void)read_trace("/nonexistent/trace.json");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/trace.json"));
  }
  EXPECT_THROW((void)read_trace("/tmp"), Error);
}

TEST(ReadTrace, NotesWhatItLeavesOut) {
  const std::string text =
      R"([{"ph":"X","name":"a","cat":"kernel","ts":5},{"ph":"X","name":"b","cat":"kernel","ts":5,"dur":-1},)"
      R"({"ph":"B","name":"c","ts":5},{"ph":"E","ts":6},{"ph":"X","name":"d","cat":"kernel","ts":5,"dur":1}])";
  const Trace trace = read_trace(TempFile(text).path());
  EXPECT_EQ(trace.events.size(), 1U);
  EXPECT_THAT(trace.notes, ElementsAre(HasSubstr("1 events without a time"), HasSubstr("1 events of negative length"),
                                       HasSubstr("2 begin and end")));
}

}  // namespace
}  // namespace tendon::trace::test
