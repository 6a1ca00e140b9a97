#include "../../common/cpu/parallel.h"
#include "kernels.h"

namespace pagedattn {

// V1 is one unit of work per sequence and kv head, V2 one per partition as well: worth its second
// pass only where V1 has too few units to keep the threads busy to the end.
int32_t choose_partition_size_cpu(const AttentionParams& params) {
  constexpr int32_t kPartitionSize = 512;  // the second pass costs nothing beside it
  constexpr int64_t kUnitsPerThread = 2;
  const int64_t units = int64_t{params.num_seqs} * params.cache.num_kv_heads;
  if (units >= kUnitsPerThread * num_threads()) return 0;
  return params.max_seq_len > kPartitionSize ? kPartitionSize : 0;
}

}  // namespace pagedattn
