// From the block table to tiles in shared memory: one warp's walk over its tiles of a sequence.
//
//   tokens   first                     + 64                       + 128
//            | tile 0 of warp 0..3     | tile 1 of warp 0..3      | ...
//
// A tile is two groups of 8 tokens, each within one block; each half of the warp's lanes copies one
// of them. The 16 lanes of a half hold where its groups of the next 16 tiles begin, and hand it out
// by shuffles. So the table is read once in 16 tiles, 32 entries at a time, and no division is left
// for the others.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../cache/cuda/paged_rows.cuh"
#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/unroll.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "../../visibility.h"
#include "tile.h"

namespace pagedattn::decode_mma {

// Byte strides of a cache as the loop's instructions take them: from the kernel's parameters, not
// from registers.
struct RowStrides {
  uint32_t block;
  uint32_t token;

  RowStrides(const CacheView& view, int element_bytes)
      : block(static_cast<uint32_t>(view.block_stride * element_bytes)),
        token(static_cast<uint32_t>(view.token_stride * element_bytes)) {}
};

template <typename Tile>
class TileLoader {
 public:
  // `tiles`: the shared address of the warp's stages.
  __device__ __forceinline__ TileLoader(const AttentionParams& params,
                                        const RowStrides& key_strides,
                                        const RowStrides& value_strides, int seq, int kv_head,
                                        uint32_t tiles, int lane)
      : seq_(seq),
        dst_(ptx::keep(tiles + (lane / kHalf * kGroupTokens + lane_row(lane)) * Tile::kRowBytes +
                       lane_chunk(lane) * 16)),
        last_copy_bytes_(ptx::keep(kLastCopyByte + lane_chunk(lane) * 16 <
                                           params.cache.head_dim * Tile::kElementBytes
                                       ? 16
                                       : 0)),
        key_(params.cache.key, key_strides, kv_head, lane),
        value_(params.cache.value, value_strides, kv_head, lane),
        kv_head_(kv_head),
        scale_dst_(ptx::keep(tiles + Tile::kScales + lane * static_cast<int>(sizeof(float)))) {}

  // Starts the copies of the warp's next tile to byte offset `stage`. Tiles begin kStepTokens
  // apart, this one at `token`; `end` is that of the visible range.
  __device__ __forceinline__ void load(const AttentionParams& params, int32_t token, int32_t end,
                                       uint32_t stage) {
    if (next_tile_ == kHalf) read_table(params, token, end);
    if constexpr (Tile::kScaleBytes > 0) {
      if (params.cache.key.scale.kind == ScaleKind::kPerTokenHead) copy_scales(params, stage);
    }
    const uint32_t dst = stage + dst_;
    const uint32_t block = __shfl_sync(kFullWarp, block_, next_tile_, kHalf);
    const uint32_t offset = __shfl_sync(kFullWarp, offset_, next_tile_, kHalf);
    ++next_tile_;
    copy_rows<0>(dst, key_, block, offset);
    copy_rows<Tile::kMatrixBytes>(dst, value_, block, offset);
  }

 private:
  static constexpr int kHalf = kWarpSize / kGroupsPerTile;

  // One copy instruction covers 2 rows of either group by 128 bytes, or 4 by 64 where rows are not
  // multiples of 128; then the lanes that write at the same time take rows 4 apart, on different
  // banks.
  static constexpr int kLanesPerRow = Tile::kRowDataBytes % 128 == 0 ? 8 : 4;
  static constexpr int kRowStep = 2;  // from a lane's row of one copy to that of the next
  static constexpr int kCopyRows = kLanesPerRow / 2;
  static constexpr int kCopyBytes = kLanesPerRow * 16;
  static constexpr int kCopiesPerRow = Tile::kRowDataBytes / kCopyBytes;
  // The only copy that a smaller head_dim of the same bucket cuts off.
  static constexpr int kLastCopyByte = (kCopiesPerRow - 1) * kCopyBytes;
  static_assert(Tile::kRowDataBytes % kCopyBytes == 0);

  static __device__ int lane_chunk(int lane) { return lane % kLanesPerRow; }
  static __device__ int lane_row(int lane) {
    return lane / 8 % 2 + (kLanesPerRow == 8 ? 0 : lane / 4 % 2 * 4);
  }

  // K or V of one head, seen from this lane's row and chunk.
  struct Rows {
    const char* base;
    const RowStrides& strides;

    __device__ __forceinline__ Rows(const CacheView& view, const RowStrides& strides, int kv_head,
                                    int lane)
        : base(ptx::keep(ptx::address(static_cast<const char*>(view.data) +
                                          Tile::kElementBytes * kv_head * view.head_stride +
                                          lane_chunk(lane) * 16,
                                      lane_row(lane), strides.token))),
          strides(strides) {}
  };

  template <int kMatrixByte>
  __device__ __forceinline__ void copy_rows(uint32_t dst, const Rows& rows, uint32_t block,
                                            uint32_t offset) {
    const char* src = ptx::address(rows.base, block, rows.strides.block);
    src = ptx::address(src, offset, rows.strides.token);
    unrolled<kCopyRows>([&](auto i) {
      constexpr int kRowByte = kMatrixByte + i * kRowStep * Tile::kRowBytes;
      unrolled<kCopiesPerRow - 1>(
          [&](auto j) { ptx::cp_async_16<kRowByte + j * kCopyBytes, j * kCopyBytes>(dst, src); });
      ptx::cp_async_16<kRowByte + kLastCopyByte, kLastCopyByte>(dst, src, last_copy_bytes_);
      src = ptx::address<kRowStep>(src, rows.strides.token);
    });
  }

  // Lanes 0 to 15 fetch the scales of the tile's K rows, the others those of its V rows.
  __device__ __forceinline__ void copy_scales(const AttentionParams& params, uint32_t stage) {
    const int lane = threadIdx.x % kWarpSize;
    const int holder = next_tile_ + lane % kTileTokens / kGroupTokens * kHalf;
    const Slot slot{__shfl_sync(kFullWarp, block_, holder),
                    __shfl_sync(kFullWarp, offset_, holder) + lane % kGroupTokens};
    const KvCacheView& cache = params.cache;
    const HeadScale scale(lane < kTileTokens ? cache.key.scale : cache.value.scale,
                          ptx::keep(kv_head_));
    ptx::cp_async_4(stage + scale_dst_, scale.address(slot));
  }

  // Groups without a visible token take the place of others in block 0: a valid address.
  __device__ __forceinline__ void read_table(const AttentionParams& params, int32_t token,
                                             int32_t end) {
    // Not to be computed ahead of the loop, which has no registers left.
    const int64_t row = ptx::keep(seq_) * params.block_table_stride;
    const int32_t block_size = ptx::keep(params.cache.block_size);
    const int lane = threadIdx.x % kWarpSize;
    const int32_t group = token + lane % kHalf * kStepTokens + lane / kHalf * kGroupTokens;
    const int32_t entry = group / block_size;
    block_ = group < end ? params.block_tables[row + entry] : 0;
    offset_ = group - entry * block_size;
    next_tile_ = 0;
  }

  int seq_;
  uint32_t dst_;
  int last_copy_bytes_;
  Rows key_;
  Rows value_;
  int kv_head_;
  uint32_t scale_dst_;

  // Where the group that this lane holds begins.
  int32_t block_ = 0;
  int32_t offset_ = 0;
  int next_tile_ = kHalf;  // which lane of a half holds the next group
};

// Zeroes the V rows of a landed tile that the query does not see, and their scales: they may hold
// NaN, which a weight of 0 does not silence.
template <typename Tile>
__device__ __forceinline__ void zero_unseen_values(unsigned char* stage, int32_t first_token,
                                                   KvRange visible, int lane) {
  constexpr int kChunks = Tile::kRowDataBytes / 16;
  for (int i = lane; i < kTileTokens * kChunks; i += kWarpSize) {
    const int row = i / kChunks;
    const int32_t token = first_token + row;
    if (visible.begin <= token && token < visible.end) continue;
    *reinterpret_cast<uint4*>(stage + Tile::kMatrixBytes + row * Tile::kRowBytes +
                              i % kChunks * 16) = make_uint4(0, 0, 0, 0);
  }
  if constexpr (Tile::kScaleBytes > 0) {
    const int32_t token = first_token + lane;
    if (lane >= kTileTokens || (visible.begin <= token && token < visible.end)) return;
    reinterpret_cast<float*>(stage + Tile::kScales)[kTileTokens + lane] = 0.0f;
  }
}

}  // namespace pagedattn::decode_mma
