// Which cards there are and which one a backend takes: the refusals, in one place for all vendors.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tendon::gpu {

struct Card {
  std::string name;      // "NVIDIA H100 80GB HBM3"
  int architecture = 0;  // 90 for "sm_90", 942 for "gfx942"
};

enum class Driver { kUsable, kMissing, kTooOld };

// What the vendor's driver says before any card is touched.
struct Machine {
  std::string vendor = {};  // "NVIDIA"
  Driver driver = Driver::kUsable;
  std::string driver_version = {}, needed_version = {};  // of what the driver must know: "CUDA 12.2", "CUDA 13.0"
  std::string detail = {};                               // the vendor's words when there is no usable driver
  std::string visibility = {};                           // the variable that hides cards: "CUDA_VISIBLE_DEVICES"
  std::vector<Card> cards = {};
  std::string built_for = {};         // as CMake has it, separated by ; or ,: "80-real,90a-real", "gfx942;gfx950"
  std::string lister = "nvidia-smi";  // the vendor's program that lists cards
  std::string prefix = "sm_";         // of an architecture's name
  int oldest = 80;                    // that kernels are written for: mma.sync on bf16 and cp.async
  std::string rebuild = "-DTENDON_CUDA_ARCHITECTURES={}-real";  // with the card's number for {}; empty: no use
};

// True when kernels built for this list ("80-real;90a-real", "80") run on a card of this architecture: real code on
// cards of the same major number and no smaller minor one, code for an architecture without a suffix or "-virtual" on
// later ones too, "a" and "gfx" only on that very one.
bool is_built_for(std::string_view list, int architecture);

// Throws Error(kDevice) with what is there and what to do unless card `index` can be used. Nothing is touched.
void check_card(const Machine& machine, int index);

}  // namespace tendon::gpu
