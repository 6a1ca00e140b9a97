// The numbers of the tensor-core varlen kernel, in one place. docs/kernels.md has the reasons.
#pragma once

namespace pagedattn::varlen_mma {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;

// Keys go by in tiles of 64 tokens that begin at multiples of 64, whatever rows look at them: the
// sums of a row then have the same order in every row tile that it can be part of.
constexpr int kTileTokens = 64;

// Loads come in groups of 8 tokens that lie in one block, since block sizes are multiples of 8.
constexpr int kGroupTokens = 8;
constexpr int kWarpLoadTokens = kTileTokens / kWarps;
constexpr int kGroupsPerLoad = kWarpLoadTokens / kGroupTokens;

// Rows (query token, head of the group) of a CTA, by the packed rows of its whole sequence: up to
// 16, up to 64, more. Two fragments of 16 rows per warp halve the reads of K and V from shared
// memory, but from head_dim 192 on their accumulators do not fit the registers.
constexpr int kSmallRows = 16;
constexpr int kMediumRows = 64;
constexpr int large_rows(int head_dim) { return head_dim <= 128 ? 128 : kMediumRows; }

// How the warps share a tile of kRows x kTileTokens: each has rows of its own and all tokens, or,
// where one fragment has all the rows, tokens of its own.
template <int kRows>
struct RowTile {
  static constexpr int kTokenWarps = kRows == kSmallRows ? kWarps : 1;
  static constexpr int kFragments = kRows * kTokenWarps / (kWarps * 16);
  static constexpr int kWarpRows = kFragments * 16;
  static constexpr int kWarpTokens = kTileTokens / kTokenWarps;

  // Of a warp: its first row in the row tile, and its first token in a tile of keys.
  static constexpr int first_row(int warp) { return kTokenWarps == 1 ? warp * kWarpRows : 0; }
  static constexpr int first_token(int warp) { return kTokenWarps == 1 ? 0 : warp * kWarpTokens; }
};

// Shared memory of a CTA: query rows | K, V | K, V | states of token warps. Rows are padded by 16
// bytes: an odd number of 16-byte units spreads 8 rows, as ldmatrix reads them, over all banks.
template <int kHeadDim, int kRows>
struct SharedLayout {
  static constexpr int kRowDataBytes = kHeadDim * 2;
  static constexpr int kRowBytes = kRowDataBytes + 16;
  static constexpr int kMatrixBytes = kTileTokens * kRowBytes;
  static constexpr int kStageBytes = 2 * kMatrixBytes;
  static constexpr int kQueryBytes = kRows * kRowBytes;
  static constexpr int kStatesBytes =
      RowTile<kRows>::kTokenWarps == 1 ? 0 : kWarps * kRows * 2 * static_cast<int>(sizeof(float));

  // Two stages where they leave room for a second CTA on an SM with 164 KiB. With one, K of the
  // next tile still arrives while V is multiplied, and V while K is.
  static constexpr int kStages = kQueryBytes + 2 * kStageBytes + kStatesBytes <= 80 * 1024 ? 2 : 1;

  static constexpr int kTiles = kQueryBytes;
  static constexpr int kStates = kTiles + kStages * kStageBytes;
  static constexpr int kBytes = kStates + kStatesBytes;

  static_assert(kRowBytes / 16 % 2 == 1);
  static_assert(kBytes <= 99 * 1024);  // what sm_86 gives a CTA
};

}  // namespace pagedattn::varlen_mma
