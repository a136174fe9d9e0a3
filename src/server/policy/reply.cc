#include "server/policy/reply.h"

#include <array>

#include "server/policy/chunking_keys.h"
#include "wire/message.h"

namespace tendon {

std::string encode_reply(const Outcome& outcome, double prev_total_ms) {
  const std::array<int64_t, 2> shape{outcome.chunk.horizon, outcome.chunk.width};
  const bool is_first = prev_total_ms < 0;
  WireWriter reply;
  reply.map(3 + (outcome.chunk.overlap ? kChunkingReplyEntries : 0))
      .text("actions")
      .array(shape, outcome.chunk.actions);
  reply.text("policy_timing").map(1).text("infer_ms").number(outcome.model_us * 1e-3);
  reply.text("server_timing").map(is_first ? 2 : 3);
  reply.text("infer_ms").number(outcome.infer_us * 1e-3).text("queue_ms").number(outcome.queue_us * 1e-3);
  if (!is_first) reply.text("prev_total_ms").number(prev_total_ms);
  if (outcome.chunk.overlap) write_overlap(reply, *outcome.chunk.overlap);
  return reply.take();
}

}  // namespace tendon
