// copy_blocks and swap_blocks between host tensors: plain copies of bytes.
#include "copy_row.h"
#include "kernels.h"

namespace pagedattn {
namespace {

int64_t block_bytes(const BlockLayout& layout) {
  return layout.outer_count * layout.inner_count * layout.run_bytes;
}

void copy_block(const char* src, const BlockLayout& from, char* dst, const BlockLayout& to,
                bool stream) {
  for (int64_t i = 0; i < from.outer_count; ++i) {
    for (int64_t j = 0; j < from.inner_count; ++j) {
      copy_row(dst + i * to.outer_stride_bytes + j * to.inner_stride_bytes,
               src + i * from.outer_stride_bytes + j * from.inner_stride_bytes, from.run_bytes,
               stream);
    }
  }
}

// copy(cache, pair, stream) for every pair of blocks in every cache.
template <typename F>
void for_each_copy(int64_t num_caches, int64_t num_pairs, int64_t block_bytes, const F& copy) {
  parallel_copies(num_caches * num_pairs, block_bytes,
                  [&](int64_t begin, int64_t end, bool stream) {
                    for (int64_t i = begin; i < end; ++i)
                      copy(i / num_pairs, i % num_pairs, stream);
                  });
}

}  // namespace

void copy_blocks_cpu(const CopyBlocksParams& params, Stream) {
  const BlockLayout& layout = params.layout;
  for_each_copy(params.num_caches, params.num_pairs, block_bytes(layout),
                [&](int64_t cache, int64_t i, bool stream) {
                  char* const base = static_cast<char*>(params.caches[cache]);
                  const int64_t* const pair = params.mapping + 2 * i;
                  copy_block(base + pair[0] * layout.block_stride_bytes, layout,
                             base + pair[1] * layout.block_stride_bytes, layout, stream);
                });
}

void swap_blocks_cpu(const SwapBlocksParams& params, Stream) {
  const BlockLayout& from = params.src_layout;
  const BlockLayout& to = params.dst_layout;
  for_each_copy(
      params.num_caches, params.num_pairs, block_bytes(from),
      [&](int64_t cache, int64_t i, bool stream) {
        const int64_t* const pair = params.mapping + 2 * i;
        copy_block(static_cast<const char*>(params.src[cache]) + pair[0] * from.block_stride_bytes,
                   from, static_cast<char*>(params.dst[cache]) + pair[1] * to.block_stride_bytes,
                   to, stream);
      });
}

}  // namespace pagedattn
