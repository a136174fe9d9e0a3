#include "ops/recorder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/check.h"

namespace tendon {
namespace {

TEST(Recorder, ValuesGetIdsInOrder) {
  Recorder r;
  const Tensor a = r.input("a", DType::kF32, {2, 3});
  const Tensor b = r.temporary(DType::kBf16, {4});
  const Tensor c = r.kept("c", DType::kI32, {5});
  EXPECT_EQ(a.value, 0);
  EXPECT_EQ(b.value, 1);
  EXPECT_EQ(c.value, 2);
  EXPECT_EQ(a.data, nullptr);
  ASSERT_EQ(r.values().size(), 3U);
  EXPECT_EQ(r.values()[0].kind, Value::Kind::kInput);
  EXPECT_EQ(r.values()[1].kind, Value::Kind::kTemporary);
  EXPECT_EQ(r.values()[2].kind, Value::Kind::kKept);
  EXPECT_EQ(r.values()[1].shape, (Shape{4}));
}

TEST(Recorder, ScopesNestAndEnd) {
  Recorder r;
  const Tensor x = r.input("x", DType::kF32, {2});
  const Tensor out = r.kept("out", DType::kF32, {2});
  r.add(Cast{.x = x, .out = out});
  {
    const auto outer = r.scope("prefix");
    {
      const auto inner = r.scope("3");
      r.add(Cast{.x = x, .out = out});
    }
    r.add(Cast{.x = x, .out = out});
  }
  r.add(Cast{.x = x, .out = out});
  EXPECT_EQ(r.ops()[0].scope, "");
  EXPECT_EQ(r.ops()[1].scope, "prefix.3");
  EXPECT_EQ(r.ops()[2].scope, "prefix");
  EXPECT_EQ(r.ops()[3].scope, "");
}

TEST(Recorder, KeepNamesATemporaryOnce) {
  Recorder r;
  const Tensor x = r.input("x", DType::kF32, {2});
  const Tensor h = r.temporary(DType::kF32, {2});
  r.keep(h, "hidden");
  EXPECT_EQ(r.values()[1].kind, Value::Kind::kKept);
  EXPECT_EQ(r.values()[1].name, "hidden");
  EXPECT_THROW(r.keep(h, "again"), Error);
  EXPECT_THROW(r.keep(x, "input"), Error);
  float weight[2] = {};
  EXPECT_THROW(r.keep(Tensor(DType::kF32, {2}, weight), "weight"), Error);
}

TEST(Recorder, TakeOpsLeavesValuesAndEarlierOps) {
  Recorder r;
  const Tensor x = r.input("x", DType::kF32, {2});
  const Tensor out = r.kept("out", DType::kF32, {2});
  r.add(Cast{.x = x, .out = out});
  r.add(ResidualAdd{.x = x, .y = x, .out = out});
  r.add(Cast{.x = x, .out = out});
  const std::vector<Op> taken = r.take_ops(1);
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(op_name(taken[0]), "residual_add");
  EXPECT_EQ(r.ops().size(), 1U);
  EXPECT_EQ(r.values().size(), 2U);
}

TEST(ForEachTensor, SkipsUndefinedOnesAndCanWrite) {
  Recorder r;
  const Tensor x = r.input("x", DType::kF32, {2, 4});
  Op op{Linear{.x = x, .w = r.input("w", DType::kF32, {3, 4}), .bias = {}, .out = r.kept("out", DType::kF32, {2, 3})},
        ""};
  std::vector<std::string> names;
  for_each_tensor(std::as_const(op), [&](const char* name, const Tensor&, Access access) {
    names.push_back(std::string(name) + (access == Access::kRead ? "" : "!"));
  });
  EXPECT_EQ(names, (std::vector<std::string>{"x", "w", "out!"}));
  for_each_tensor(op, [&](const char*, Tensor& tensor, Access) { tensor.value = 7; });
  EXPECT_EQ(std::get<Linear>(op.args).out.value, 7);
}

}  // namespace
}  // namespace tendon
