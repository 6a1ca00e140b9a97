// copy_blocks and swap_blocks between host tensors: plain copies of bytes.
#include <cstring>

#include "../../common/cpu/parallel.h"
#include "kernels.h"

namespace pagedattn {
namespace {

constexpr int64_t kBytesPerTask = 64 << 10;

int64_t tasks_grain(int64_t block_bytes) {
  return block_bytes >= kBytesPerTask ? 1 : kBytesPerTask / (block_bytes > 0 ? block_bytes : 1);
}

int64_t block_bytes(const BlockLayout& layout) {
  return layout.outer_count * layout.inner_count * layout.run_bytes;
}

void copy_block(const char* src, const BlockLayout& from, char* dst, const BlockLayout& to) {
  for (int64_t i = 0; i < from.outer_count; ++i) {
    for (int64_t j = 0; j < from.inner_count; ++j) {
      std::memcpy(dst + i * to.outer_stride_bytes + j * to.inner_stride_bytes,
                  src + i * from.outer_stride_bytes + j * from.inner_stride_bytes, from.run_bytes);
    }
  }
}

}  // namespace

void copy_blocks_cpu(const CopyBlocksParams& params, Stream) {
  const BlockLayout& layout = params.layout;
  parallel_for(0, params.num_caches * params.num_pairs, tasks_grain(block_bytes(layout)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   char* const cache = static_cast<char*>(params.caches[i / params.num_pairs]);
                   const int64_t* const pair = params.mapping + 2 * (i % params.num_pairs);
                   copy_block(cache + pair[0] * layout.block_stride_bytes, layout,
                              cache + pair[1] * layout.block_stride_bytes, layout);
                 }
               });
}

void swap_blocks_cpu(const SwapBlocksParams& params, Stream) {
  const BlockLayout& from = params.src_layout;
  const BlockLayout& to = params.dst_layout;
  parallel_for(
      0, params.num_caches * params.num_pairs, tasks_grain(block_bytes(from)),
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t cache = i / params.num_pairs;
          const int64_t* const pair = params.mapping + 2 * (i % params.num_pairs);
          copy_block(
              static_cast<const char*>(params.src[cache]) + pair[0] * from.block_stride_bytes, from,
              static_cast<char*>(params.dst[cache]) + pair[1] * to.block_stride_bytes, to);
        }
      });
}

}  // namespace pagedattn
