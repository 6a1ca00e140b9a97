// Picks the instantiation of the tensor-core decode kernel.
#include "decode_mma.h"

#include <algorithm>

#include "../../common/cuda/dispatch.h"
#include "decode_mma/launch.h"
#include "decode_mma/tile.h"
#include "mma_device.h"
#include "tiles.h"

namespace pagedattn {
namespace {

constexpr int kMaxGroupHeads = 64;          // four warps with 16 heads each
constexpr int kReservedSharedBytes = 1024;  // per CTA, beside its own

int group_heads(const AttentionParams& params) {
  return params.num_q_heads / params.cache.num_kv_heads;
}

// visit.operator()<T, kHeadDim>() with what the cache holds and the bucket of its head_dim.
template <typename Visit>
void with_instantiation(const KvCacheView& cache, Visit&& visit) {
  if (is_quantized(cache.dtype)) {
    with_quantized_type(cache.dtype, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      with_coarse_head_dim(cache.head_dim,
                           [&]<int kHeadDim>() { visit.template operator()<T, kHeadDim>(); });
    });
  } else {
    with_head_dim(cache.head_dim, [&]<int kHeadDim>() {
      if (cache.dtype == DType::kFloat16) return visit.template operator()<__half, kHeadDim>();
      visit.template operator()<__nv_bfloat16, kHeadDim>();
    });
  }
}

int shared_bytes(const AttentionParams& params) {
  int bytes = 0;
  with_instantiation(params.cache, [&]<typename T, int kHeadDim>() {
    bytes = decode_mma::SharedLayout<kHeadDim, sizeof(T)>::bytes(group_heads(params));
  });
  return bytes;
}

}  // namespace

bool decode_mma_supports(const AttentionParams& params) {
  return mma_takes(params) && group_heads(params) <= kMaxGroupHeads && has_mma_instructions() &&
         shared_bytes(params) <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

int decode_mma_ctas_per_sm(const AttentionParams& params) {
  const int by_shared_memory = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) /
                               (shared_bytes(params) + kReservedSharedBytes);
  const int by_registers = decode_mma::ctas_by_registers(
      params.cache.head_dim, element_size(params.cache.dtype), group_heads(params) > 16);
  return std::min(by_shared_memory, by_registers);
}

void launch_decode_mma(const AttentionParams& params, Stream stream) {
  with_instantiation(params.cache, [&]<typename T, int kHeadDim>() {
    launch_decode_mma<T, kHeadDim>(params, stream);
  });
}

}  // namespace pagedattn
