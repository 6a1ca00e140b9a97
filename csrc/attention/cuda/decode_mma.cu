// Picks the instantiation of the tensor-core decode kernel.
#include "decode_mma.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <limits>

#include "../../common/cuda/launch.h"
#include "decode_mma/launch.h"
#include "tiles.h"

namespace pagedattn {
namespace {

constexpr int kMaxGroupHeads = 64;  // four warps with 16 heads each
constexpr int kMaxPartitions = 65535;

int compute_capability_major() {
  int device = 0;
  int major = 0;
  check_cuda(cudaGetDevice(&device), "decode_mma");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "decode_mma");
  return major;
}

// The loader multiplies 32-bit block numbers by 32-bit byte strides.
bool strides_fit(const CacheView& view) {
  constexpr int64_t kMaxStride = std::numeric_limits<uint32_t>::max() / 2;
  return view.block_stride >= 0 && view.block_stride <= kMaxStride && view.token_stride >= 0 &&
         view.token_stride <= kMaxStride;
}

}  // namespace

bool decode_mma_supports(const AttentionParams& params) {
  const bool half = params.dtype == DType::kFloat16 || params.dtype == DType::kBFloat16;
  if (!half || params.cache.dtype != params.dtype) return false;
  if (params.num_q_heads / params.cache.num_kv_heads > kMaxGroupHeads) return false;
  if (!strides_fit(params.cache.key) || !strides_fit(params.cache.value)) return false;
  const int64_t partition_size = params.partial.partition_size;
  if (partition_size != 0 && params.max_seq_len > kMaxPartitions * partition_size) return false;
  return compute_capability_major() >= 8;
}

void launch_decode_mma(const AttentionParams& params, Stream stream) {
  with_head_dim(params.cache.head_dim, [&]<int kHeadDim>() {
    if (params.dtype == DType::kFloat16) {
      launch_decode_mma<__half, kHeadDim>(params, stream);
    } else {
      launch_decode_mma<__nv_bfloat16, kHeadDim>(params, stream);
    }
  });
}

}  // namespace pagedattn
