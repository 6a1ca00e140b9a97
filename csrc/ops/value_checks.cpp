#include "value_checks.h"

#include <algorithm>
#include <string>
#include <vector>

#include "../attention/visibility.h"
#include "checks.h"

namespace pagedattn::ops {
namespace {

std::string at(const char* name, int64_t i) { return name + ("[" + std::to_string(i) + "]"); }

// Blocks [first, end) of one sequence's row of block_tables.
void check_block_ids(const char* op, const int32_t* row, int32_t seq, int64_t first, int64_t end,
                     int64_t num_blocks) {
  for (int64_t i = first; i < end; ++i) {
    if (row[i] < 0 || row[i] >= num_blocks) {
      fail(op, "block_tables[", seq, ", ", i, "] must be in [0, num_blocks = ", num_blocks,
           "), got ", row[i]);
    }
  }
}

// A prefix sum of lengths: starts at 0, never falls, ends at or below `limit`.
void check_cumulative(const char* op, const char* name, const int32_t* cu, int32_t num_seqs,
                      int64_t limit, const char* limit_name) {
  if (cu[0] != 0) fail(op, name, "[0] must be 0, got ", cu[0]);
  for (int32_t s = 0; s < num_seqs; ++s) {
    if (cu[s + 1] < cu[s]) {
      fail(op, name, " must not fall, got ", cu[s], " then ", cu[s + 1], " at index ", s + 1);
    }
  }
  if (cu[num_seqs] > limit) {
    fail(op, at(name, num_seqs), " must be at most ", limit_name, " = ", limit, ", got ",
         cu[num_seqs]);
  }
}

int64_t blocks_for(int64_t num_tokens, int64_t block_size) {
  return (num_tokens + block_size - 1) / block_size;
}

}  // namespace

void check_values(const char* op, const AttentionParams& p) {
  const KvCacheView& cache = p.cache;
  if (p.cu_seqlens_q != nullptr) {
    check_cumulative(op, "cu_seqlens_q", p.cu_seqlens_q, p.num_seqs, p.num_tokens, "query.size(0)");
  }
  const int64_t capacity = int64_t{p.max_blocks_per_seq} * cache.block_size;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const int32_t seq_len = p.seq_lens[s];
    if (seq_len < 0 || seq_len > p.max_seq_len) {
      fail(op, at("seq_lens", s), " must be in [0, max_seq_len = ", p.max_seq_len, "], got ",
           seq_len);
    }
    if (seq_len > capacity) {
      fail(op, at("seq_lens", s), " must be at most block_tables.size(1) * block_size = ", capacity,
           ", got ", seq_len);
    }
    int32_t query_len = 1;
    if (p.cu_seqlens_q != nullptr) {
      query_len = p.cu_seqlens_q[s + 1] - p.cu_seqlens_q[s];
      if (query_len > p.max_query_len) {
        fail(op, "cu_seqlens_q gives sequence ", s, " ", query_len,
             " query tokens, more than max_query_len = ", p.max_query_len);
      }
      if (p.masks.tree_mask != nullptr && query_len > seq_len) {
        fail(op, "with tree_mask, sequence ", s, " must have query_len <= seq_len, got ", query_len,
             " > ", seq_len);
      }
      if (query_len == 0) continue;
    }
    const int32_t first_position = query_position(0, query_len, seq_len);
    const int32_t begin = visible_range(p.masks, first_position, seq_len).begin;
    check_block_ids(op, p.block_tables + s * p.block_table_stride, s, begin / cache.block_size,
                    blocks_for(seq_len, cache.block_size), cache.num_blocks);
  }
}

void check_values(const char* op, const GatherParams& p) {
  check_cumulative(op, "cu_seq_lens", p.cu_seq_lens, p.num_seqs, p.num_tokens, "num_tokens");
  if (p.cu_seq_lens[p.num_seqs] != p.num_tokens) {
    fail(op, "num_tokens must equal ", at("cu_seq_lens", p.num_seqs), " = ",
         p.cu_seq_lens[p.num_seqs], ", got ", p.num_tokens);
  }
  const int64_t capacity = int64_t{p.max_blocks_per_seq} * p.cache.block_size;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const int64_t seq_len = p.cu_seq_lens[s + 1] - p.cu_seq_lens[s];
    if (seq_len > capacity) {
      fail(op, "cu_seq_lens gives sequence ", s, " ", seq_len,
           " tokens, more than block_tables.size(1) * block_size = ", capacity);
    }
    check_block_ids(op, p.block_tables + s * p.block_table_stride, s, 0,
                    blocks_for(seq_len, p.cache.block_size), p.cache.num_blocks);
  }
}

void check_slots(const char* op, const ReshapeParams& p) {
  const int64_t num_slots = p.cache.num_blocks * p.cache.block_size;
  for (int64_t i = 0; i < p.num_tokens; ++i) {
    if (p.slot_mapping[i] >= num_slots) {
      fail(op, at("slot_mapping", i), " must be below num_blocks * block_size = ", num_slots,
           " (negative: skip), got ", p.slot_mapping[i]);
    }
  }
}

void check_block_mapping(const char* op, const int64_t* mapping, int64_t num_pairs,
                         int64_t num_src_blocks, int64_t num_dst_blocks, bool in_place) {
  std::vector<int64_t> sources(num_pairs), destinations(num_pairs);
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int64_t src = mapping[2 * i], dst = mapping[2 * i + 1];
    if (src < 0 || src >= num_src_blocks) {
      fail(op, "block_mapping[", i, ", 0] must be in [0, ", num_src_blocks, "), got ", src);
    }
    if (dst < 0 || dst >= num_dst_blocks) {
      fail(op, "block_mapping[", i, ", 1] must be in [0, ", num_dst_blocks, "), got ", dst);
    }
    sources[i] = src;
    destinations[i] = dst;
  }
  std::sort(destinations.begin(), destinations.end());
  const auto twice = std::adjacent_find(destinations.begin(), destinations.end());
  if (twice != destinations.end()) {
    fail(op, "block_mapping must have distinct destinations, got block ", *twice, " twice");
  }
  if (!in_place) return;
  for (const int64_t src : sources) {
    if (std::binary_search(destinations.begin(), destinations.end(), src)) {
      fail(op, "block_mapping must not have a block as both source and destination, got block ",
           src, "; split the copies into two calls");
    }
  }
}

}  // namespace pagedattn::ops
