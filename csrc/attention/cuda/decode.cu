// Decode attention: picks the tensor-core kernel where it applies, else the one for the width of
// the cache's storage type.
#include "../../common/cuda/dispatch.h"
#include "../../common/cuda/launch.h"
#include "decode_launch.h"
#include "decode_mma.h"
#include "kernels.h"
#include "split_heuristic.h"

namespace pagedattn::cuda {

void decode(const AttentionParams& params, Stream stream) {
  if (decode_mma_supports(params)) return launch_decode_mma(params, stream);
  with_storage_word(params.cache.dtype,
                    [&](auto tag) { launch_decode<typename decltype(tag)::Type>(params, stream); });
}

// What registers allow of the SIMT-core kernel's CTAs.
constexpr int64_t kDecodeCtasPerSm = 3;

int32_t choose_partition_size(const AttentionParams& params) {
  int device = 0;
  int num_sms = 0;
  check_cuda(cudaGetDevice(&device), "paged_attention");
  check_cuda(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device),
             "paged_attention");
  SplitProblem problem;
  problem.num_seqs = params.num_seqs;
  problem.num_kv_heads = params.cache.num_kv_heads;
  problem.max_seq_len = params.max_seq_len;
  problem.token_bytes = int64_t{2} * params.cache.head_dim * element_size(params.cache.dtype);
  problem.partial_bytes = int64_t{params.num_q_heads / params.cache.num_kv_heads} *
                          (params.cache.head_dim + 1) * static_cast<int64_t>(sizeof(float));
  problem.num_sms = num_sms;
  problem.ctas_per_sm =
      decode_mma_supports(params) ? decode_mma_ctas_per_sm(params) : kDecodeCtasPerSm;
  return pagedattn::choose_partition_size(problem);
}

}  // namespace pagedattn::cuda
