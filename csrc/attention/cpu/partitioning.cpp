#include "../../common/cpu/parallel.h"
#include "kernels.h"

namespace pagedattn {

// V2 is worth its second pass, which costs little beside reading a partition, where V1 has too few
// sequences to keep the threads busy to the end: their lengths may differ, and a unit that has all
// the kv heads of a sequence reads memory faster than one that has a few of them.
int32_t choose_partition_size_cpu(const AttentionParams& params) {
  constexpr int32_t kPartitionSize = 512;
  constexpr int64_t kSequencesPerThread = 8;
  if (params.num_seqs >= kSequencesPerThread * num_threads()) return 0;
  return params.max_seq_len > kPartitionSize ? kPartitionSize : 0;
}

// The kernel's units of work are small enough as they are.
int64_t count_varlen_partials_cpu(const AttentionParams&) { return 0; }

}  // namespace pagedattn
