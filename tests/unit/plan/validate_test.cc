#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>

#include "base/check.h"
#include "samples.h"

namespace tendon::test {
namespace {

std::string refusal(const Op& op) {
  try {
    validate(op);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    return error.what();
  }
  return "";
}

TEST(Validate, EveryKindHasAValidSample) {
  const Samples samples;
  std::set<std::string> names;
  for (const Op& op : samples.ops()) {
    EXPECT_EQ(refusal(op), "") << op_name(op);
    names.emplace(op_name(op));
  }
  EXPECT_EQ(names.size(), std::variant_size_v<OpArgs>);
}

// Every tensor of every operation, one column wider: the message names operation, place and shapes.
TEST(Validate, AnyTensorOfAnotherWidthIsRefused) {
  const Samples samples;
  // Tables of rows that are looked up may have any number of rows; their width must fit.
  int refused = 0;
  for (const Op& op : samples.ops()) {
    int count = 0;
    for_each_tensor(op, [&](const char*, const Tensor&, Access) { ++count; });
    for (int which = 0; which < count; ++which) {
      Op broken = op;
      int at = 0;
      std::string name;
      std::string shape;
      for_each_tensor(broken, [&](const char* tensor_name, Tensor& tensor, Access) {
        if (at++ != which) return;
        Shape wider;
        for (int axis = 0; axis < tensor.shape.rank(); ++axis) {
          wider.push_back(tensor.shape[axis] + (axis + 1 == tensor.shape.rank() ? 1 : 0));
        }
        tensor.shape = wider;
        tensor.row_stride = wider[-1];
        name = tensor_name;
        shape = to_string(wider);
      });
      const std::string text = refusal(broken);
      EXPECT_NE(text, "") << op_name(op) << " accepts " << name << " " << shape;
      if (text.empty()) continue;
      EXPECT_NE(text.find("here." + std::string(op_name(op))), std::string::npos) << text;
      EXPECT_NE(text.find(name + shape), std::string::npos) << text;
      ++refused;
    }
  }
  EXPECT_GT(refused, 80);
}

TEST(Validate, WrongTypesAreRefused) {
  const Samples samples;
  for (Op op : samples.ops()) {
    std::set<std::string> indices;
    for_each_tensor(op, [&](const char* name, Tensor& tensor, Access) {
      if (tensor.dtype != DType::kI32) return;
      indices.insert(name);
      tensor.dtype = DType::kI64;
    });
    if (!indices.empty()) {
      EXPECT_NE(refusal(op), "") << op_name(op) << " accepts i64 indices";
    }
  }
  Linear linear = samples.get<Linear>();
  linear.bias.dtype = DType::kBf16;
  EXPECT_NE(refusal({linear, "here"}), "") << "biases are f32";
  RmsNorm norm = samples.get<RmsNorm>();
  norm.gain.dtype = DType::kBf16;
  EXPECT_NE(refusal({norm, "here"}), "");
  Patchify patchify = samples.get<Patchify>();
  patchify.images.dtype = DType::kBf16;
  EXPECT_NE(refusal({patchify, "here"}), "");
}

TEST(Validate, CodesComeWithFactorsAndFactorsWithCodes) {
  const Samples samples;
  Cast cast = samples.get<Cast>();
  cast.unit_scales = true;
  EXPECT_NE(refusal({cast, "here"}).find("factors for unit scales"), std::string::npos);
  cast.factors = samples.get<RmsNorm>().gain;
  EXPECT_NE(refusal({cast, "here"}).find("codes where there are factors"), std::string::npos) << "out is bf16";
  LayerNormLinear linear = samples.get<LayerNormLinear>();
  linear.out.dtype = DType::kI8;
  EXPECT_NE(refusal({linear, "here"}).find("factors where out has codes"), std::string::npos);
  linear.factors = linear.linear_bias;
  EXPECT_EQ(refusal({linear, "here"}), "");
  linear.out.dtype = DType::kF32;
  EXPECT_NE(refusal({linear, "here"}).find("only there"), std::string::npos);
  NormGateUpGelu gate_up = samples.get<NormGateUpGelu>();
  gate_up.out.dtype = DType::kE4m3;
  EXPECT_NE(refusal({gate_up, "here"}).find("factors where out has codes"), std::string::npos);
  AttentionToCodes attention = samples.get<AttentionToCodes>();
  attention.factors = {};
  EXPECT_NE(refusal({attention, "here"}), "");
  attention = samples.get<AttentionToCodes>();
  attention.out.dtype = DType::kBf16;
  EXPECT_NE(refusal({attention, "here"}), "");
  LinearResidual residual = samples.get<LinearResidual>();
  residual.x.dtype = DType::kI8;  // w is f32
  EXPECT_NE(refusal({residual, "here"}).find("codes in x only of w's type"), std::string::npos);
}

TEST(Validate, RulesBeyondWidths) {
  const Samples samples;
  Patchify patchify = samples.get<Patchify>();
  patchify.patch = 13;
  EXPECT_NE(refusal({patchify, "here"}).find("whole patches"), std::string::npos);
  AddRows add_rows = samples.get<AddRows>();
  add_rows.table.shape = {4, 8};  // 6 rows are no multiple
  EXPECT_NE(refusal({add_rows, "here"}), "");
  Attention attention = samples.get<Attention>();
  attention.heads = 3;
  EXPECT_NE(refusal({attention, "here"}).find("heads of one width"), std::string::npos);
  attention = samples.get<Attention>();
  attention.leading_block = 4;  // of 3 queries
  EXPECT_NE(refusal({attention, "here"}).find("leading block"), std::string::npos);
  attention = samples.get<Attention>();
  attention.extra_keys = 0;
  EXPECT_NE(refusal({attention, "here"}).find("leading block"), std::string::npos);
  attention = samples.get<Attention>();
  attention.q = attention.q.reshaped({1, 6, 8});  // another batch than the keys
  attention.out = attention.out.reshaped({1, 6, 8});
  EXPECT_NE(refusal({attention, "here"}), "");
  NormQkvRope qkv = samples.get<NormQkvRope>();
  qkv.wq = {};
  EXPECT_NE(refusal({qkv, "here"}).find("q and wq together"), std::string::npos);
  qkv.q = {};
  EXPECT_EQ(refusal({qkv, "here"}), "") << "keys and values alone are fine";
  Linear linear = samples.get<Linear>();
  linear.out = linear.out.row_range(0, 5);
  EXPECT_NE(refusal({linear, "here"}).find("out (M, N)"), std::string::npos);
}

TEST(Validate, RecorderRefusesOnTheSpot) {
  Recorder r;
  const Tensor x = r.input("x", DType::kF32, {2, 4});
  const Tensor out = r.kept("out", DType::kF32, {2, 5});
  const Recorder::Scope scope = r.scope("prefix");
  EXPECT_THROW(r.add(Cast{.x = x, .out = out}), Error);
  EXPECT_TRUE(r.ops().empty());
}

TEST(Describe, ListsTensorsWithShapesAndTypes) {
  const Samples samples;
  EXPECT_EQ(describe({samples.get<Cast>(), "here"}), "cast x[6, 8] f32, out[6, 8] bf16");
  EXPECT_EQ(op_label({samples.get<Cast>(), "prefix.3"}), "prefix.3.cast");
}

}  // namespace
}  // namespace tendon::test
