// The scales of a quantised cache, as the tensor-core kernels take them: K's and V's are of the
// same kind.
#pragma once

#include <cuda_runtime.h>

#include "../../cache/cuda/paged_rows.cuh"
#include "../params.h"

namespace pagedattn {

__device__ __forceinline__ bool has_token_scales(const AttentionParams& params) {
  return params.cache.key.scale.kind == ScaleKind::kPerTokenHead;
}

// What all codes of a head share; 1 where tokens have scales of their own.
__device__ __forceinline__ float head_scale(const AttentionParams& params, const CacheView& view,
                                            int kv_head) {
  return has_token_scales(params) ? 1.0f : HeadScale(view.scale, kv_head).at({0, 0});
}

}  // namespace pagedattn
