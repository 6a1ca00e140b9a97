// The lengths of one sequence of the batch.
#pragma once

#include <cstdint>

#include "../params.h"
#include "../visibility.h"

namespace pagedattn {

// No value in seq_lens makes a kernel read past the block table or the host's bound.
__device__ __forceinline__ int32_t clamped_seq_len(const AttentionParams& params, int seq) {
  const int64_t limit = longest_sequence(params);
  const int32_t seq_len = params.seq_lens[seq];
  if (seq_len < 0) return 0;
  return seq_len < limit ? seq_len : static_cast<int32_t>(limit);
}

// What a decode query, which sits at the sequence's last position, sees.
__device__ __forceinline__ KvRange decode_range(const AttentionParams& params, int seq) {
  const int32_t seq_len = clamped_seq_len(params, seq);
  return visible_range(params.masks, seq_len - 1, seq_len);
}

// What of it lies in a partition of V2's; all of it in V1.
__device__ __forceinline__ KvRange partition_range(const AttentionParams& params, KvRange visible,
                                                   int partition) {
  const int64_t size = params.partial.partition_size;
  if (size == 0) return visible;
  const int64_t begin = max(int64_t{visible.begin}, partition * size);
  const int64_t end = min(int64_t{visible.end}, (partition + 1) * size);
  return {static_cast<int32_t>(min(begin, end)), static_cast<int32_t>(end)};
}

}  // namespace pagedattn
