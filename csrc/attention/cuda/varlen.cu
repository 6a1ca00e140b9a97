// Varlen attention: picks the tensor-core kernel where it applies, else the SIMT-core one.
#include "kernels.h"
#include "varlen_mma.h"
#include "varlen_simt.h"
#include "varlen_split.h"

namespace pagedattn::cuda {

void varlen(const AttentionParams& params, Stream stream) {
  if (varlen_mma_supports(params)) {
    launch_varlen_mma(params, stream);
    if (count_varlen_partials(params) > 0) reduce_varlen_partitions(params, stream);
    return;
  }
  launch_varlen_simt(params, stream);
}

int64_t count_varlen_partials(const AttentionParams& params) {
  if (!varlen_mma_supports(params)) return 0;
  return pagedattn::count_varlen_partials(params.num_seqs, params.num_tokens,
                                          longest_sequence(params));
}

}  // namespace pagedattn::cuda
