// The partition of the keys that a CTA is at, and where its rows go.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../params.h"
#include "../varlen_rows.cuh"
#include "../varlen_split.h"

namespace pagedattn::varlen_mma {

struct Partition {
  int32_t index;
  int32_t count;  // 1: the keys are not split, and rows go to out
  int32_t size;

  __device__ __forceinline__ bool is_partial() const { return count > 1; }

  __device__ __forceinline__ KvRange part_of(KvRange keys) const {
    const int32_t begin = index * size;
    return {max(keys.begin, begin), index == count - 1 ? keys.end : min(keys.end, begin + size)};
  }

  // Of a row, in the workspace.
  __device__ __forceinline__ int64_t partial(const AttentionParams& params, const VarlenWork& work,
                                             const QueryRow& at) const {
    const int64_t first = first_varlen_partial(work.seq, work.first_token,
                                               max_varlen_partitions(longest_sequence(params)));
    return first * params.num_q_heads + (int64_t{at.token} * params.num_q_heads + at.head) * count +
           index;
  }
};

__device__ __forceinline__ Partition unsplit() { return {0, 1, 0}; }

}  // namespace pagedattn::varlen_mma
