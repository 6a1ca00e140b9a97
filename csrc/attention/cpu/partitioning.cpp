#include "../../common/cpu/parallel.h"
#include "kernels.h"

namespace pagedattn {

// V2 is worth its second pass, which costs little beside reading a partition, where V1 has too few
// sequences to keep the threads busy to the end: their lengths may differ, and a unit that has all
// the kv heads of a sequence reads memory faster than one that has a few of them. Partitions are
// long, as each begins with memory that nobody has asked for yet, but not so long that threads
// would go without. One thread has nobody to share with.
int32_t choose_partition_size_cpu(const AttentionParams& params) {
  constexpr int32_t kLongest = 1024;
  constexpr int32_t kShortest = 256;
  constexpr int64_t kSequencesPerThread = 8;
  constexpr int64_t kHeadsPerThread = 32;  // (partition, kv head), so that a unit has several heads
  const int64_t threads = num_threads();
  if (threads == 1 || params.num_seqs >= kSequencesPerThread * threads) return 0;
  const int64_t heads = params.num_seqs * params.cache.num_kv_heads;
  int32_t size = kLongest;
  while (size > kShortest &&
         heads * count_partitions(params.max_seq_len, size) < kHeadsPerThread * threads) {
    size /= 2;
  }
  return params.max_seq_len > size ? size : 0;
}

// The kernel's units of work are small enough as they are.
int64_t count_varlen_partials_cpu(const AttentionParams&) { return 0; }

}  // namespace pagedattn
