// paged_attention's choice between one pass (V1) and partitions of the KV range (V2), from values
// the host knows. A pure function: nothing here asks a device.
//
// Decode is bound by memory traffic. All times are therefore counted in bytes: one unit is the time
// in which an SM's share of the memory bandwidth delivers one byte (36 GB/s on an H200, 4.8 TB/s
// over 132 SMs). C CTAs that are resident share the bandwidth evenly, but none gets more than its
// own loads in flight allow, which is kMaxShare SMs' worth. So w bytes in each of them take
//
//   w * max(C / num_sms, 1 / kMaxShare)
//
// and more CTAs than fit are full waves and a last one that is not. What splitting adds: CTAs
// start and merge their warps more often, every partition writes fp32 partials and the reduce reads
// them, and the reduce is a second launch.
//
// The constants are estimates from a data sheet and from instruction counts, not yet measured.
#pragma once

#include <cstdint>

namespace pagedattn {

struct SplitProblem {
  int64_t num_seqs = 0;
  int64_t num_kv_heads = 0;
  int64_t max_seq_len = 0;
  int64_t token_bytes = 1;    // K and V of one token and kv head
  int64_t partial_bytes = 0;  // what a partition writes for one kv head
  int64_t num_sms = 1;
  int64_t ctas_per_sm = 1;
};

namespace split_cost {

constexpr double kMaxShare = 2.0;    // 64 KB in flight over 0.9 us are 72 GB/s
constexpr double kCta = 12e3;        // 2.4k warp instructions, 4 per clock: 0.3 us
constexpr double kReduce = 144e3;    // a launch behind a launch, its latencies: 4 us
constexpr double kTolerance = 1.05;  // partitions must gain more than this to be worth it

// num_ctas of `bytes` each.
constexpr double transfer_time(const SplitProblem& problem, int64_t num_ctas, double bytes) {
  const int64_t wave = problem.num_sms * problem.ctas_per_sm;
  const int64_t rest = num_ctas % wave;
  double share = static_cast<double>(num_ctas - rest) / static_cast<double>(problem.num_sms);
  if (rest > 0) {
    const double last = static_cast<double>(rest) / static_cast<double>(problem.num_sms);
    share += last > 1.0 / kMaxShare ? last : 1.0 / kMaxShare;
  }
  return share * bytes;
}

// 0 partitions: V1.
constexpr double run_time(const SplitProblem& problem, int64_t num_partitions) {
  const int64_t pairs = problem.num_seqs * problem.num_kv_heads;
  const auto kv_bytes = static_cast<double>(problem.max_seq_len * problem.token_bytes);
  if (num_partitions == 0) return transfer_time(problem, pairs, kv_bytes + kCta);
  const auto parts = static_cast<double>(num_partitions);
  const auto partial_bytes = static_cast<double>(problem.partial_bytes);
  return transfer_time(problem, pairs * num_partitions, kv_bytes / parts + kCta + partial_bytes) +
         transfer_time(problem, pairs, parts * partial_bytes) + kReduce;
}

}  // namespace split_cost

// Powers of two, so that a sequence that grows by a token rarely changes its partitions, and with
// them the order of its sums.
constexpr int64_t kSmallestPartition = 128;
constexpr int64_t kLargestPartition = int64_t{1} << 20;

// 0: V1; else V2's partition size: the largest whose time is within the tolerance of the best.
constexpr int32_t choose_partition_size(const SplitProblem& problem) {
  const auto time_of = [&](int64_t size) {
    return split_cost::run_time(problem, (problem.max_seq_len + size - 1) / size);
  };
  const double unsplit = split_cost::run_time(problem, 0);
  double best = unsplit;
  for (int64_t size = kSmallestPartition; size < problem.max_seq_len && size <= kLargestPartition;
       size *= 2) {
    best = time_of(size) < best ? time_of(size) : best;
  }
  const double good = best * split_cost::kTolerance;
  if (unsplit <= good) return 0;
  int64_t size = kLargestPartition;
  while (size >= problem.max_seq_len || time_of(size) > good) size /= 2;
  return static_cast<int32_t>(size);
}

}  // namespace pagedattn
