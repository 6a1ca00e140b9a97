// The query rows of a varlen tile. A sequence's (query token, head of the group) pairs are packed
// one after the other, so that all heads of a group share the tile's K and V:
//
//   row = token * group_size + head of the group
#pragma once

#include <cstdint>

#include "../../common/cuda/fast_divide.h"
#include "../params.h"
#include "../visibility.h"
#include "sequence.cuh"

namespace pagedattn {

// Which part of the batch one CTA works on.
struct VarlenWork {
  int seq;
  int kv_head;
  int32_t first_row;    // within the sequence
  int32_t num_rows;     // of the sequence, all tiles together
  int32_t first_token;  // of the sequence, within the batch
  int32_t query_len;
  int32_t seq_len;
};

template <int kRows>
__device__ __forceinline__ VarlenWork varlen_work(const AttentionParams& params, int num_tiles,
                                                  int group_size) {
  int index = blockIdx.x;
  VarlenWork work;
  work.kv_head = index % params.cache.num_kv_heads;
  index /= params.cache.num_kv_heads;
  work.first_row = index % num_tiles * kRows;
  work.seq = index / num_tiles;
  work.first_token = params.cu_seqlens_q[work.seq];
  work.query_len = params.cu_seqlens_q[work.seq + 1] - work.first_token;
  work.num_rows = work.query_len * group_size;
  work.seq_len = clamped_seq_len(params, work.seq);
  return work;
}

struct QueryRow {
  int32_t token;  // within the sequence
  int head;       // of all query heads
  bool exists;
};

__device__ __forceinline__ QueryRow query_row(const VarlenWork& work, int32_t row,
                                              FastDivide group_size) {
  const int32_t packed = work.first_row + row;
  const int32_t token = group_size.quotient(packed);
  const int head = work.kv_head * group_size.divisor + packed - token * group_size.divisor;
  return {token, head, packed < work.num_rows};
}

// Which keys a row sees, tree mask included.
struct RowMask {
  KvRange range{0, 0};
  int32_t q_pos = 0;
  int32_t draft_begin = 0;
  const bool* draft = nullptr;

  RowMask() = default;

  __device__ __forceinline__ RowMask(const AttentionParams& params, const VarlenWork& work,
                                     int32_t token)
      : q_pos(query_position(token, work.query_len, work.seq_len)),
        draft_begin(work.seq_len - work.query_len) {
    range = visible_range(params.masks, q_pos, work.seq_len);
    if (params.masks.tree_mask != nullptr) {
      draft = params.masks.tree_mask +
              (int64_t{work.first_token} + token) * params.masks.tree_mask_token_stride;
    }
  }

  __device__ __forceinline__ bool sees(int32_t kv_pos, int64_t draft_stride) const {
    bool seen = kv_pos >= range.begin && kv_pos < range.end;
    if (draft != nullptr && seen && kv_pos >= draft_begin) {
      seen = draft[(kv_pos - draft_begin) * draft_stride];
    }
    return seen;
  }
};

// What the rows of a tile see together.
struct TileRange {
  KvRange any;  // keys outside are seen by no row
  KvRange all;  // keys inside are seen by every row
};

// Positions, and with them both ends of what is visible, grow with the row.
template <int kRows>
__device__ __forceinline__ TileRange tile_range(const AttentionParams& params,
                                                const VarlenWork& work, FastDivide group_size) {
  const int32_t last_row = min(work.first_row + kRows, work.num_rows) - 1;
  const RowMask first(params, work, group_size.quotient(work.first_row));
  const RowMask last(params, work, group_size.quotient(last_row));
  const bool has_tree = params.masks.tree_mask != nullptr;
  return {{first.range.begin, last.range.end},
          {last.range.begin, has_tree ? first.draft_begin : first.range.end}};
}

}  // namespace pagedattn
