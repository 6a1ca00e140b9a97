// Decode attention: picks the kernel for the cache's storage type.
#include "../../common/cuda/dispatch.h"
#include "../../common/cuda/launch.h"
#include "decode_launch.h"
#include "kernels.h"
#include "split_heuristic.h"

namespace pagedattn::cuda {

void decode(const AttentionParams& params, Stream stream) {
  with_storage_type(params.cache.dtype,
                    [&](auto tag) { launch_decode<typename decltype(tag)::Type>(params, stream); });
}

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
  problem.num_sms = num_sms;
  problem.ctas_per_sm = 3;
  return pagedattn::choose_partition_size(problem);
}

}  // namespace pagedattn::cuda
