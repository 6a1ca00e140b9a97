// Which keys a query row sees. The one statement of the masks' geometry, for kernels and argument
// checks alike.
#pragma once

#include <cstdint>

#include "../common/host_device.h"
#include "params.h"

namespace pagedattn {

// Half-open range of KV positions.
struct KvRange {
  int32_t begin;
  int32_t end;
};

// Position of query row `row` (0-based within its sequence): the last row sits at seq_len - 1.
PAGEDATTN_HOST_DEVICE int32_t query_position(int32_t row, int32_t query_len, int32_t seq_len) {
  return seq_len - query_len + row;
}

// The keys that a row at q_pos may see by causality and window. With a tree mask, the columns of
// the draft (kv_pos >= seq_len - query_len) are to be asked of the mask one by one.
PAGEDATTN_HOST_DEVICE KvRange visible_range(const MaskParams& masks, int32_t q_pos,
                                            int32_t seq_len) {
  const bool sees_ahead = !masks.causal || masks.tree_mask != nullptr;
  int32_t end = sees_ahead ? seq_len : q_pos + 1;
  if (end < 0) end = 0;
  const bool sees_all_before = masks.window_left < 0 || q_pos < masks.window_left;
  int32_t begin = sees_all_before ? 0 : q_pos - masks.window_left;
  if (begin > end) begin = end;
  return {begin, end};
}

}  // namespace pagedattn
