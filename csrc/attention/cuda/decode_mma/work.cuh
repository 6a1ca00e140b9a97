// The share of the problem that a CTA computes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "../../visibility.h"
#include "../sequence.cuh"

namespace pagedattn::decode_mma {

struct CtaWork {
  int seq;
  int kv_head;
  int num_heads;
  int first_head;
  int32_t q_pos;
  KvRange visible;  // within the partition

  __device__ __forceinline__ CtaWork(const AttentionParams& params, int seq, int kv_head,
                                     int partition)
      : seq(seq),
        kv_head(kv_head),
        num_heads(params.num_q_heads / params.cache.num_kv_heads),
        first_head(kv_head * num_heads) {
    // One lane reads the length; the shuffle tells the compiler that all lanes have the same value.
    const bool reads = threadIdx.x % kWarpSize == 0;
    const int32_t seq_len = __shfl_sync(kFullWarp, reads ? clamped_seq_len(params, seq) : 0, 0);
    q_pos = seq_len - 1;
    visible = partition_range(params, visible_range(params.masks, q_pos, seq_len), partition);
  }
};

}  // namespace pagedattn::decode_mma
