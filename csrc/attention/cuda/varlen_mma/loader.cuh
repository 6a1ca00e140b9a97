// From the block table to tiles in shared memory: one warp's share of a CTA's walk over the keys.
//
//   tile     0                                        1
//            | warp 0 | warp 1 | warp 2 | warp 3 |    | warp 0 | ...
//             16 tokens: two groups of 8, each within one block
//
// Where the groups begin is looked up for 16 tiles, 1024 tokens, at once: 32 entries by the 32
// lanes, with one load. It is kept in shared memory, in the padding of the rows of the first K or
// V: row 16 * warp + tile has the two groups of a warp's share. No division is left in the loop,
// and no register is taken between tiles, as the accumulators leave none.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../cache/cuda/paged_rows.cuh"
#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/unroll.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "../../visibility.h"
#include "config.h"
#include "tile.h"

namespace pagedattn::varlen_mma {

template <int kHeadDim, int kElementBytes>
class TileLoader {
  static constexpr int kRowDataBytes = kHeadDim * kElementBytes;
  static constexpr bool kPadded = kElementBytes == 2;
  static constexpr int kRowBytes = kPadded ? Matrix<kHeadDim>::kRowBytes : kRowDataBytes;

 public:
  // `matrix`: the first of K or V.
  __device__ __forceinline__ explicit TileLoader(unsigned char* matrix)
      : groups_(matrix + Matrix<kHeadDim>::kRowDataBytes) {}

  // Looks up the tile that begins at `token` and those after it, up to the next multiple of 1024
  // tokens. Entries that no visible token lies in are not looked at; their groups take the place
  // of those in visible blocks: valid addresses, whatever lies there.
  __device__ __forceinline__ void fetch(const AttentionParams& params, int seq, KvRange visible,
                                        int32_t token) const {
    const int lane = threadIdx.x % kWarpSize;
    token = token / kFetchTokens * kFetchTokens + threadIdx.x / kWarpSize * kWarpLoadTokens +
            lane / kGroupsPerLoad * kTileTokens + lane % kGroupsPerLoad * kGroupTokens;
    const int32_t block_size = params.cache.block_size;
    const int32_t entry = min(max(token, visible.begin), visible.end - 1) / block_size;
    const int32_t block = params.block_tables[seq * params.block_table_stride + entry];
    __syncwarp();  // readers of what was there are done
    reinterpret_cast<int2*>(share(threadIdx.x, lane / kGroupsPerLoad))[lane % kGroupsPerLoad] =
        make_int2(block, token % block_size);
    __syncwarp();
  }
  static __device__ bool needs_fetch(uint32_t token) { return token % kFetchTokens == 0; }

  // Starts the copies of the K or the V of the tile that begins at `token` to shared address
  // `matrix`; `row_bytes` of each row.
  __device__ __forceinline__ void load(const void* data, PageStrides strides, uint32_t row_bytes,
                                       uint32_t kv_head, uint32_t token, uint32_t matrix) const {
    const uint32_t thread = ptx::keep(threadIdx.x);
    const uint32_t lane = thread % kWarpSize;
    const uint32_t chunk_byte = lane % kLanesPerRow * 16;
    const uint32_t row = kInterleaves ? lane / 8 + lane / 4 % 2 * 4 : lane / kLanesPerRow;
    const uint32_t dst =
        matrix + (thread / kWarpSize * kWarpLoadTokens + row) * kRowBytes + chunk_byte;
    const char* const head =
        ptx::address(static_cast<const char*>(data) + chunk_byte, kv_head, strides.head);
    const int last_copy_bytes = kLastCopyByte + chunk_byte < row_bytes ? 16 : 0;
    const int4 groups = *share(thread, token / kTileTokens % kTilesPerFetch);
    unrolled<kGroupsPerLoad>([&](auto group) {
      const uint32_t block = group == 0 ? groups.x : groups.z;
      const uint32_t offset = group == 0 ? groups.y : groups.w;
      const char* src = ptx::address(head, block, strides.block);
      src = ptx::address(src, offset + row, strides.token);
      unrolled<kGroupTokens / kRowsPerCopy>([&](auto i) {
        constexpr int kByte = (group * kGroupTokens + i * kRowsPerCopy) * kRowBytes;
        unrolled<kCopiesPerRow - 1>(
            [&](auto j) { ptx::cp_async_16<kByte + j * kCopyBytes, j * kCopyBytes>(dst, src); });
        ptx::cp_async_16<kByte + kLastCopyByte, kLastCopyByte>(dst, src, last_copy_bytes);
        src = ptx::address<kRowsPerCopy>(src, strides.token);
      });
    });
  }

  // Starts the copies of the tile's scales, one for each token: K's to shared address `scales`, V's
  // behind them. A warp's first lanes take those of K, the others those of V.
  __device__ __forceinline__ void load_scales(const KvCacheView& cache, int kv_head, uint32_t token,
                                              uint32_t scales) const {
    const uint32_t thread = ptx::keep(threadIdx.x);
    const uint32_t row = thread % kWarpLoadTokens;
    const bool of_key = thread % kWarpSize < kWarpLoadTokens;
    const int4 groups = *share(thread, token / kTileTokens % kTilesPerFetch);
    const bool first = row < kGroupTokens;
    const Slot slot{first ? groups.x : groups.z,
                    (first ? groups.y : groups.w) + static_cast<int>(row) % kGroupTokens};
    const HeadScale scale(of_key ? cache.key.scale : cache.value.scale, kv_head);
    const uint32_t place = thread / kWarpSize * kWarpLoadTokens + row;
    ptx::cp_async_4(scales + ((of_key ? 0 : kTileTokens) + place) * sizeof(float),
                    scale.address(slot));
  }

 private:
  static constexpr int kTilesPerFetch = kWarpSize / kGroupsPerLoad;
  static constexpr int kFetchTokens = kTilesPerFetch * kTileTokens;
  static_assert(kGroupsPerLoad == 2 && kWarps * kTilesPerFetch == kTileTokens);

  // One copy instruction covers 4 rows by 128 bytes, or 8 rows by 64 where rows are not multiples
  // of 128; then the lanes that write at the same time take rows 4 apart, on different banks, if
  // rows are padded.
  static constexpr int kLanesPerRow = kRowDataBytes % 128 == 0 ? 8 : 4;
  static constexpr bool kInterleaves = kPadded && kLanesPerRow == 4;
  static constexpr int kRowsPerCopy = kWarpSize / kLanesPerRow;
  static constexpr int kCopyBytes = kLanesPerRow * 16;
  static constexpr int kCopiesPerRow = kRowDataBytes / kCopyBytes;
  // The only copy that a smaller head_dim of the same bucket cuts off.
  static constexpr int kLastCopyByte = (kCopiesPerRow - 1) * kCopyBytes;

  // Block and offset of the two groups of this thread's warp.
  __device__ __forceinline__ int4* share(uint32_t thread, uint32_t tile) const {
    return reinterpret_cast<int4*>(groups_ + (thread / kWarpSize * kTilesPerFetch + tile) *
                                                 Matrix<kHeadDim>::kRowBytes);
  }

  unsigned char* groups_;
};

}  // namespace pagedattn::varlen_mma
