// The parts of the server that need no network: queue, metrics, pages, recordings.
#include <gmock/gmock.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "server/inference_queue.h"
#include "server/pages.h"
#include "server/policy/policy_model.h"
#include "server/record.h"

namespace tendon::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ServerInfo info() {
  return {.version = "1", .model = "pi0 \"tiny\"", .preset = "p", .backend = "cpu", .device = "d", .precision = "bf16"};
}

// --- keys and pages -------------------------------------------------------------------------------------------------

TEST(ApiKey, OnlyTheWholeKey) {
  EXPECT_TRUE(is_authorized("", ""));
  EXPECT_TRUE(is_authorized("anything", ""));
  EXPECT_TRUE(is_authorized("Api-Key secret", "secret"));
  for (const char* wrong : {"", "secret", "Api-Key", "Api-Key ", "Api-Key secre", "Api-Key secrets",
                            "Api-Key secretsecret", "Api-Key Secret", "Bearer secret", "api-key secret"}) {
    EXPECT_FALSE(is_authorized(wrong, "secret")) << wrong;
  }
}

TEST(Pages, AnswersByTarget) {
  const Metrics metrics(info());
  EXPECT_EQ(page_for("/healthz", false, metrics).body, "OK\n");
  EXPECT_EQ(page_for("/healthz", false, metrics).status, 200);
  EXPECT_EQ(page_for("/healthz?x", true, metrics).status, 426);
  EXPECT_EQ(page_for("/nothing", true, metrics).status, 426);
  EXPECT_EQ(page_for("/metrics", false, metrics).status, 401);
  EXPECT_EQ(page_for("/status.json", false, metrics).status, 401);
  EXPECT_THAT(page_for("/", false, metrics).body, HasSubstr("<canvas"));
  EXPECT_THAT(page_for("/metrics", true, metrics).body, HasSubstr("tendon_clients 0\n"));
}

TEST(Metrics, PrometheusText) {
  Metrics metrics(info());
  metrics.connected();
  metrics.connected();
  metrics.disconnected();
  metrics.ran_batch(3);
  metrics.answered(1, {.queue_s = 0.0005, .model_s = 0.013, .total_s = 0.5});
  metrics.answered(1, {.queue_s = 100, .model_s = 0.013, .total_s = 0.014});
  metrics.failed(Failure::kBadRequest, 1, "wrong\n\"key\"");
  const std::string text = metrics.prometheus();
  for (const char* line :
       {"tendon_info{version=\"1\",model=\"pi0 "
        "\\\"tiny\\\"\",preset=\"p\",backend=\"cpu\",device=\"d\",precision=\"bf16\"} 1\n",
        "tendon_clients 1\n", "tendon_connections_total 2\n", "tendon_requests_total 2\n",
        "tendon_errors_total{kind=\"bad_request\"} 1\n", "tendon_errors_total{kind=\"device\"} 0\n",
        "tendon_batch_size_bucket{le=\"2\"} 0\n", "tendon_batch_size_bucket{le=\"4\"} 1\n", "tendon_batch_size_sum 3\n",
        "tendon_queue_wait_seconds_bucket{le=\"0.0002\"} 0\n", "tendon_queue_wait_seconds_bucket{le=\"0.0005\"} 1\n",
        "tendon_queue_wait_seconds_bucket{le=\"60\"} 1\n", "tendon_queue_wait_seconds_bucket{le=\"+Inf\"} 2\n",
        "tendon_request_seconds_count 2\n", "# TYPE tendon_model_seconds histogram\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, testing::Not(HasSubstr("joules")));
  metrics.set_energy(8.25);
  metrics.set_device_memory(1000);
  EXPECT_THAT(metrics.prometheus(), HasSubstr("tendon_joules_per_inference 8.25\n"));
  EXPECT_THAT(metrics.prometheus(), HasSubstr("tendon_device_memory_used_bytes 1000\n"));
  // Every sample line has a name that was announced, and a number.
  std::istringstream lines(text);
  std::string announced;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) announced = line.substr(7, line.find(' ', 7) - 7);
    if (line.starts_with("#")) continue;
    EXPECT_TRUE(line.starts_with(announced)) << line;
    EXPECT_NO_THROW(std::stod(line.substr(line.rfind(' ')))) << line;
  }
}

TEST(Metrics, StatusJson) {
  Metrics metrics(info());
  for (int i = 1; i <= 2000; ++i) metrics.answered(1, {.queue_s = 0, .model_s = 0, .total_s = 1e-3 * i});
  for (int i = 0; i < 30; ++i) metrics.failed(Failure::kTooBig, i, "message \xff" + std::to_string(i));
  const nlohmann::json json = nlohmann::json::parse(metrics.status_json());
  EXPECT_EQ(json["requests"], 2000);
  EXPECT_EQ(json["recent_ms"].size(), 1024U);
  EXPECT_EQ(json["p50_ms"], 977 + 511);
  EXPECT_EQ(json["p99_ms"], 977 + 1013);
  EXPECT_EQ(json["recent_errors"].size(), 20U);
  EXPECT_EQ(json["recent_errors"][19]["client"], 29);
  EXPECT_EQ(json["errors"]["too_big"], 30);
}

// --- queue ----------------------------------------------------------------------------------------------------------

struct NumberedJob : Job {
  int number = 0;
};

// Records what ran together; jobs with a negative number fail as one batch, and -100 takes long.
class RecordingModel : public Model {
 public:
  std::unique_ptr<Job> prepare(std::span<const std::byte>, Intake*) override { return nullptr; }
  std::vector<Outcome> infer(std::span<Job* const> batch) override {
    std::vector<int> numbers;
    for (const Job* job : batch) numbers.push_back(static_cast<const NumberedJob*>(job)->number);
    batches.push_back(numbers);
    if (numbers[0] == -1) throw Error(ErrorKind::kDevice, "the card is gone");
    if (numbers[0] == -2) throw Error(ErrorKind::kInternal, "/src/secret.cc:12: broken");
    std::vector<Outcome> outcomes(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) outcomes[i].chunk.horizon = numbers[i];
    return outcomes;
  }
  std::vector<size_t> batch_sizes() const override { return {1, 2, 4}; }
  std::vector<std::vector<int>> batches;
};

class Queue : public testing::Test {
 protected:
  void submit(int number, int64_t group = 0) {
    auto job = std::make_unique<NumberedJob>();
    job->number = number;
    job->group = group;
    queue.submit(std::move(job), cancelled, [this, number](Outcome&& outcome) {
      EXPECT_TRUE(outcome.chunk.horizon == number || !outcome.error.empty());
      done.push_back(number);
      outcomes.push_back(std::move(outcome));
    });
  }
  RecordingModel model;
  Metrics metrics{info()};
  InferenceQueue queue{model, metrics};
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  std::vector<int> done;
  std::vector<Outcome> outcomes;
};

TEST_F(Queue, BatchesAreThePreparedSizes) {
  for (int i = 0; i < 7; ++i) submit(i);
  queue.stop();
  queue.run();
  EXPECT_THAT(model.batches, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5), ElementsAre(6)));
  EXPECT_THAT(done, ElementsAre(0, 1, 2, 3, 4, 5, 6));
}

TEST_F(Queue, GroupsAreNotMixed) {
  submit(0, 3);
  submit(1, 2);
  submit(2, 3);
  submit(3, 2);
  submit(4, 3);
  queue.stop();
  queue.run();
  EXPECT_THAT(model.batches, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4)));
}

TEST_F(Queue, CancelledJobsAreNotRun) {
  submit(0);
  cancelled->store(true);
  cancelled = std::make_shared<std::atomic<bool>>(false);
  submit(1);
  queue.stop();
  queue.run();
  EXPECT_THAT(model.batches, ElementsAre(ElementsAre(1)));
  EXPECT_THAT(done, ElementsAre(1));
}

TEST_F(Queue, ErrorsOfTheModel) {
  submit(-1);
  submit(5);
  submit(-2, 1);
  queue.stop();
  queue.run();
  ASSERT_EQ(outcomes.size(), 3U);
  EXPECT_EQ(outcomes[0].error, "the card is gone");
  EXPECT_EQ(outcomes[0].failure, Failure::kDevice);
  EXPECT_EQ(outcomes[1].error, "the card is gone");
  EXPECT_EQ(outcomes[2].failure, Failure::kInternal);
  EXPECT_THAT(outcomes[2].error, testing::Not(HasSubstr("secret")));
}

TEST_F(Queue, DropsWhatWaits) {
  submit(0);
  queue.stop(true);
  queue.run();
  EXPECT_TRUE(done.empty());
}

TEST(QueueWait, AJobWaitsForOthersOfItsBatch) {
  RecordingModel model;
  Metrics metrics(info());
  InferenceQueue queue(model, metrics, 60e6);  // ends as soon as the batch is full
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  std::atomic<int> done = 0;
  std::thread worker([&] { queue.run(); });
  for (int i = 0; i < 4; ++i) {
    auto job = std::make_unique<NumberedJob>();
    job->number = i;
    queue.submit(std::move(job), cancelled, [&](Outcome&&) { ++done; });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  while (done < 4) std::this_thread::yield();
  queue.stop();
  worker.join();
  EXPECT_THAT(model.batches, ElementsAre(ElementsAre(0, 1, 2, 3)));
}

TEST(QueueExpect, TheWorkerStaysAwakeForWhatComes) {
  RecordingModel model;
  Metrics metrics(info());
  InferenceQueue queue(model, metrics, 0, true);
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  std::atomic<int> done = 0;
  const auto submit = [&](int number) {
    auto job = std::make_unique<NumberedJob>();
    job->number = number;
    queue.submit(std::move(job), cancelled, [&](Outcome&&) { ++done; });
  };
  std::thread worker([&] { queue.run(); });
  for (int i = 0; i < 50; ++i) {
    queue.expect(i % 3 == 0 ? 1e-4 : 10);  // over before the job comes, or far from over
    if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    submit(i);
    while (done <= i) std::this_thread::yield();
    EXPECT_TRUE(queue.is_empty());
  }
  queue.expect(1000);  // nothing comes: a stop ends it
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  queue.stop();
  worker.join();
  EXPECT_EQ(model.batches.size(), 50U);
}

TEST(BatchSizes, PowersOfTwoAndTheLargest) {
  EXPECT_THAT(batch_sizes_up_to(0), ElementsAre(1));
  EXPECT_THAT(batch_sizes_up_to(1), ElementsAre(1));
  EXPECT_THAT(batch_sizes_up_to(4), ElementsAre(1, 2, 4));
  EXPECT_THAT(batch_sizes_up_to(6), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(possible_views(find_preset("pi0_aloha")), ElementsAre(1, 2, 3));
  EXPECT_THAT(possible_views(find_preset("pi05_droid")), ElementsAre(2));
}

// --- recordings -----------------------------------------------------------------------------------------------------

TEST(Recording, ComesBackInOrder) {
  std::string name = (std::filesystem::temp_directory_path() / "tendon_record_XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const std::filesystem::path directory = std::filesystem::path(name) / "calls";
  const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); };
  {
    CallRecorder recorder(directory, 7);
    EXPECT_EQ(recorder.request(1, bytes("first")), 0);
    EXPECT_EQ(recorder.request(2, bytes("second")), 1);
    EXPECT_EQ(recorder.request(3, bytes("lost")), 2);
    recorder.failure(1, "no \"key\"\n");
    recorder.reply(0, 12, "answer");
    recorder.reply(-1, 0, "of nobody");
  }
  const std::vector<RecordedCall> calls = read_recording(directory);
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].request, "first");
  EXPECT_EQ(calls[0].reply, "answer");
  EXPECT_EQ(calls[0].draw, 12);
  EXPECT_EQ(calls[0].seed, 7U);
  EXPECT_EQ(calls[1].error, "no \"key\"\n");
  EXPECT_EQ(calls[1].draw, std::nullopt);
  EXPECT_THROW(CallRecorder(directory, 7), Error);
  std::filesystem::remove(directory / "00000000.reply.msgpack");
  EXPECT_THROW(read_recording(directory), Error);
  std::ofstream(directory / "index.jsonl") << "{";
  EXPECT_THROW(read_recording(directory), Error);
  EXPECT_THROW(read_recording(directory / "elsewhere"), Error);
  std::filesystem::remove_all(name);
}

}  // namespace
}  // namespace tendon::test
