#include "checkpoint/safetensors.h"

#include <sys/stat.h>

#include <cmath>

#include "test_files.h"

namespace tendon {
namespace {

using test::expect_refusal;
using test::raw_safetensors;
using test::TempDir;
using test::to_bytes;
using test::write_text;

SafetensorsFile parse(const std::string& text) { return SafetensorsFile::from_memory(to_bytes(text), "f.safetensors"); }

TEST(Safetensors, WriterAndReaderAgree) {
  TempDir dir;
  const std::vector<float> a = {1.5F, -2, 3, 4, 5, 6};
  const std::vector<int64_t> b = {1, -2};
  const std::vector<uint8_t> c = {0, 1, 1};
  SafetensorsWriter writer(dir / "x.safetensors",
                           {{"a", DType::kF32, {2, 3}},
                            {"b", DType::kI64, {2}},
                            {"c", DType::kBool, {3}},
                            {"e", DType::kF32, {0, 4}},
                            {"s", DType::kU8, {}}},
                           {{"format", "pt"}});
  EXPECT_EQ(writer.data_bytes(), 24U + 16U + 3U + 1U);
  writer.append(std::span<const float>(a).first(1));
  writer.append(std::span<const float>(a).subspan(1));
  writer.append(std::span<const int64_t>(b));
  EXPECT_FALSE(std::filesystem::exists(dir / "x.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(dir / "x.safetensors.partial"));
  writer.append(std::span<const uint8_t>(c));
  writer.append(std::span<const uint8_t>(c).first(1));
  writer.finish();
  EXPECT_FALSE(std::filesystem::exists(dir / "x.safetensors.partial"));

  SafetensorsFile opened = SafetensorsFile::open(dir / "x.safetensors");
  const SafetensorsFile file = std::move(opened);  // views survive a move
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.entries().size(), 5U);
  EXPECT_EQ(file.find("a")->offset_bytes % 8, 0U);  // the header is padded
  const Tensor tensor = file.tensor("a");
  EXPECT_EQ(tensor.shape, Shape({2, 3}));
  EXPECT_TRUE(tensor.dtype == DType::kF32);
  EXPECT_EQ(std::memcmp(tensor.data, a.data(), 24), 0);
  EXPECT_EQ(file.tensor("b").as<const int64_t>()[1], -2);
  EXPECT_TRUE(file.tensor("e").defined());
  EXPECT_EQ(file.tensor("e").elements(), 0);
  EXPECT_EQ(file.tensor("s").shape.rank(), 0);
  file.prefetch(*file.find("a"));
  file.prefetch(*file.find("e"));
  EXPECT_FALSE(file.contains("z"));
  expect_refusal([&] { (void)file.tensor("z"); }, {"x.safetensors", "'z'"});
}

TEST(Safetensors, WriterRefusesWrongAmountsAndCleansUp) {
  TempDir dir;
  const std::vector<float> values(3);
  {
    SafetensorsWriter writer(dir / "x.safetensors", {{"a", DType::kF32, {2}}});
    expect_refusal([&] { writer.append(std::span<const float>(values)); }, {"12 bytes", "8 are missing"},
                   ErrorKind::kBadUse);
    expect_refusal([&] { writer.finish(); }, {"8 of 8"}, ErrorKind::kBadUse);
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  expect_refusal(
      [&] {
        SafetensorsWriter(dir / "y", {{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}});
      },
      {"'a'"}, ErrorKind::kBadUse);
  expect_refusal([&] { SafetensorsWriter(dir / "no/such/dir.safetensors", {}); }, {"no/such", "cannot be written"});
}

TEST(Safetensors, UnalignedTensorsAreCopied) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
                             R"("c":{"dtype":"F64","shape":[0],"data_offsets":[5,5]}})";
  const SafetensorsFile file = parse(raw_safetensors(header, 5));
  const Tensor tensor = file.tensor("b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % 4, 0U);
  uint32_t bits = 0;
  std::memcpy(&bits, tensor.data, 4);
  EXPECT_EQ(bits, 0x01010101U);
  EXPECT_TRUE(file.tensor("c").defined());
}

TEST(Safetensors, EmptyFileOfNoTensorsIsFine) { EXPECT_TRUE(parse(raw_safetensors("{}", 0)).entries().empty()); }

TEST(Safetensors, RefusalsNameTheFileAndTheTensor) {
  const auto one = [](const std::string& fields) { return "{\"t.w\":{" + fields + "}}"; };
  const struct {
    const char* what;
    std::string header;
    size_t data_bytes;
    std::vector<std::string> parts;
  } cases[] = {
      {"not json", "{oops", 0, {"header", "not valid JSON"}},
      {"list", "[]", 0, {"header is a list"}},
      {"entry type", "{\"t.w\": 1}", 0, {"'t.w'", "an integer"}},
      {"no dtype", one(R"("shape":[1],"data_offsets":[0,4])"), 4, {"'t.w'", "'dtype'"}},
      {"no shape", one(R"("dtype":"F32","data_offsets":[0,4])"), 4, {"'t.w'", "'shape'"}},
      {"no offsets", one(R"("dtype":"F32","shape":[1])"), 4, {"'t.w'", "'data_offsets'"}},
      {"dtype type", one(R"("dtype":3,"shape":[1],"data_offsets":[0,4])"), 4, {"'t.w'", "'dtype'"}},
      {"f8", one(R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])"), 4, {"'t.w'", "F8_E4M3"}},
      {"i16", one(R"("dtype":"I16","shape":[2],"data_offsets":[0,4])"), 4, {"'t.w'", "I16"}},
      {"span", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4, {"'t.w'", "[0, 4]", "8 bytes"}},
      {"reversed", one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4, {"'t.w'", "[4, 0]"}},
      {"negative", one(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), 4, {"'t.w'", "non-negative"}},
      {"fraction", one(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4, {"'t.w'", "shape"}},
      {"negative dim", one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4, {"'t.w'", "shape"}},
      {"three offsets", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), 4, {"'t.w'", "data_offsets"}},
      {"rank", one(R"("dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[0,1])"), 1, {"'t.w'", "rank 5"}},
      {"overflow",
       one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
       0,
       {"'t.w'", "overflows"}},
      {"overflow by zero",
       one(R"("dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"),
       0,
       {"'t.w'", "overflows"}},
      {"wide", one(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,0])"), 0, {"'t.w'", "overflows"}},
      {"truncated", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 7, {"'t.w'", "truncated"}},
      {"outside", one(R"("dtype":"F32","shape":[0],"data_offsets":[99,99])"), 4, {"'t.w'", "truncated"}},
      {"trailing", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 6, {"2 bytes after"}},
      {"gap", one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8, {"4 bytes before", "'t.w'"}},
      {"overlap",
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8,
       {"'a'", "'b'", "overlap"}},
      {"duplicate",
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4,
       {"'a'", "twice"}},
      {"metadata", R"({"__metadata__": []})", 0, {"__metadata__", "a list"}},
      {"metadata entry", R"({"__metadata__": {"k": 1}})", 0, {"__metadata__", "'k'"}},
  };
  for (const auto& test_case : cases) {
    SCOPED_TRACE(test_case.what);
    std::vector<std::string> parts = test_case.parts;
    parts.push_back("f.safetensors");
    expect_refusal([&] { parse(raw_safetensors(test_case.header, test_case.data_bytes)); }, parts);
  }
}

TEST(Safetensors, BrokenBeginnings) {
  expect_refusal([] { parse(""); }, {"f.safetensors", "0 bytes is too short"});
  expect_refusal([] { parse("1234567"); }, {"7 bytes is too short"});
  expect_refusal([] { parse(std::string("\x10\0\0\0\0\0\0\0{}", 10)); }, {"needs 16 bytes", "only 2", "truncated"});
  expect_refusal([] { parse("\xff\xff\xff\xff\xff\xff\xff\xff{}"); }, {"18446744073709551615", "100000000"});
  expect_refusal([] { parse(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)); }, {"100000001", "limit"});
  expect_refusal([] { parse("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7"); }, {"git lfs pull"});
  expect_refusal([] { parse("PK\x03\x04 this is a zip file of PyTorch"); }, {"not a safetensors file"});
}

TEST(Safetensors, MissingFilesAndDirectories) {
  TempDir dir;
  expect_refusal([&] { SafetensorsFile::open(dir / "absent.safetensors"); }, {"absent.safetensors", "No such file"});
  expect_refusal([&] { SafetensorsFile::open(dir.path()); }, {dir.path().string(), "not a regular file"});
  ASSERT_EQ(mkfifo((dir / "pipe.safetensors").c_str(), 0600), 0);
  expect_refusal([&] { SafetensorsFile::open(dir / "pipe.safetensors"); }, {"pipe.safetensors", "not a regular file"});
  write_text(dir / "empty.safetensors", "");
  expect_refusal([&] { SafetensorsFile::open(dir / "empty.safetensors"); }, {"empty.safetensors", "too short"});
}

TEST(Safetensors, EveryTruncationOfARealFileIsRefused) {
  TempDir dir;
  test::write_safetensors(dir / "x.safetensors",
                          {{"a", test::filled(DType::kF32, {2, 3}, 1)}, {"b", test::filled(DType::kBf16, {5}, 2)}});
  std::ifstream stream(dir / "x.safetensors", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  EXPECT_EQ(parse(whole).entries().size(), 2U);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    expect_refusal([&] { parse(whole.substr(0, bytes)); }, {"f.safetensors"});
  }
}

TEST(Safetensors, ToDoublesReadsEveryDtype) {
  const std::string header =
      R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},)"
      R"("c":{"dtype":"F32","shape":[1],"data_offsets":[16,20]},"d":{"dtype":"I32","shape":[1],"data_offsets":[20,24]},)"
      R"("e":{"dtype":"BF16","shape":[1],"data_offsets":[24,26]},"f":{"dtype":"F16","shape":[1],"data_offsets":[26,28]},)"
      R"("g":{"dtype":"U8","shape":[1],"data_offsets":[28,29]},"h":{"dtype":"BOOL","shape":[1],"data_offsets":[29,30]}})";
  const SafetensorsFile file = parse(raw_safetensors(header, 30));
  const std::map<std::string, double> expected = {{"a", std::bit_cast<double>(0x0101010101010101ULL)},
                                                  {"b", 72340172838076673.0},
                                                  {"c", std::bit_cast<float>(0x01010101U)},
                                                  {"d", 16843009.0},
                                                  {"e", std::bit_cast<float>(0x01010000U)},
                                                  {"f", 257 * std::exp2(-24)},
                                                  {"g", 1},
                                                  {"h", 1}};
  for (const auto& [name, value] : expected)
    EXPECT_EQ(to_doubles(file.tensor(name)), std::vector<double>{value}) << name;
}

TEST(Safetensors, OpensEveryFixtureOfTheRepository) {
  size_t files = 0;
  for (const auto& item : std::filesystem::recursive_directory_iterator(TENDON_TEST_DATA)) {
    if (item.path().extension() != ".safetensors") continue;
    const SafetensorsFile file = SafetensorsFile::open(item.path());
    EXPECT_FALSE(file.entries().empty()) << item.path();
    ++files;
  }
  EXPECT_GE(files, 22U);
}

}  // namespace
}  // namespace tendon
