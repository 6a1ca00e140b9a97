// How attention is cut into units of work, each of which one thread does from start to end.
#pragma once

#include "../params.h"
#include "../visibility.h"
#include "prefill/plan.h"
#include "register_blocks.h"

namespace pagedattn::PAGEDATTN_ISA {

// A unit: some query tokens of one sequence, some kv heads (or some query heads of one of them),
// some of the KV range.
struct Unit {
  int seq;
  int seq_len;
  int query_len;
  int64_t first_token;  // of the unit, as a row of query and out
  int first_row;        // the same within the sequence
  int num_tokens;
  int kv_head;  // the first of num_kv_heads
  int num_kv_heads;
  int first_head;  // query head of kv_head
  int num_heads;   // query heads of each kv head
  int partition;
  KvRange keys;  // seen by at least one row
};

inline int clamp_to(int64_t value, int64_t max) {
  if (value > max) value = max;
  return value < 0 ? 0 : static_cast<int>(value);
}

inline int sequence_length(const AttentionParams& params, int seq) {
  return clamp_to(params.seq_lens[seq], params.max_seq_len);
}

inline KvRange intersect(KvRange a, KvRange b) {
  const int begin = a.begin > b.begin ? a.begin : b.begin;
  const int end = a.end < b.end ? a.end : b.end;
  return {begin, begin > end ? begin : end};
}

class WorkPlan {
 public:
  WorkPlan(const AttentionParams& params, int64_t num_threads) : params_(params) {
    group_ = params.num_q_heads / params.cache.num_kv_heads;
    heads_per_unit_ = group_ < kMaxRows ? group_ : kMaxRows;
    head_chunks_ = (group_ + heads_per_unit_ - 1) / heads_per_unit_;
    tokens_per_unit_ =
        params.cu_seqlens_q ? clamp_to(params.max_query_len, kMaxRows / heads_per_unit_) : 1;
    if (tokens_per_unit_ < 1) tokens_per_unit_ = 1;
    partitions_ = 1;
    if (const int size = params.partial.partition_size; size > 0) {
      // Of the longest sequence: the workspace, and max_seq_len, may be far larger than needed.
      int longest = 0;
      for (int seq = 0; seq < params.num_seqs; ++seq) {
        const int length = sequence_length(params, seq);
        if (length > longest) longest = length;
      }
      partitions_ = count_partitions(longest, size);
    }
    token_tiles_ = first_tile(params.num_seqs);
    choose_kv_heads_per_unit(num_threads);
  }

  int64_t num_units() const { return token_tiles_ * partitions_ * kv_head_chunks_ * head_chunks_; }

  // False if there is nothing to do for unit `index`.
  bool get(int64_t index, Unit& unit) const {
    // Heads innermost: neighbouring units read neighbouring memory. Later query tiles, which see
    // more keys, come first, so that the threads finish together.
    const int head_chunk = static_cast<int>(index % head_chunks_);
    index /= head_chunks_;
    unit.kv_head = static_cast<int>(index % kv_head_chunks_) * kv_heads_per_unit_;
    unit.num_kv_heads = clamp_to(kv_heads_per_unit_, params_.cache.num_kv_heads - unit.kv_head);
    index /= kv_head_chunks_;
    unit.partition = static_cast<int>(index % partitions_);
    index /= partitions_;
    if (!find_tokens_of(token_tiles_ - 1 - index, unit)) return false;

    const int first_in_group = head_chunk * heads_per_unit_;
    unit.first_head = unit.kv_head * group_ + first_in_group;
    unit.num_heads = clamp_to(heads_per_unit_, group_ - first_in_group);

    const int first_position = query_position(unit.first_row, unit.query_len, unit.seq_len);
    const int last_position = first_position + unit.num_tokens - 1;
    const MaskParams& masks = params_.masks;
    unit.keys = {visible_range(masks, first_position, unit.seq_len).begin,
                 visible_range(masks, last_position, unit.seq_len).end};
    const int size = params_.partial.partition_size;
    if (size == 0) return true;
    const int64_t begin = static_cast<int64_t>(unit.partition) * size;
    unit.keys =
        intersect(unit.keys, {clamp_to(begin, unit.seq_len), clamp_to(begin + size, unit.seq_len)});
    return unit.keys.begin < unit.keys.end;
  }

 private:
  // The heads of a block lie together, on as many pages of memory as there are heads or fewer. A
  // unit that reads all of them while it is there has the translations of their addresses at hand
  // and reads scattered blocks about as fast as a plain run of memory; a head at a time takes 1.2
  // to 1.5 times as long. But there must be units enough to keep the threads busy to the end.
  void choose_kv_heads_per_unit(int64_t num_threads) {
    const int64_t enough = num_threads > 1 ? 8 * num_threads : 1;
    const int kv_heads = params_.cache.num_kv_heads;
    const int most = head_chunks_ > 1 ? 1 : kMaxRows / (tokens_per_unit_ * heads_per_unit_);
    kv_heads_per_unit_ = kv_heads < most ? kv_heads : most;
    const auto chunks = [&] { return (kv_heads + kv_heads_per_unit_ - 1) / kv_heads_per_unit_; };
    while (kv_heads_per_unit_ > 1 && token_tiles_ * partitions_ * chunks() < enough) {
      kv_heads_per_unit_ = (kv_heads_per_unit_ + 1) / 2;
    }
    kv_head_chunks_ = chunks();
  }

  // Sequence s owns the token tiles from first_tile(s) to first_tile(s + 1): enough for its tokens,
  // at most one too many, and no table has to be built.
  int64_t first_tile(int seq) const {
    return params_.cu_seqlens_q ? params_.cu_seqlens_q[seq] / tokens_per_unit_ + seq : seq;
  }

  bool find_tokens_of(int64_t tile, Unit& unit) const {
    int low = 0;
    int high = params_.num_seqs;
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (first_tile(middle) <= tile ? low : high) = middle;
    }
    unit.seq = low;
    unit.seq_len = sequence_length(params_, low);
    const int32_t* const cu = params_.cu_seqlens_q;
    unit.query_len = cu ? cu[low + 1] - cu[low] : 1;
    if (is_prefill(unit.query_len, group_)) return false;
    const int64_t first_row = (tile - first_tile(low)) * tokens_per_unit_;
    if (first_row >= unit.query_len) return false;
    unit.first_row = static_cast<int>(first_row);
    unit.first_token = (cu ? cu[low] : low) + first_row;
    unit.num_tokens = clamp_to(unit.query_len - first_row, tokens_per_unit_);
    return true;
  }

  const AttentionParams& params_;
  int group_;
  int heads_per_unit_;
  int head_chunks_;
  int tokens_per_unit_;
  int kv_heads_per_unit_;
  int kv_head_chunks_;
  int64_t partitions_;
  int64_t token_tiles_;
};

}  // namespace pagedattn::PAGEDATTN_ISA
