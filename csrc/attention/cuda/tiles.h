// The tiles of the SIMT-core kernels: every number that trades registers and shared memory for
// reuse, in one place. And the buckets of head_dim, of all kernels.
#pragma once

#include <stdexcept>
#include <string>

namespace pagedattn {

// head_dim is rounded up to one of these; the lanes beyond it hold zeros.
template <typename Visit>
void with_head_dim(int head_dim, Visit&& visit) {
  if (head_dim <= 64) return visit.template operator()<64>();
  if (head_dim <= 96) return visit.template operator()<96>();
  if (head_dim <= 128) return visit.template operator()<128>();
  if (head_dim <= 192) return visit.template operator()<192>();
  if (head_dim <= 256) return visit.template operator()<256>();
  throw std::runtime_error("pagedattn: head_dim " + std::to_string(head_dim) + " exceeds 256");
}

// The same with fewer buckets: for SIMT cores, which serve what the tensor cores do not, and for
// 8-bit caches, which read no more bytes for it.
template <typename Visit>
void with_coarse_head_dim(int head_dim, Visit&& visit) {
  if (head_dim <= 64) return visit.template operator()<64>();
  if (head_dim <= 128) return visit.template operator()<128>();
  if (head_dim <= 256) return visit.template operator()<256>();
  throw std::runtime_error("pagedattn: head_dim " + std::to_string(head_dim) + " exceeds 256");
}

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

constexpr int round_up_to_power_of_two(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// Decode: a warp is cut into teams of kTeamLanes lanes, and each team walks tokens of its own, a
// row spread over its lanes.
template <typename Word, int kHeadDim>
struct DecodeTile {
  static constexpr int kThreads = 128;
  static constexpr int kHeads = 4;   // query heads of a group that one pass over K and V serves
  static constexpr int kTokens = 4;  // rows of K and of V that a team has in flight
  // One load: 16 bytes, but 8 of an 8-bit cache, whose rows need not be multiples of 16.
  static constexpr int kVec = sizeof(Word) == 4 ? 4 : 8;
  static constexpr int kVecsPerRow = kHeadDim / kVec;
  static constexpr int kTeamLanes = kVecsPerRow < 32 ? round_up_to_power_of_two(kVecsPerRow) : 32;
  static constexpr int kVecsPerLane = ceil_div(kVecsPerRow, kTeamLanes);
  static constexpr int kTeams = kThreads / kTeamLanes;
  static constexpr int kTileTokens = kTeams * kTokens;
  static constexpr int kPaddedDim = kTeamLanes * kVecsPerLane * kVec;
};

// Varlen: kRows (query token, head) pairs against kTokens tokens at a time, as fp32 in shared
// memory. All sizes stay below the 64 KiB of sm_75.
template <int kHeadDim>
struct VarlenTile {
  static constexpr int kThreads = 128;
  static constexpr int kRows = kHeadDim <= 128 ? 32 : 16;
  static constexpr int kTokens = kHeadDim <= 128 ? 32 : 16;
  // Threads form 8 x 16: a row belongs to 16 neighbouring lanes.
  static constexpr int kRowLanes = 16;
  static constexpr int kThreadRows = kRows / (kThreads / kRowLanes);
  static constexpr int kThreadTokens = kTokens / kRowLanes;
  // An odd number of 16-byte units per row keeps 8 lanes that read 8 rows on different banks.
  static constexpr int kRowStride = kHeadDim + 4;
  static constexpr int kWeightStride = kTokens + 4;
  static constexpr int kSharedBytes =
      4 * ((kRows + 2 * kTokens) * kRowStride + kRows * kWeightStride);
};

}  // namespace pagedattn
