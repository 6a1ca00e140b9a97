// The choice between V1 and V2 as a pure function, on H200- and A100-like devices.
#include "attention/cuda/split_heuristic.h"

#include <cstdint>
#include <initializer_list>

#include "../../expect.h"

namespace pagedattn {
namespace {

// bf16, head_dim 128, 8 query heads per kv head.
SplitProblem h200(int64_t num_seqs, int64_t num_kv_heads, int64_t max_seq_len) {
  return {num_seqs, num_kv_heads, max_seq_len, 512, 8 * 129 * 4, 132, 3};
}

int64_t num_partitions(const SplitProblem& problem) {
  const int64_t size = choose_partition_size(problem);
  return size == 0 ? 1 : (problem.max_seq_len + size - 1) / size;
}

double chosen_time(const SplitProblem& problem) {
  const bool split = choose_partition_size(problem) != 0;
  return split_cost::run_time(problem, split ? num_partitions(problem) : 0);
}

void sizes_are_powers_of_two_and_cut_the_range() {
  for (const int64_t seqs : std::initializer_list<int64_t>{0, 1, 2, 3, 8, 31, 200, 1000}) {
    for (const int64_t length : std::initializer_list<int64_t>{0, 1, 64, 128, 129, 500, 1024, 5000,
                                                               40000, 131072, 4000000}) {
      const int64_t size = choose_partition_size(h200(seqs, 8, length));
      if (size == 0) continue;
      EXPECT((size & (size - 1)) == 0);
      EXPECT(size >= kSmallestPartition && size <= kLargestPartition && size < length);
    }
  }
}

void short_sequences_and_full_devices_are_not_split() {
  EXPECT(choose_partition_size(h200(0, 8, 100000)) == 0);
  EXPECT(choose_partition_size(h200(1, 1, 128)) == 0);
  EXPECT(choose_partition_size(h200(1, 1, 256)) == 0);
  EXPECT(choose_partition_size(h200(17, 8, 131072)) == 0);  // 136 CTAs for 132 SMs
  EXPECT(choose_partition_size(h200(1024, 8, 4096)) == 0);
}

void few_long_sequences_fill_the_device() {
  for (const int64_t length : std::initializer_list<int64_t>{8192, 32768, 131072}) {
    const SplitProblem problem = h200(1, 1, length);
    // Enough CTAs to draw half of the bandwidth at least.
    EXPECT(static_cast<double>(num_partitions(problem)) * split_cost::kMaxShare * 5 >=
           static_cast<double>(problem.num_sms));
    EXPECT(chosen_time(problem) < 0.5 * split_cost::run_time(problem, 0));
  }
}

// While V1 fits into one wave; behind a full wave, partitions fill up the next.
void more_sequences_never_mean_more_partitions() {
  for (const int64_t length :
       std::initializer_list<int64_t>{200, 512, 1024, 3000, 8192, 30000, 131072}) {
    for (int64_t seqs = 1; seqs < 396; ++seqs) {
      EXPECT(num_partitions(h200(seqs + 1, 1, length)) <= num_partitions(h200(seqs, 1, length)));
    }
  }
}

void longer_sequences_never_mean_fewer_partitions_twice_as_long() {
  for (const int64_t seqs : std::initializer_list<int64_t>{1, 4, 16, 64}) {
    for (int64_t length = 128; length <= 1 << 19; length *= 2) {
      EXPECT(num_partitions(h200(seqs, 1, 2 * length)) >= num_partitions(h200(seqs, 1, length)));
    }
  }
}

void more_work_never_takes_less_time() {
  for (const int64_t length : std::initializer_list<int64_t>{256, 1024, 8192, 131072}) {
    for (int64_t seqs = 1; seqs < 900; ++seqs) {
      const double tolerance = split_cost::kTolerance;
      EXPECT(chosen_time(h200(seqs, 1, length)) <=
             tolerance * chosen_time(h200(seqs + 1, 1, length)));
      EXPECT(chosen_time(h200(seqs, 1, length)) <=
             tolerance * chosen_time(h200(seqs, 1, 2 * length)));
    }
  }
}

void kv_heads_count_like_sequences() {
  for (const int64_t length : std::initializer_list<int64_t>{1024, 16384}) {
    EXPECT(choose_partition_size(h200(2, 8, length)) == choose_partition_size(h200(16, 1, length)));
  }
}

// Nowhere is the choice much worse than the best partition count of any size.
void choice_is_near_the_best_of_all_partition_counts() {
  for (const int64_t seqs : std::initializer_list<int64_t>{1, 3, 8, 40, 133, 397}) {
    for (const int64_t length : std::initializer_list<int64_t>{300, 1024, 6000, 32768}) {
      const SplitProblem problem = h200(seqs, 1, length);
      double best = split_cost::run_time(problem, 0);
      for (int64_t parts = 2; parts <= length / kSmallestPartition; ++parts) {
        const double time = split_cost::run_time(problem, parts);
        if (time < best) best = time;
      }
      EXPECT(chosen_time(problem) <= 1.15 * best);
    }
  }
}

}  // namespace
}  // namespace pagedattn

int main() {
  using namespace pagedattn;
  sizes_are_powers_of_two_and_cut_the_range();
  short_sequences_and_full_devices_are_not_split();
  few_long_sequences_fill_the_device();
  more_sequences_never_mean_more_partitions();
  longer_sequences_never_mean_fewer_partitions_twice_as_long();
  more_work_never_takes_less_time();
  kv_heads_count_like_sequences();
  choice_is_near_the_best_of_all_partition_counts();
  return test::num_failures > 0;
}
