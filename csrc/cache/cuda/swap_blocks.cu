// Blocks between device and host memory: by the copy engine, in as few copies as their layout
// allows, or, where these would be many and small, by a kernel.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "../../common/cuda/alignment.h"
#include "../../common/cuda/launch.h"
#include "kernels.h"
#include "swap_gather.cuh"

namespace pagedattn::cuda {
namespace {

// `rows` runs of `bytes`, at equal distances on each side: one copy, of one or two dimensions.
void copy_rows(unsigned char* dst, int64_t dst_pitch, const unsigned char* src, int64_t src_pitch,
               int64_t bytes, int64_t rows, cudaStream_t stream) {
  if (bytes == 0 || rows == 0) return;
  if (rows == 1 || (dst_pitch == bytes && src_pitch == bytes)) {
    check_cuda(cudaMemcpyAsync(dst, src, bytes * rows, cudaMemcpyDefault, stream), "swap_blocks");
    return;
  }
  constexpr int64_t kMaxPitch = std::numeric_limits<int32_t>::max();
  const bool is_2d =
      dst_pitch >= bytes && src_pitch >= bytes && dst_pitch <= kMaxPitch && src_pitch <= kMaxPitch;
  if (is_2d) {
    check_cuda(
        cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, bytes, rows, cudaMemcpyDefault, stream),
        "swap_blocks");
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    copy_rows(dst + row * dst_pitch, bytes, src + row * src_pitch, bytes, bytes, 1, stream);
  }
}

bool is_single_run(const BlockLayout& layout) {
  return layout.outer_count * layout.inner_count == 1;
}

// `count` pairs whose source blocks, and whose destination blocks, follow one another.
void copy_adjacent_blocks(const SwapBlocksParams& params, int64_t cache, int64_t src_block,
                          int64_t dst_block, int64_t count, cudaStream_t stream) {
  const BlockLayout& src_layout = params.src_layout;
  const BlockLayout& dst_layout = params.dst_layout;
  const auto* src = static_cast<const unsigned char*>(params.src[cache]) +
                    src_block * src_layout.block_stride_bytes;
  auto* dst =
      static_cast<unsigned char*>(params.dst[cache]) + dst_block * dst_layout.block_stride_bytes;
  if (is_single_run(src_layout)) {
    copy_rows(dst, dst_layout.block_stride_bytes, src, src_layout.block_stride_bytes,
              src_layout.run_bytes, count, stream);
    return;
  }
  for (int64_t block = 0; block < count; ++block) {
    for (int64_t outer = 0; outer < src_layout.outer_count; ++outer) {
      copy_rows(dst + block * dst_layout.block_stride_bytes + outer * dst_layout.outer_stride_bytes,
                dst_layout.inner_stride_bytes,
                src + block * src_layout.block_stride_bytes + outer * src_layout.outer_stride_bytes,
                src_layout.inner_stride_bytes, src_layout.run_bytes, src_layout.inner_count,
                stream);
    }
  }
}

// How many pairs from `first` on continue both the source and the destination of the one before.
int64_t adjacent_pairs(const SwapBlocksParams& params, int64_t first) {
  const int64_t* const mapping = params.mapping;
  int64_t count = 1;
  while (first + count < params.num_pairs &&
         mapping[2 * (first + count)] == mapping[2 * first] + count &&
         mapping[2 * (first + count) + 1] == mapping[2 * first + 1] + count) {
    ++count;
  }
  return count;
}

// Estimates, not measured: a copy costs the host and the copy engine some 2 us however small it is,
// in which a 25 GB/s bus moves 50 KB.
constexpr int64_t kManyCopies = 32;
constexpr int64_t kSmallCopyBytes = 48 * 1024;

void swap_by_copies(const SwapBlocksParams& params, cudaStream_t stream) {
  for (int64_t first = 0; first < params.num_pairs;) {
    const int64_t count = adjacent_pairs(params, first);
    for (int64_t cache = 0; cache < params.num_caches; ++cache) {
      copy_adjacent_blocks(params, cache, params.mapping[2 * first], params.mapping[2 * first + 1],
                           count, stream);
    }
    first += count;
  }
}

bool copies_are_many_and_small(const SwapBlocksParams& params) {
  int64_t num_copies = 0;
  for (int64_t first = 0; first < params.num_pairs;) {
    const int64_t count = adjacent_pairs(params, first);
    num_copies += is_single_run(params.src_layout) ? 1 : count * params.src_layout.outer_count;
    first += count;
  }
  const int64_t total_bytes = params.num_pairs * block_bytes(params.src_layout);
  return num_copies * params.num_caches >= kManyCopies &&
         total_bytes < num_copies * kSmallCopyBytes;
}

// Pinned host memory and that of the current device; not pageable memory or another device's.
bool kernels_can_access(const void* address) {
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, address), "swap_blocks");
  if (attributes.devicePointer != address) return false;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "swap_blocks");
  return attributes.type == cudaMemoryTypeHost || attributes.device == device;
}

bool kernels_can_access_all(const SwapBlocksParams& params) {
  return std::all_of(params.src, params.src + params.num_caches, kernels_can_access) &&
         std::all_of(params.dst, params.dst + params.num_caches, kernels_can_access);
}

void swap_by_kernel(const SwapBlocksParams& params, Stream stream) {
  Alignment alignment;
  add_layout(alignment, params.src_layout);
  add_layout(alignment, params.dst_layout);
  for (int64_t c = 0; c < params.num_caches; ++c) {
    alignment.add(params.src[c]);
    alignment.add(params.dst[c]);
  }
  SwapBatch batch;
  batch.src_layout = params.src_layout;
  batch.dst_layout = params.dst_layout;
  for (int64_t cache = 0; cache < params.num_caches; cache += kMaxSwapCaches) {
    const int64_t num_caches = std::min<int64_t>(kMaxSwapCaches, params.num_caches - cache);
    std::copy_n(params.src + cache, num_caches, batch.src);
    std::copy_n(params.dst + cache, num_caches, batch.dst);
    for (int64_t pair = 0; pair < params.num_pairs; pair += kMaxSwapPairs) {
      const int64_t num_pairs = std::min<int64_t>(kMaxSwapPairs, params.num_pairs - pair);
      for (int64_t i = 0; i < num_pairs; ++i) {
        batch.pairs[i] = {static_cast<int32_t>(params.mapping[2 * (pair + i)]),
                          static_cast<int32_t>(params.mapping[2 * (pair + i) + 1])};
      }
      const dim3 grid(static_cast<unsigned>(num_pairs), static_cast<unsigned>(num_caches),
                      num_block_parts(params.src_layout));
      with_widest_word(alignment, [&]<int kBytes>() {
        launch(swap_gather_kernel<kBytes>, grid, kCopyThreads, 0, stream, "swap_blocks", batch);
      });
    }
  }
}

}  // namespace

void swap_blocks(const SwapBlocksParams& params, Stream stream) {
  if (copies_are_many_and_small(params) && kernels_can_access_all(params)) {
    swap_by_kernel(params, stream);
  } else {
    swap_by_copies(params, static_cast<cudaStream_t>(stream));
  }
}

}  // namespace pagedattn::cuda
