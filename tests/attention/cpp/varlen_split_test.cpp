// The split of short queries over long contexts as pure functions.
#include "attention/cuda/varlen_split.h"

#include <cstdint>
#include <initializer_list>
#include <limits>

#include "../../expect.h"

namespace pagedattn {
namespace {

constexpr int32_t kLengths[] = {4097,   6144,    8191,      8192,
                                8193,   16384,   40000,     65536,
                                131072, 1 << 20, 300000000, std::numeric_limits<int32_t>::max()};

void long_prefills_short_contexts_and_many_rows_are_not_split() {
  for (const int32_t length : kLengths) {
    EXPECT(split_varlen(0, 0, length).num_partitions == 1);
    EXPECT(split_varlen(17, 17, length).num_partitions == 1);
    EXPECT(split_varlen(1, 65, length).num_partitions == 1);
  }
  for (const int32_t length : {0, 1, 2048, 4096}) {
    EXPECT(split_varlen(1, 8, length).num_partitions == 1);
    EXPECT(count_varlen_partials(100, 1600, length) == 0);
  }
}

void partitions_cover_the_sequence_within_the_bounds() {
  for (int32_t query_len = 1; query_len <= kMaxSplitQueryLen; ++query_len) {
    for (const int32_t length : kLengths) {
      const auto [size, count] = split_varlen(query_len, 4 * query_len, length);
      EXPECT(size % kSmallestVarlenPartition == 0);
      EXPECT(count > 1 && count <= kMaxVarlenPartitions);
      EXPECT(query_len * count <= kMaxSequencePartials);
      EXPECT(int64_t{size} * count >= length && int64_t{size} * (count - 1) < length);
      EXPECT(count <= max_varlen_partitions(length));
    }
  }
}

void a_long_decode_fills_a_device() {
  EXPECT(split_varlen(1, 8, 131072).num_partitions == 32);
  EXPECT(split_varlen(8, 64, 131072).num_partitions == 8);
}

void places_in_the_workspace_do_not_overlap() {
  const int32_t query_lens[] = {1, 16, 3, 0, 700, 1, 1, 5, 16, 2};
  for (const int32_t length : kLengths) {
    const int64_t max_partitions = max_varlen_partitions(length);
    int64_t seq = 0;
    int64_t token = 0;
    int64_t end = 0;  // of the places so far
    for (const int32_t query_len : query_lens) {
      const int64_t first = first_varlen_partial(seq, token, max_partitions);
      EXPECT(first >= end);
      const int32_t count = split_varlen(query_len, 4 * query_len, length).num_partitions;
      end = first + (count > 1 ? query_len * count : 0);
      ++seq;
      token += query_len;
    }
    EXPECT(end <= count_varlen_partials(seq, token, length));
  }
}

void workspaces_are_bounded_by_sequences_and_by_tokens() {
  const int64_t length = 1 << 20;
  EXPECT(count_varlen_partials(8, 100000, length) == 8 * kMaxSequencePartials);
  EXPECT(count_varlen_partials(300, 300, length) == 300 * kMaxVarlenPartitions);
  EXPECT(count_varlen_partials(1, 16, 6000) == 3 * kMaxSplitQueryLen);
}

void full_grids_have_no_ctas_for_partitions() {
  EXPECT(varlen_partition_ctas(8, 32) == 32);
  EXPECT(varlen_partition_ctas(256, 32) == 4);
  EXPECT(varlen_partition_ctas(5000, 32) == 1);
  EXPECT(varlen_partition_ctas(0, 1) == 1);
}

}  // namespace
}  // namespace pagedattn

int main() {
  using namespace pagedattn;
  long_prefills_short_contexts_and_many_rows_are_not_split();
  partitions_cover_the_sequence_within_the_bounds();
  a_long_decode_fills_a_device();
  places_in_the_workspace_do_not_overlap();
  workspaces_are_bounded_by_sequences_and_by_tokens();
  full_grids_have_no_ctas_for_partitions();
  return test::num_failures > 0;
}
