// Real-time chunking on the wire: the keys of a request and of its reply. There is no standard; these are the keys that
// forks of openpi use (docs/serving.md).
#pragma once

#include <optional>
#include <string>

#include "policy/policy.h"
#include "wire/message.h"
#include "wire/value.h"

namespace tendon {

// The previous chunk of a request, nothing if it has none of the keys. Throws Error(kBadInput) for a part of the keys,
// for keys of other dialects, for values of another kind, and for any key when chunking is not `offered`.
std::optional<PreviousActions> read_previous(const WireMap& map, const Robot& robot, bool offered);

// The entries that tell a client what was done with its previous chunk: numbers, no arrays, since openpi's clients
// slice every array of a reply.
inline constexpr size_t kChunkingReplyEntries = 5;
void write_overlap(WireWriter& reply, const ChunkOverlap& overlap);

// What a server offers, for its metadata.
struct ChunkingOffer {
  std::string mode;  // "guided", "inpaint" or "trained"; empty: not offered
  std::string schedule;
  double max_guidance = 0;
  std::optional<int64_t> max_delay;
};
size_t offer_entries(const ChunkingOffer& offer);
void write_offer(WireWriter& metadata, const ChunkingOffer& offer);

}  // namespace tendon
