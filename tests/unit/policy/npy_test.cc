#include "policy/files/npy.h"

#include <cstring>
#include <limits>

#include "policy_test.h"

namespace tendon {
namespace {

NpyArray parse(const std::string& content) {
  return parse_npy(std::as_bytes(std::span(content.data(), content.size())), "x.npy");
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string npy(const std::string& header, const std::string& data, char version = 1) {
  std::string text = std::string("\x93NUMPY") + version + '\0';
  text += static_cast<char>(header.size() & 0xff);
  text += static_cast<char>(header.size() >> 8);
  if (version == 2) text += std::string(2, '\0');
  return text + header + data;
}

std::string dict(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

const std::vector<float> kSix = {1.0F, -2.5F, 0.1F, 4.0F, 5.0F, 6.0F};

TEST(Npy, ReadsBothTypesAndVersions) {
  const NpyArray single = parse(npy(dict("'<f4'", "(2, 3)"), raw(kSix)));
  EXPECT_EQ(single.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(single.is_f64);
  EXPECT_EQ(single.values, std::vector<double>(kSix.begin(), kSix.end()));
  const std::vector<double> doubles = {0.1, -7.0};
  const NpyArray wide = parse(npy(dict("'<f8'", "(2,)"), raw(doubles), 2));
  EXPECT_TRUE(wide.is_f64);
  EXPECT_EQ(wide.shape, std::vector<int64_t>{2});
  EXPECT_EQ(wide.values, doubles);
  EXPECT_EQ(parse(npy(dict("'<f8'", "()"), raw(std::vector<double>{3.0}))).values, std::vector<double>{3.0});
  EXPECT_TRUE(parse(npy(dict("'<f4'", "(0, 3)"), "")).values.empty());
}

TEST(Npy, WritesWhatItReads) {
  const TempFile file("out.npy", "");
  write_npy(file.path(), std::vector<int64_t>{3, 2}, kSix);
  const std::string content = read_text(file.path());
  EXPECT_EQ((content.size() - raw(kSix).size()) % 64, 0U);
  EXPECT_EQ(content[content.size() - raw(kSix).size() - 1], '\n');
  EXPECT_NE(content.find("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"), std::string::npos);
  EXPECT_EQ(read_npy(file.path()).values, std::vector<double>(kSix.begin(), kSix.end()));

  const std::vector<double> doubles = {0.1, 1e300, -7.0};
  write_npy(file.path(), std::vector<int64_t>{3}, doubles);
  const NpyArray array = read_npy(file.path());
  EXPECT_TRUE(array.is_f64);
  EXPECT_EQ(array.values, doubles);
  expect_bad_input({"cannot write 'no/such/folder/x.npy'"},
                   [&] { write_npy("no/such/folder/x.npy", std::vector<int64_t>{3}, doubles); });
}

TEST(Npy, RefusesOtherTypesAndOrders) {
  expect_bad_input({"x.npy", "dtype <f2", "(2, 3)", "astype"}, [] { parse(npy(dict("'<f2'", "(2, 3)"), "")); });
  expect_bad_input({"dtype >f4"}, [] { parse(npy(dict("'>f4'", "(6,)"), raw(kSix))); });
  expect_bad_input({"dtype |u1"}, [] { parse(npy(dict("'|u1'", "(6,)"), "123456")); });
  expect_bad_input({"dtype [('a', '<f4')]"}, [] { parse(npy(dict("[('a', '<f4')]", "(6,)"), raw(kSix))); });
  expect_bad_input({"Fortran order", "(2, 3)"}, [] { parse(npy(dict("'<f4'", "(2, 3)", "True"), raw(kSix))); });
  expect_bad_input({"version 3"}, [] { parse(npy(dict("'<f4'", "(6,)"), raw(kSix), 3)); });
}

TEST(Npy, RefusesDamagedFiles) {
  expect_bad_input({"not a .npy file"}, [] { parse(""); });
  expect_bad_input({"not a .npy file"}, [] { parse("[1, 2, 3, 4, 5]"); });
  expect_bad_input({"header"}, [] { parse(npy("{}", "")); });
  expect_bad_input({"header"}, [] { parse(npy(dict("'<f4'", "(2, x)"), raw(kSix))); });
  expect_bad_input({"header"}, [] { parse(npy(dict("'<f4'", "(-6,)"), raw(kSix))); });
  expect_bad_input({"header"}, [] { parse(npy(dict("'<f4'", "(6"), raw(kSix))); });
  expect_bad_input({"header"}, [] { parse(npy(dict("'<f4'", "(2 3)"), raw(kSix))); });
  expect_bad_input({"(7,)", "24 bytes"}, [] { parse(npy(dict("'<f4'", "(7,)"), raw(kSix))); });
  expect_bad_input({"(5,)", "24 bytes"}, [] { parse(npy(dict("'<f4'", "(5,)"), raw(kSix))); });
  expect_bad_input({"does not fit"}, [] { parse(npy(dict("'<f4'", "(4294967296, 4294967296, 4)"), raw(kSix))); });
  const std::string whole = npy(dict("'<f4'", "(2, 3)"), raw(kSix));
  for (size_t length = 0; length < whole.size(); ++length) {
    expect_bad_input({"x.npy"}, [&] { parse(whole.substr(0, length)); });
  }
  expect_bad_input({"no such regular file"}, [] { read_npy("no/such/file.npy"); });
}

TEST(Npy, NoiseMustFitTheModel) {
  const TempFile plain("noise.npy", npy(dict("'<f4'", "(2, 3)"), raw(kSix)));
  EXPECT_EQ(read_noise(plain.path(), 2, 3), kSix);
  const TempFile batched("noise1.npy", npy(dict("'<f4'", "(1, 2, 3)"), raw(kSix)));
  EXPECT_EQ(read_noise(batched.path(), 2, 3), kSix);
  expect_bad_input({plain.path(), "(2, 3)", "(3, 2) or (1, 3, 2)"}, [&] { read_noise(plain.path(), 3, 2); });

  std::vector<double> values = {0.0, 1.0, std::numeric_limits<double>::quiet_NaN(), 1e300};
  const TempFile nan("nan.npy", npy(dict("'<f8'", "(2, 2)"), raw(values)));
  expect_bad_input({"element 2", "nan"}, [&] { read_noise(nan.path(), 2, 2); });
  values[2] = 0.0;
  const TempFile huge("huge.npy", npy(dict("'<f8'", "(2, 2)"), raw(values)));
  expect_bad_input({"element 3", "inf"}, [&] { read_noise(huge.path(), 2, 2); });
}

}  // namespace
}  // namespace tendon
