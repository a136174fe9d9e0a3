// Field case 20: a thousand requests of every prompt length find everything made and allocated.
#include <algorithm>

#include "../support/copying_backend.h"
#include "policy/tokenizer.h"
#include "served.h"

namespace tendon::test {
namespace {

// DROID's observation with this prompt; pictures and state are other ones for every number.
std::string droid_request(uint64_t number, const std::string& prompt) {
  std::mt19937_64 random(number);
  std::vector<std::byte> picture(28 * 28 * 3);
  std::ranges::generate(picture, [&] { return static_cast<std::byte>(random()); });
  std::vector<double> state(8);
  std::ranges::generate(state, [&] { return std::uniform_real_distribution<double>(-2, 2)(random); });
  const std::array<int64_t, 3> shape{28, 28, 3};
  const std::array<int64_t, 1> joints{7}, gripper{1};
  WireWriter writer;
  writer.map(5).text("observation/exterior_image_1_left").array("|u1", shape, picture);
  writer.text("observation/wrist_image_left").array("|u1", shape, picture);
  writer.text("observation/joint_position").array(joints, std::span(state).first(7));
  writer.text("observation/gripper_position").array(gripper, std::span(state).last(1));
  writer.text("prompt").text(prompt);
  return writer.take();
}

TEST(ServedPolicy, ThousandRequestsMakeAndAllocateNothing) {
  const Tokenizer tokenizer(data_dir() / "policy" / "tiny_tokenizer.model");
  const TempDir temp;
  StoredMap weights = read_weights(data_dir() / "tiny_pi0");
  add_embeddings(weights, 576);
  write_checkpoint(temp.path(), weights, data_dir() / "tiny_pi0");
  auto owned = std::make_unique<CopyingBackend>();
  CopyingBackend& backend = *owned;
  Served served(std::move(owned), temp.path(), "pi0_droid", &tokenizer, 1, DType::kF32, 0, {});

  // One prompt of each length from two tokens (an empty one) to the budget.
  std::vector<std::string> prompts;
  std::string prompt;
  for (size_t letters = 0; prompts.size() < 47 && letters < 500; ++letters) {
    const PromptTokens tokens = tokenizer.pi0_tokens(prompt);
    if (tokens.ids.size() == prompts.size() + 2) prompts.push_back(prompt);
    prompt += static_cast<char>('a' + 7 * letters % 26);
  }
  ASSERT_EQ(tokenizer.pi0_tokens(prompts.back()).ids.size(), 48U);
  ASSERT_EQ(prompts.size(), 47U);

  served.start();
  WireClient client = served.connect();
  const int made = backend.prepared;
  const int allocated = backend.allocations + backend.host_allocations;
  const int uploads = backend.uploads, runs = backend.runs;
  std::vector<double> last;
  for (uint64_t number = 0; number < 1000; ++number) {
    client.write(droid_request(number, prompts[number % prompts.size()]));
    const std::vector<double> actions = actions_of(client.read());
    ASSERT_EQ(actions.size(), 4U * 8) << number;
    ASSERT_NE(actions, last) << number;
    last = actions;
  }
  EXPECT_EQ(backend.prepared, made);
  EXPECT_EQ(backend.allocations + backend.host_allocations, allocated);
  EXPECT_EQ(backend.uploads, uploads);
  EXPECT_EQ(backend.runs, runs + 1000);
}

}  // namespace
}  // namespace tendon::test
