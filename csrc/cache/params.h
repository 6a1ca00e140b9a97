// The paged KV cache and the operations that move data in and out of it, as plain structs.
// Strides are in elements unless a name ends in _bytes. A struct owns nothing.
#pragma once

#include <cstdint>

#include "../common/dtype.h"

namespace pagedattn {

// How the scales of a quantised cache are indexed.
enum class ScaleKind : uint8_t {
  kNone,          // the scale is 1
  kPerTensor,     // []
  kPerHead,       // [num_kv_heads]
  kPerTokenHead,  // [num_blocks, block_size, num_kv_heads]
};

struct ScaleView {
  float* data = nullptr;
  ScaleKind kind = ScaleKind::kNone;
  int64_t block_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// One of the two halves of a cache, logically [num_blocks, block_size, num_kv_heads, head_dim] with
// a contiguous last dimension.
struct CacheView {
  void* data = nullptr;
  int64_t block_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  ScaleView scale;
};

struct KvCacheView {
  CacheView key;
  CacheView value;
  DType dtype = DType::kFloat32;
  int64_t num_blocks = 0;
  int32_t block_size = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
};

// A [num_tokens, num_heads, head_dim] tensor with a contiguous last dimension.
struct TokenView {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// reshape_and_cache: token i goes to slot slot_mapping[i] = block * block_size + offset; negative
// slots are skipped. Quantises when cache.dtype is an 8-bit type.
struct ReshapeParams {
  TokenView key;
  TokenView value;
  DType dtype = DType::kFloat32;  // of key and value
  KvCacheView cache;
  const int64_t* slot_mapping = nullptr;
  int64_t num_tokens = 0;
};

// gather_cache: the inverse; token cu_seq_lens[s] + i of the output is token i of sequence s.
struct GatherParams {
  KvCacheView cache;
  const int32_t* block_tables = nullptr;
  int64_t block_table_stride = 0;
  int32_t max_blocks_per_seq = 0;
  const int32_t* cu_seq_lens = nullptr;
  int32_t num_seqs = 0;
  int64_t num_tokens = 0;
  TokenView key;
  TokenView value;
  DType dtype = DType::kFloat32;  // of the output; equal to cache.dtype: codes are copied unscaled
};

// The bytes of one block of one cache tensor: outer_count x inner_count runs of run_bytes. A block
// that is dense in memory, whatever its order of dimensions, is a single run.
struct BlockLayout {
  int64_t block_stride_bytes = 0;
  int64_t outer_count = 1;
  int64_t outer_stride_bytes = 0;
  int64_t inner_count = 1;
  int64_t inner_stride_bytes = 0;
  int64_t run_bytes = 0;
};

// copy_blocks: within every cache, block mapping[2i] is copied over block mapping[2i + 1].
// Destinations are distinct and no block is both source and destination.
struct CopyBlocksParams {
  void* const* caches = nullptr;  // on the host: num_caches base addresses
  int64_t num_caches = 0;
  BlockLayout layout;                // shared by all caches of the call
  const int64_t* mapping = nullptr;  // on the caches' device
  int64_t num_pairs = 0;
};

// swap_blocks: block mapping[2i] of src[c] is copied over block mapping[2i + 1] of dst[c], for
// every c. src and dst blocks have the same runs; only their strides differ.
struct SwapBlocksParams {
  const void* const* src = nullptr;  // on the host
  void* const* dst = nullptr;        // on the host
  int64_t num_caches = 0;
  BlockLayout src_layout;
  BlockLayout dst_layout;
  const int64_t* mapping = nullptr;  // on the host
  int64_t num_pairs = 0;
};

}  // namespace pagedattn
