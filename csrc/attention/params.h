// Attention over a paged KV cache, as plain structs: what every kernel is given, and all it is
// given. Strides are in elements. A struct owns nothing.
#pragma once

#include <cstdint>

#include "../cache/params.h"
#include "../common/dtype.h"
#include "../common/host_device.h"

namespace pagedattn {

struct MaskParams {
  bool causal = true;
  int32_t window_left = -1;  // keep kv_pos >= q_pos - window_left; -1: no window
  float softcap = 0.0f;      // logit -> softcap * tanh(logit / softcap); 0: off
  // [num_q_heads]: adds slope * (kv_pos - q_pos) after the softcap.
  const float* alibi_slopes = nullptr;
  // [num_q_heads]: one more logit in the denominator, without a value.
  const float* sinks = nullptr;
  // bool [num_tokens, max_query_len], row = query token, column = draft token of the same sequence:
  // replaces causality among the last query_len positions.
  const bool* tree_mask = nullptr;
  int64_t tree_mask_token_stride = 0;
  int64_t tree_mask_column_stride = 0;
};

// V2's workspace: what each partition of the KV range contributes, normalised, sinks
// excluded. Varlen, which has partitions of its own, uses out and lse as a row of partitions for
// each head of each token that it splits, one after the other.
struct PartialParams {
  int32_t partition_size = 0;  // tokens, counted from token 0; a multiple of 64. 0: V1, one pass
  int32_t num_partitions = 0;  // of the workspace, which may be larger than needed
  float* out = nullptr;        // contiguous [num_tokens, num_q_heads, num_partitions, head_dim]
  float* lse = nullptr;        // contiguous [num_tokens, num_q_heads, num_partitions]
};

struct AttentionParams {
  TokenView query;  // [num_tokens, num_q_heads, head_dim]
  TokenView out;
  DType dtype = DType::kFloat32;  // of query and out
  float* lse = nullptr;           // [num_tokens, num_q_heads] or null
  int64_t lse_token_stride = 0;
  int64_t lse_head_stride = 0;

  KvCacheView cache;
  const int32_t* block_tables = nullptr;  // [num_seqs, max_blocks_per_seq]
  int64_t block_table_stride = 0;
  int32_t max_blocks_per_seq = 0;
  const int32_t* seq_lens = nullptr;  // [num_seqs]
  // [num_seqs + 1]; null: decode, where token s is the query of sequence s.
  const int32_t* cu_seqlens_q = nullptr;

  int32_t num_seqs = 0;
  int32_t num_q_heads = 0;
  int64_t num_tokens = 0;  // rows of query; those at or past cu_seqlens_q[num_seqs] are not touched
  int64_t max_query_len = 1;
  int64_t max_seq_len = 0;  // host upper bound; a longer seq_lens entry is clamped to it
  float scale = 1.0f;

  MaskParams masks;
  PartialParams partial;
};

// How many partitions of `size` tokens cover num_tokens: at least one; one where nothing is cut.
constexpr int64_t count_partitions(int64_t num_tokens, int64_t size) {
  return size == 0 || num_tokens <= size ? 1 : (num_tokens + size - 1) / size;
}

// No sequence is longer, whatever seq_lens holds: the host's bound, and the columns of the block
// table.
PAGEDATTN_HOST_DEVICE constexpr int64_t longest_sequence(const AttentionParams& params) {
  const int64_t slots = int64_t{params.max_blocks_per_seq} * params.cache.block_size;
  return slots < params.max_seq_len ? slots : params.max_seq_len;
}

// merge_attention_states: the exact combination of two partial attentions over disjoint keys. An
// lse of -inf marks an empty side, whose out is not read. out may alias either input.
struct MergeParams {
  TokenView out;
  TokenView prefix_out;
  TokenView suffix_out;
  DType dtype = DType::kFloat32;  // of all three
  float* out_lse = nullptr;       // or null
  const float* prefix_lse = nullptr;
  const float* suffix_lse = nullptr;
  int64_t out_lse_strides[2] = {0, 0};  // token, head
  int64_t prefix_lse_strides[2] = {0, 0};
  int64_t suffix_lse_strides[2] = {0, 0};
  int64_t num_tokens = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
};

}  // namespace pagedattn
