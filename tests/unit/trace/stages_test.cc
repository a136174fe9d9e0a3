#include "trace/stages.h"

#include <gmock/gmock.h>

#include "trace/read.h"
#include "trace_file.h"

namespace tendon::trace::test {
namespace {

using testing::Each;
using testing::HasSubstr;

struct Found {
  Trace trace;
  Work work;
  Stages stages;
  int64_t count(Stage stage) const { return std::ranges::count(stages.of_piece, stage); }
  // The stage of the n-th piece of this name.
  Stage of(const std::string& name, int64_t n = 0) const {
    for (size_t i = 0; i < work.pieces.size(); ++i) {
      if (trace.name(trace.events[work.pieces[i].event]) == name && n-- == 0) return stages.of_piece[i];
    }
    ADD_FAILURE() << "no piece " << name;
    return Stage::kUnknown;
  }
};

Found find(const PyTorchTrace& writer, const LayerCounts& layers = {}) {
  Found found{read_trace(TempFile(writer.text()).path()), {}, {}};
  found.work = find_work(found.trace);
  found.stages = find_stages(found.trace, found.work, layers);
  return found;
}

TEST(Stages, AreFoundByCountingAttentionKernels) {
  PyTorchTrace writer;
  add_call(writer);
  const Found found = find(writer);
  EXPECT_EQ(found.stages.calls, 1);
  EXPECT_EQ(found.stages.steps, 3);
  EXPECT_EQ(found.count(Stage::kVision), 27 * 4 + 2);  // with patches and projector
  EXPECT_EQ(found.count(Stage::kPrefix), 18 * 4);
  EXPECT_EQ(found.count(Stage::kDenoise), 3 * (18 * 4 + 2));
  EXPECT_EQ(found.of("projector_gemm"), Stage::kVision);
  EXPECT_EQ(found.of("action_in_gemm"), Stage::kDenoise);
  EXPECT_EQ(found.of("action_out_gemm", 2), Stage::kDenoise);
  EXPECT_EQ(found.stages.step.back(), 2);
  EXPECT_THAT(found.stages.evidence, testing::Contains(HasSubstr("27 × flash")));
}

TEST(Stages, AreFoundInSeveralCallsWithOtherWorkInFront) {
  PyTorchTrace writer;
  for (int i = 0; i < 300; ++i) writer.kernel("warm_up", "[1,1,1]", 1);
  for (int call = 0; call < 3; ++call) add_call(writer);
  const Found found = find(writer);
  EXPECT_EQ(found.stages.calls, 3);
  EXPECT_EQ(found.stages.steps, 3);
  EXPECT_EQ(found.of("warm_up", 100), Stage::kOther);
  EXPECT_EQ(found.count(Stage::kPrefix), 3 * 18 * 4);
  EXPECT_EQ(found.of("patch_embedding", 2), Stage::kVision);
}

TEST(Stages, AllowEachPictureItsOwnPassAndALastPrefixLayerWithoutAttention) {
  PyTorchTrace writer;
  add_call(writer, {.vision = 54, .prefix = 17, .steps = 10});
  const Found found = find(writer);
  EXPECT_EQ(found.stages.calls, 1);
  EXPECT_EQ(found.stages.steps, 10);
  EXPECT_EQ(found.count(Stage::kPrefix), 17 * 4);
}

TEST(Stages, SplitOneKernelOfPrefixAndExpertByCountAndSaySo) {
  PyTorchTrace writer;
  add_call(writer, {.expert_grid = "[7,8,1]"});
  const Found found = find(writer);
  EXPECT_EQ(found.stages.steps, 3);
  EXPECT_EQ(found.count(Stage::kPrefix), 18 * 4);
  EXPECT_THAT(found.stages.evidence.back(), HasSubstr("same kernel"));
}

TEST(Stages, StayUnknownWhereCountsDoNotFit) {
  for (const CallShape& shape : {CallShape{.vision = 26}, CallShape{.prefix = 16}, CallShape{.expert = 17},
                                 CallShape{.vision = 24, .prefix = 24, .expert = 24}}) {
    PyTorchTrace writer;
    add_call(writer, shape);
    const Found found = find(writer);
    EXPECT_EQ(found.stages.calls, 0);
    EXPECT_THAT(found.stages.of_piece, Each(Stage::kUnknown));
    EXPECT_THAT(found.stages.evidence, testing::Contains(HasSubstr("not a multiple of 27")));
  }
}

TEST(Stages, CanBeToldByOtherLayerCounts) {
  PyTorchTrace writer;
  add_call(writer, {.vision = 12, .prefix = 6, .steps = 2, .expert = 6});
  EXPECT_EQ(find(writer).stages.calls, 0);
  EXPECT_EQ(find(writer, {.vision = 12, .prefix = 6}).stages.steps, 2);
}

TEST(Stages, PreferTheMlpsShapesWhereTheTraceHasThem) {
  PyTorchTrace writer;
  const auto layers = [&](int count, int64_t rows, int64_t width, int64_t mlp) {
    for (int i = 0; i < count; ++i) {
      writer.kernel("nvjet_up", "[1,1,1]", 1, "aten::mm", fmt::format("[[{},{}],[{},{}]]", rows, width, width, mlp));
      writer.kernel("nvjet_down", "[1,1,1]", 1, "aten::addmm",
                    fmt::format("[[{}],[{},{}],[{},{}]]", width, rows, mlp, mlp, width));
    }
  };
  layers(27, 768, 1152, 4304);
  layers(18, 788, 2048, 16384);
  layers(36, 11, 1024, 4096);
  const Found found = find(writer);
  EXPECT_EQ(found.stages.steps, 2);
  EXPECT_EQ(found.count(Stage::kVision), 54);
  EXPECT_THAT(found.stages.evidence.front(), HasSubstr("by its shape"));
}

TEST(Stages, OfARealProfileOfTheSameStructure) {
  const Trace trace = read_trace(TENDON_TEST_DATA "/traces/torch_cpu_tiny.json.gz");
  const Work work = find_work(trace);
  EXPECT_EQ(work.kind, WorkKind::kOperators);
  const Stages stages = find_stages(trace, work);
  EXPECT_EQ(stages.calls, 1);
  EXPECT_EQ(stages.steps, 2);
  EXPECT_EQ(std::ranges::count(stages.of_piece, Stage::kUnknown), 0);
}

TEST(Work, ReadsProductsFromOperators) {
  EXPECT_EQ(product_of("aten::mm", "[[788,2048],[2048,2560]]"), (Product{1, 788, 2560, 2048}));
  EXPECT_EQ(product_of("aten::addmm", "[[64],[3,8],[8,64],[],[]]"), (Product{1, 3, 64, 8}));
  EXPECT_EQ(product_of("aten::bmm", "[[8,11,256],[8,256,799]]"), (Product{8, 11, 799, 256}));
  EXPECT_EQ(product_of("aten::linear", "[[2,5,8],[64,8],[64]]"), (Product{1, 10, 64, 8}));
  EXPECT_EQ(product_of("aten::mul", "[[3,8],[8,3]]").m, 0);
  EXPECT_EQ(product_of("aten::mm", "[[3,8],[9,3]]").m, 0);
  EXPECT_EQ(product_of("aten::mm", "[[3,8]]").m, 0);
  EXPECT_EQ(product_of("aten::mm", "nonsense").m, 0);
}

}  // namespace
}  // namespace tendon::trace::test
