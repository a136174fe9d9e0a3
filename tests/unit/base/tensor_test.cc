#include "base/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"

namespace tendon {
namespace {

template <class F>
std::string internal_error(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    return error.what();
  }
  return "nothing thrown";
}

class TensorTest : public testing::Test {
 protected:
  TensorTest() : numbers_(24) { std::iota(numbers_.begin(), numbers_.end(), 0.0F); }
  Tensor matrix() { return {DType::kF32, {4, 6}, numbers_.data()}; }
  std::vector<float> numbers_;
};

TEST(Shape, CountsAndIndexesFromBothEnds) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[2], 5);
  EXPECT_EQ(shape[-1], 5);
  EXPECT_EQ(shape[-3], 2);
  EXPECT_EQ(shape.elements(), 30);
  EXPECT_EQ(to_string(shape), "[2, 3, 5]");
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ(Shape{}.rank(), 0);
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ((Shape{3, 0, 2}).elements(), 0);
}

TEST(Shape, EqualityIsOfRankAndDims) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2}), (Shape{2, 0}));  // unused dims are zero: the rank must tell
  Shape grown{2};
  grown.push_back(3);
  EXPECT_EQ(grown, (Shape{2, 3}));
}

TEST(Shape, RefusesMoreThanFourDimensions) {
  EXPECT_NE(internal_error([] { Shape({1, 2, 3, 4, 5}); }).find("rank 5"), std::string::npos);
  Shape full{1, 2, 3, 4};
  EXPECT_NE(internal_error([&] { full.push_back(5); }).find("rank 5"), std::string::npos);
  EXPECT_EQ(full, (Shape{1, 2, 3, 4}));
}

TEST_F(TensorTest, LeadingDimensionsFlattenToRows) {
  const Tensor cube(DType::kBf16, {2, 3, 4}, numbers_.data());
  EXPECT_EQ(cube.rows(), 6);
  EXPECT_EQ(cube.cols(), 4);
  EXPECT_EQ(cube.elements(), 24);
  EXPECT_EQ(cube.bytes(), 48U);
  EXPECT_EQ(cube.row_stride, 4);
  EXPECT_TRUE(cube.contiguous());
  const Tensor vector(DType::kF32, {24}, numbers_.data());
  EXPECT_EQ(vector.rows(), 1);
  EXPECT_EQ(vector.cols(), 24);
  const Tensor scalar(DType::kF64, {});
  EXPECT_EQ(scalar.rows(), 1);
  EXPECT_EQ(scalar.cols(), 1);
  EXPECT_EQ(scalar.bytes(), 8U);
  const Tensor empty(DType::kF32, {3, 0});
  EXPECT_EQ(empty.rows(), 0);
  EXPECT_EQ(empty.bytes(), 0U);
}

TEST_F(TensorTest, DefinedMeansBoundOrPlanned) {
  EXPECT_FALSE(Tensor{}.defined());
  EXPECT_FALSE(Tensor(DType::kF32, {2, 2}).defined());
  EXPECT_TRUE(matrix().defined());
  Tensor planned(DType::kF32, {2, 2});
  planned.value = 0;
  EXPECT_TRUE(planned.defined());
}

TEST_F(TensorTest, RowRange) {
  const Tensor rows = matrix().row_range(1, 2);
  EXPECT_EQ(rows.shape, (Shape{2, 6}));
  EXPECT_EQ(rows.as<float>()[0], 6.0F);
  EXPECT_EQ(rows.as<float>()[rows.row_stride + 5], 17.0F);
  EXPECT_EQ(rows.value_offset, 6);
  const Tensor of_cube = Tensor(DType::kF32, {2, 2, 6}, numbers_.data()).row_range(3, 1);
  EXPECT_EQ(of_cube.as<float>()[0], 18.0F);
  EXPECT_EQ(matrix().row_range(4, 0).rows(), 0);
}

TEST_F(TensorTest, ColumnRangeKeepsStrideAndLeadingDimensions) {
  const Tensor columns = Tensor(DType::kF32, {2, 2, 6}, numbers_.data()).col_range(2, 3);
  EXPECT_EQ(columns.shape, (Shape{2, 2, 3}));
  EXPECT_EQ(columns.row_stride, 6);
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(columns.as<float>()[0], 2.0F);
  EXPECT_EQ(columns.as<float>()[3 * columns.row_stride + 2], 22.0F);
  // Views of views add up.
  const Tensor inner = columns.row_range(2, 2).col_range(1, 1);
  EXPECT_EQ(inner.as<float>()[0], 15.0F);
  EXPECT_EQ(inner.as<float>()[inner.row_stride], 21.0F);
  EXPECT_EQ(inner.value_offset, 15);
  EXPECT_TRUE(matrix().row_range(0, 1).col_range(1, 2).contiguous()) << "a single row has no gaps";
}

TEST_F(TensorTest, OffsetsCountElementsNotBytes) {
  std::vector<Bf16> halves(24);
  const Tensor view = Tensor(DType::kBf16, {4, 6}, halves.data()).row_range(2, 1).col_range(3, 2);
  EXPECT_EQ(view.as<Bf16>(), halves.data() + 15);
  EXPECT_EQ(view.value_offset, 15);
}

TEST_F(TensorTest, UnboundViewsShiftTheOffsetOnly) {
  Tensor planned(DType::kF32, {4, 6});
  planned.value = 3;
  const Tensor view = planned.row_range(1, 1).col_range(2, 2);
  EXPECT_EQ(view.data, nullptr);
  EXPECT_EQ(view.value, 3);
  EXPECT_EQ(view.value_offset, 8);
}

TEST_F(TensorTest, Reshaped) {
  const Tensor cube = matrix().reshaped({2, 2, 6});
  EXPECT_EQ(cube.shape, (Shape{2, 2, 6}));
  EXPECT_EQ(cube.row_stride, 6);
  const Tensor other = matrix().reshaped({3, 8});
  EXPECT_EQ(other.row_stride, 8);
  EXPECT_EQ(other.as<float>()[other.row_stride], 8.0F);
  // Columns of a wider matrix keep their stride while the last dimension stays.
  const Tensor columns = matrix().col_range(0, 3).reshaped({2, 2, 3});
  EXPECT_EQ(columns.row_stride, 6);
  EXPECT_EQ(columns.shape, (Shape{2, 2, 3}));
}

TEST_F(TensorTest, RefusesWhatIsNotThere) {
  EXPECT_NE(internal_error([&] { (void)matrix().row_range(3, 2); }).find("rows 3..5 of 4"), std::string::npos);
  EXPECT_NE(internal_error([&] { (void)matrix().col_range(5, 2); }).find("columns 5..7 of 6"), std::string::npos);
  EXPECT_NE(internal_error([&] { (void)matrix().row_range(-1, 2); }).find("rows -1..1"), std::string::npos);
  EXPECT_NE(internal_error([&] { (void)matrix().col_range(0, -1); }).find("columns 0..-1"), std::string::npos);
  EXPECT_NE(internal_error([&] {
              (void)matrix().reshaped({5, 5});
            }).find("cannot view [4, 6] as [5, 5]"),
            std::string::npos);
  EXPECT_NE(internal_error([&] {
              (void)matrix().col_range(0, 3).reshaped({3, 4});
            }).find("cannot view"),
            std::string::npos)
      << "rows with gaps cannot become other rows";
}

}  // namespace
}  // namespace tendon
