// How paged_attention_varlen cuts the keys of short queries over long contexts into partitions, as
// V2 does for decode: else one long row would be the work of one CTA per kv head, which draws 72 of
// an H200's 4800 GB/s (split_heuristic.h). Pure functions; the split of a row follows from its
// sequence alone, never from the batch.
//
// The time of one CTA for 2048 tokens of head_dim 128 in bf16, 1 MiB, is 15 us. The reduce, a
// second launch, costs 4 us, and shorter partitions would add as much again for CTAs and partials.
// So sequences up to twice that length are left whole, and longer ones get partitions of it, or of
// 4096, 8192, ... tokens: that growth rarely moves the borders.
//
// 32 partitions and 8 kv heads are 256 CTAs, all that an H200 holds. Longer queries need fewer: 8
// tokens over 8 partitions draw nearly all of the bandwidth, and the workspace of a sequence, for
// (token, partition) pairs, is bounded at 64 of them: 1 MiB at 32 heads of head_dim 128. More than
// 64 rows stay whole: they are the tile whose accumulators leave no register for a loop around it.
#pragma once

#include <cstdint>

#include "../../common/host_device.h"
#include "../params.h"

namespace pagedattn {

constexpr int32_t kMaxSplitQueryLen = 16;
constexpr int64_t kMaxSplitRows = 64;               // query tokens times query heads per kv head
constexpr int32_t kSmallestVarlenPartition = 2048;  // in tokens, a multiple of all tiles of keys
constexpr int32_t kLongestUnsplit = 2 * kSmallestVarlenPartition;
constexpr int32_t kMaxVarlenPartitions = 32;
constexpr int32_t kMaxSequencePartials = 64;  // (token, partition) pairs

// The smaller one.
PAGEDATTN_HOST_DEVICE constexpr int64_t at_most(int64_t value, int64_t most) {
  return value < most ? value : most;
}

struct VarlenSplit {
  int32_t partition_size;
  int32_t num_partitions;  // 1: the sequence is not split
};

// `num_rows`: as many as share K and V.
PAGEDATTN_HOST_DEVICE constexpr VarlenSplit split_varlen(int32_t query_len, int64_t num_rows,
                                                         int32_t seq_len) {
  if (query_len < 1 || query_len > kMaxSplitQueryLen || num_rows > kMaxSplitRows ||
      seq_len <= kLongestUnsplit) {
    return {seq_len, 1};
  }
  const int64_t most = at_most(kMaxSequencePartials / query_len, kMaxVarlenPartitions);
  int32_t size = kSmallestVarlenPartition;
  while ((seq_len - 1) / size >= most) size *= 2;
  return {size, (seq_len - 1) / size + 1};
}

// No sequence of the batch has more.
PAGEDATTN_HOST_DEVICE constexpr int64_t max_varlen_partitions(int64_t max_seq_len) {
  if (max_seq_len <= kLongestUnsplit) return 1;
  return at_most((max_seq_len - 1) / kSmallestVarlenPartition + 1, kMaxVarlenPartitions);
}

// Where the (token, partition) pairs of a sequence begin in the workspace: behind the most that the
// sequences before it, and their tokens, can have.
PAGEDATTN_HOST_DEVICE constexpr int64_t first_varlen_partial(int64_t seq, int64_t first_token,
                                                             int64_t max_partitions) {
  const int64_t per_sequence = at_most(kMaxSplitQueryLen * max_partitions, kMaxSequencePartials);
  return at_most(seq * per_sequence, first_token * max_partitions);
}

// The pairs of a batch, 0 where nothing is split.
constexpr int64_t count_varlen_partials(int64_t num_seqs, int64_t num_tokens, int64_t max_seq_len) {
  const int64_t max_partitions = max_varlen_partitions(max_seq_len);
  return max_partitions == 1 ? 0 : first_varlen_partial(num_seqs, num_tokens, max_partitions);
}

// CTAs that share a sequence's partitions, each one after the other, where the batch has
// `num_ctas` for each partition: those of absent partitions cost a microsecond each to leave, so
// there are no more than fill a device some times over.
constexpr int64_t varlen_partition_ctas(int64_t num_ctas, int64_t max_partitions) {
  constexpr int64_t kEnoughCtas = 1024;
  const int64_t wanted = num_ctas < 1 ? 1 : kEnoughCtas / num_ctas;
  return at_most(wanted < 1 ? 1 : wanted, max_partitions);
}

}  // namespace pagedattn
