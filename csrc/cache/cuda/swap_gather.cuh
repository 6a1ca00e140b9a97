// Many small blocks between device and pinned host memory in one launch: threads read or write the
// host's memory over the bus themselves (zero copy), where a copy engine would be asked once per
// run of bytes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../common/cuda/vector.cuh"
#include "../params.h"
#include "block_runs.cuh"

namespace pagedattn {

constexpr int kMaxSwapCaches = 512;
constexpr int kMaxSwapPairs = 1500;

// The mapping is on the host and, like the addresses, travels in the launch.
struct SwapBatch {
  BlockLayout src_layout;
  BlockLayout dst_layout;
  const void* src[kMaxSwapCaches];
  void* dst[kMaxSwapCaches];
  struct {
    int32_t src;
    int32_t dst;
  } pairs[kMaxSwapPairs];
};
static_assert(sizeof(SwapBatch) <= kMaxParameterBytes);

// grid: (pairs, caches, parts of a block).
template <int kBytes>
__global__ void __launch_bounds__(kCopyThreads)
    swap_gather_kernel(const __grid_constant__ SwapBatch batch) {
  const BlockLayout& src_layout = batch.src_layout;
  const BlockLayout& dst_layout = batch.dst_layout;
  const auto* const from = static_cast<const unsigned char*>(batch.src[blockIdx.y]) +
                           batch.pairs[blockIdx.x].src * src_layout.block_stride_bytes;
  auto* const to = static_cast<unsigned char*>(batch.dst[blockIdx.y]) +
                   batch.pairs[blockIdx.x].dst * dst_layout.block_stride_bytes;
  const int64_t step = int64_t{gridDim.z} * kCopyThreads * kBytes;
  for (int64_t at = (int64_t{blockIdx.z} * kCopyThreads + threadIdx.x) * kBytes;
       at < block_bytes(src_layout); at += step) {
    store_vec(to + run_offset(dst_layout, at), load_vec<kBytes>(from + run_offset(src_layout, at)));
  }
}

}  // namespace pagedattn
