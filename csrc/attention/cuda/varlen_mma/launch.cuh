// The host side of kernel.cuh.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../../../common/cuda/alignment.h"
#include "../../../common/cuda/launch.h"
#include "../varlen_split.h"
#include "kernel.cuh"
#include "launch.h"

namespace pagedattn {
namespace varlen_mma {

inline PageStrides page_strides(const CacheView& view, int element_bytes) {
  return {static_cast<uint32_t>(element_bytes * view.block_stride),
          static_cast<uint32_t>(element_bytes * view.token_stride),
          static_cast<uint32_t>(element_bytes * view.head_stride)};
}

}  // namespace varlen_mma

template <typename T, int kHeadDim>
void launch_varlen_mma(const AttentionParams& params, Stream stream) {
  using namespace varlen_mma;
  constexpr int kLargeRows = large_rows(kHeadDim);
  const int group_size = params.num_q_heads / params.cache.num_kv_heads;
  // max_query_len may be a loose bound; no sequence has more tokens than there are.
  const int64_t max_rows = std::min(params.max_query_len, params.num_tokens) * group_size;
  const int64_t all_rows = params.num_tokens * group_size;

  // At most so many sequences have more than kMediumRows rows, and each can leave one tile with a
  // single row.
  int64_t max_large_tiles = 0;
  int shared_bytes = SharedLayout<kHeadDim, kSmallRows, sizeof(T)>::kBytes;
  if (max_rows > kSmallRows) {
    shared_bytes = std::max(shared_bytes, SharedLayout<kHeadDim, kMediumRows, sizeof(T)>::kBytes);
  }
  if (max_rows > kMediumRows) {
    shared_bytes = std::max(shared_bytes, SharedLayout<kHeadDim, kLargeRows, sizeof(T)>::kBytes);
    const int64_t max_large_seqs = std::min<int64_t>(params.num_seqs, all_rows / (kMediumRows + 1));
    max_large_tiles = (all_rows + (kLargeRows - 1) * max_large_seqs) / kLargeRows;
  }

  Alignment query;
  query.add(params.query, element_size(params.dtype));
  Alignment out;
  out.add(params.out, element_size(params.dtype));
  const float softcap = params.masks.softcap;
  const bool has_logit_rule =
      softcap > 0.0f || params.masks.alibi_slopes != nullptr || !(params.scale > 0.0f);
  const VarlenMmaConfig config{FastDivide(group_size),
                               page_strides(params.cache.key, sizeof(T)),
                               page_strides(params.cache.value, sizeof(T)),
                               static_cast<uint32_t>(sizeof(T) * params.cache.head_dim),
                               static_cast<int32_t>(max_large_tiles),
                               has_logit_rule,
                               has_logit_rule ? 1.0f : params.scale * kLog2E,
                               softcap > 0.0f ? params.scale / softcap : params.scale,
                               query.allows(16),
                               out.allows(16)};
  const int64_t num_ctas = (max_large_tiles + params.num_seqs) * params.cache.num_kv_heads;
  const int64_t partition_ctas =
      varlen_partition_ctas(num_ctas, max_varlen_partitions(longest_sequence(params)));
  launch(varlen_mma_kernel<T, kHeadDim>,
         dim3(grid_size(num_ctas, "varlen_mma"), static_cast<unsigned>(partition_ctas)), kThreads,
         shared_bytes, stream, "varlen_mma", params, config);
}

}  // namespace pagedattn
