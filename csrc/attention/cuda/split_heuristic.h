// paged_attention's choice between one pass (V1) and partitions of the KV range (V2), from values
// the host knows. A pure function: nothing here asks a device.
//
// Decode is bound by memory traffic, so time is counted in KV tokens, the unit of what a CTA reads.
// With C = num_seqs * num_kv_heads CTAs and S = num_sms * ctas_per_sm slots for them:
//
//   C >= S: V1. The SMs are full, and a split would only add CTAs and a second kernel. That a last
//           wave may be partly empty is left alone: sequences differ in length, so waves do not end
//           together anyway.
//   C <  S: n = S / C partitions per row fill one wave. V2 takes kCta + size and a reduce over n
//           partials, V1 kCta + max_seq_len; the smaller wins.
//
// So the partition size grows with the context and with the batch, and neither a longer context nor
// a smaller batch turns V2 back into V1. The costs are estimates from 4.8 TB/s over 132 SMs, where
// one of three resident CTAs gets through a token of 512 bytes in some 40 ns; they are not measured
// yet.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pagedattn {

struct SplitProblem {
  int64_t num_seqs = 0;
  int64_t num_kv_heads = 0;
  int64_t max_seq_len = 0;
  int64_t num_sms = 1;
  int64_t ctas_per_sm = 1;
};

constexpr int64_t kReduceCost = 96;          // a second launch behind the first: 4 us
constexpr int64_t kPartialCost = 1;          // what the reduce reads of one partition
constexpr int64_t kSmallestPartition = 128;  // below, a CTA's start costs more than its tokens
constexpr int64_t kPartitionStep = 64;       // partition sizes are multiples of it

// 0: V1; else V2's partition size.
constexpr int32_t choose_partition_size(const SplitProblem& problem) {
  const int64_t num_ctas = problem.num_seqs * problem.num_kv_heads;
  const int64_t num_slots = problem.num_sms * problem.ctas_per_sm;
  if (num_ctas == 0 || num_ctas >= num_slots) return 0;

  const int64_t wanted = num_slots / num_ctas;
  const int64_t even = (problem.max_seq_len + wanted - 1) / wanted;
  const int64_t size =
      std::max(kSmallestPartition, (even + kPartitionStep - 1) / kPartitionStep * kPartitionStep);
  const int64_t num_partitions = (problem.max_seq_len + size - 1) / size;
  const bool split_wins = size + kReduceCost + num_partitions * kPartialCost < problem.max_seq_len;
  return split_wins ? static_cast<int32_t>(size) : 0;
}

}  // namespace pagedattn
