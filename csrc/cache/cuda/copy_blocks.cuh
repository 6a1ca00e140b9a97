// Blocks copied within their cache (copy on write), for all layers' caches at once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../common/cuda/vector.cuh"
#include "../params.h"
#include "block_runs.cuh"

namespace pagedattn {

// What the kernel is given. The base addresses travel in the launch itself: an upload would need a
// buffer that outlives it, and a captured graph would keep the buffer's address, not its content.
template <int kCapacity>
struct CopyBatch {
  BlockLayout layout;
  const int64_t* mapping;
  void* caches[kCapacity];
};

constexpr int kMaxCopyCaches = 4000;
constexpr int kFewCopyCaches = 256;
static_assert(sizeof(CopyBatch<kMaxCopyCaches>) <= kMaxParameterBytes);

// grid: (pairs, caches, parts of a block).
template <int kBytes, int kCapacity>
__global__ void __launch_bounds__(kCopyThreads, 1)
    copy_blocks_kernel(const __grid_constant__ CopyBatch<kCapacity> batch) {
  auto* const cache = static_cast<unsigned char*>(batch.caches[blockIdx.y]);
  const BlockLayout& layout = batch.layout;
  const int64_t pair = blockIdx.x;
  const auto* const from = cache + batch.mapping[2 * pair] * layout.block_stride_bytes;
  auto* const to = cache + batch.mapping[2 * pair + 1] * layout.block_stride_bytes;
  const int64_t step = int64_t{gridDim.z} * kCopyThreads * kBytes;
  for (int64_t at = (int64_t{blockIdx.z} * kCopyThreads + threadIdx.x) * kBytes;
       at < block_bytes(layout); at += step) {
    const int64_t offset = run_offset(layout, at);
    store_vec(to + offset, load_vec<kBytes>(from + offset));
  }
}

}  // namespace pagedattn
