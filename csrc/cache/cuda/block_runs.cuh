// The bytes of a block as its runs, one after the other, for kernels that copy whole blocks.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "../../common/cuda/alignment.h"
#include "../../common/host_device.h"
#include "../params.h"

namespace pagedattn {

constexpr int kCopyThreads = 256;
constexpr int64_t kCopyCtaBytes = 16 * 1024;  // of a block, at least, per CTA

// What a launch may carry by value, since CUDA 12.1 and on sm_70 and newer.
constexpr int64_t kMaxParameterBytes = 32764;

PAGEDATTN_HOST_DEVICE int64_t block_bytes(const BlockLayout& layout) {
  return layout.outer_count * layout.inner_count * layout.run_bytes;
}

// Offset in memory of the block's byte `at`.
__device__ __forceinline__ int64_t run_offset(const BlockLayout& layout, int64_t at) {
  if (layout.outer_count * layout.inner_count == 1) return at;
  const int64_t run = at / layout.run_bytes;
  const int64_t outer = run / layout.inner_count;
  const int64_t inner = run - outer * layout.inner_count;
  return outer * layout.outer_stride_bytes + inner * layout.inner_stride_bytes + at -
         run * layout.run_bytes;
}

// Into how many CTAs' shares a block is cut.
inline unsigned num_block_parts(const BlockLayout& layout) {
  return static_cast<unsigned>(std::clamp<int64_t>(block_bytes(layout) / kCopyCtaBytes, 1, 64));
}

inline void add_layout(Alignment& alignment, const BlockLayout& layout) {
  alignment.add(layout.block_stride_bytes);
  alignment.add(layout.outer_stride_bytes);
  alignment.add(layout.inner_stride_bytes);
  alignment.add(layout.run_bytes);
}

}  // namespace pagedattn
