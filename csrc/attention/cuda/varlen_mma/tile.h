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

// A tile of K or V as the mma take it, in a 16-bit type; the query's rows are like its. Rows are
// padded by 16 bytes: an odd number of 16-byte units spreads 8 rows, as ldmatrix reads them, over
// all banks.
template <int kHeadDim>
struct Matrix {
  static constexpr int kRowDataBytes = kHeadDim * 2;
  static constexpr int kRowBytes = kRowDataBytes + 16;
  static constexpr int kBytes = kTileTokens * kRowBytes;

  static_assert(kRowBytes / 16 % 2 == 1);
};

// What warps with tokens of their own need where the tiles were: their accumulators, in fp32, and
// behind the tiles a softmax state for each row.
template <int kHeadDim, int kRows>
struct MergeLayout {
  static constexpr bool kMerges = RowTile<kRows>::kTokenWarps > 1;
  static constexpr int kStride = kHeadDim + 8;  // in floats; keeps the stores on 32 banks
  static constexpr int kOutputBytes = kMerges ? kWarps * kRows * kStride * 4 : 0;
  static constexpr int kStatesBytes = kMerges ? kWarps * kRows * 2 * 4 : 0;
};

// Two stages where they leave room for a second CTA on an SM with 164 KiB.
constexpr int num_stages(int other_bytes, int stage_bytes) {
  return other_bytes + 2 * stage_bytes <= 80 * 1024 ? 2 : 1;
}

constexpr int kMaxSharedBytes = 99 * 1024;  // what sm_86 gives a CTA

// Shared memory of a CTA: query rows | K, V | K, V | merge. With one stage, K of the next tile
// still arrives while V is multiplied, and V while K is.
template <int kHeadDim, int kRows, int kElementBytes>
struct SharedLayout {
  static_assert(kElementBytes == 2);
  using Merge = MergeLayout<kHeadDim, kRows>;
  static constexpr int kTiles = kRows * Matrix<kHeadDim>::kRowBytes;
  static constexpr int kStageBytes = 2 * Matrix<kHeadDim>::kBytes;
  static constexpr int kStages = num_stages(kTiles + Merge::kStatesBytes, kStageBytes);
  static constexpr int kTileBytes = kStages * kStageBytes;
  static constexpr int kStates = kTiles + kTileBytes;
  static constexpr int kBytes = kStates + Merge::kStatesBytes;

  static_assert(kTileBytes >= Merge::kOutputBytes);
  static_assert(kBytes <= kMaxSharedBytes);
};

// The same for a cache of 8-bit codes: query rows | the K or V being multiplied | codes of K, of V,
// scales of K, of V | ... | factors of the query rows | merge. With one stage, K of the next tile
// arrives from when this one's is widened.
template <int kHeadDim, int kRows>
struct SharedLayout<kHeadDim, kRows, 1> {
  using Merge = MergeLayout<kHeadDim, kRows>;
  static constexpr int kTiles = kRows * Matrix<kHeadDim>::kRowBytes;
  static constexpr int kCodes = kTiles + Matrix<kHeadDim>::kBytes;
  static constexpr int kCodesBytes = kTileTokens * kHeadDim;  // of K or V
  static constexpr int kScalesBytes = kTileTokens * 4;
  static constexpr int kStageScales = 2 * kCodesBytes;  // within a stage
  static constexpr int kStageBytes = 2 * (kCodesBytes + kScalesBytes);
  static constexpr int kFactorsBytes = kRows * 4;
  static constexpr int kStages =
      num_stages(kCodes + kFactorsBytes + Merge::kStatesBytes, kStageBytes);
  static constexpr int kStagesEnd = kCodes + kStages * kStageBytes;
  static constexpr int kMergeEnd = kTiles + Merge::kOutputBytes;
  static constexpr int kFactors = kStagesEnd > kMergeEnd ? kStagesEnd : kMergeEnd;
  static constexpr int kStates = kFactors + kFactorsBytes;
  static constexpr int kBytes = kStates + Merge::kStatesBytes;

  static_assert(kBytes <= kMaxSharedBytes);
};

}  // namespace pagedattn::varlen_mma
