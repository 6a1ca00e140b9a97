// The numbers of the tensor-core decode kernel, in one place. docs/kernels.md has the arithmetic
// behind them.
#pragma once

namespace pagedattn::decode_mma {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;

// Groups of up to as many query heads are one warp's: in one mma fragment of 16 rows, or in two
// where there are registers for their outputs.
constexpr int max_warp_heads(int head_dim, int element_bytes) {
  return head_dim <= 64 && element_bytes == 2 ? 32 : 16;
}

// Larger groups are a team's: warps that share tiles, each for 16 heads of its own.
constexpr int team_warps(int num_heads, int max_heads) {
  return num_heads <= max_heads ? 1 : num_heads <= 32 ? 2 : 4;
}

// CTAs per SM that the registers leave room for, by the launch bounds.
constexpr int ctas_by_registers(int head_dim, int element_bytes, bool teams) {
  if (head_dim > 128) return 2;
  return teams && element_bytes == 1 ? 3 : 4;
}

// A tile is what a warp loads at a time: the K and the V rows of 16 consecutive tokens, the depth
// of one mma. The CTA's warps take the tiles in turn.
constexpr int kTileTokens = 16;
constexpr int kStepTokens = kWarps * kTileTokens;

// Rows come in groups of 8 tokens that lie in one block, since block sizes and first tokens are
// multiples of 8.
constexpr int kGroupTokens = 8;
constexpr int kGroupsPerTile = kTileTokens / kGroupTokens;

// Shared memory of one warp: kStages x (K tile, V tile, scales), rows padded by 16 bytes. The odd
// number of 16-byte units per row spreads 8 rows, as ldmatrix reads them, over all banks.
template <int kHeadDim, int kBytes = 2>
struct Tile {
  static constexpr int kElementBytes = kBytes;
  static constexpr int kRowDataBytes = kHeadDim * kElementBytes;
  // One stage where two would leave no room for a second CTA on an SM: with 64 KiB of tiles per
  // CTA, the other warps' loads keep the memory busy while this one computes.
  static constexpr int kStages = kRowDataBytes <= 256 ? 2 : 1;
  static constexpr int kRowBytes = kRowDataBytes + 16;
  static constexpr int kMatrixBytes = kTileTokens * kRowBytes;
  // Of an 8-bit cache, the scales of the K rows, then those of the V rows.
  static constexpr int kScales = 2 * kMatrixBytes;
  static constexpr int kScaleBytes = kElementBytes == 1 ? 2 * kTileTokens * sizeof(float) : 0;
  static constexpr int kStageBytes = 2 * kMatrixBytes + kScaleBytes;
  static constexpr int kWarpBytes = kStages * kStageBytes;

  static_assert(kRowBytes / 16 % 2 == 1);
};

// Rows of the query, in the 16-bit type of the mma.
template <int kHeadDim>
using QueryTile = Tile<kHeadDim>;

// Dynamic shared memory: the warps' tiles | each warp's softmax state per head | the query rows.
template <int kHeadDim, int kElementBytes = 2>
struct SharedLayout {
  static constexpr int kStates = kWarps * Tile<kHeadDim, kElementBytes>::kWarpBytes;
  static constexpr int kNumStates = kWarps * max_warp_heads(kHeadDim, kElementBytes);
  static constexpr int kQuery = kStates + kNumStates * 2 * sizeof(float);

  static constexpr int bytes(int num_heads) {
    int query_rows = 8;
    while (query_rows < num_heads) query_rows *= 2;
    return kQuery + query_rows * QueryTile<kHeadDim>::kRowBytes;
  }
};

}  // namespace pagedattn::decode_mma
