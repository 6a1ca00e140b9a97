// reshape_and_cache and gather_cache: rows of one head of one token, copied as they are, quantised
// or dequantised.
#include <cstring>

#include "../../common/cpu/parallel.h"
#include "../../common/cpu/quantize.h"
#include "../../common/cpu/rows.h"
#include "kernels.h"

namespace pagedattn::PAGEDATTN_ISA {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int64_t kBytesPerTask = 32 << 10;

// One token's heads in a cache tensor.
struct Slot {
  char* data;
  int64_t head_stride;  // in bytes
  float* scale;         // of head 0, or null where the scale is 1
  int64_t scale_head_stride;
};

Slot slot_of(const CacheView& view, DType dtype, int64_t block, int64_t offset) {
  const int64_t size = element_size(dtype);
  const ScaleView& scale = view.scale;
  Slot slot{static_cast<char*>(view.data) +
                (block * view.block_stride + offset * view.token_stride) * size,
            view.head_stride * size, scale.kind == ScaleKind::kNone ? nullptr : scale.data,
            scale.kind == ScaleKind::kPerTensor ? 0 : scale.head_stride};
  if (scale.kind == ScaleKind::kPerTokenHead) {
    slot.scale += block * scale.block_stride + offset * scale.token_stride;
  }
  return slot;
}

char* token_address(const TokenView& view, DType dtype, int64_t token) {
  return static_cast<char*>(view.data) + token * view.token_stride * element_size(dtype);
}

// count rows of `bytes` each; one copy where they are contiguous on both sides.
void copy_rows(const char* src, int64_t src_stride, char* dst, int64_t dst_stride, int64_t count,
               int64_t bytes) {
  if (src_stride == bytes && dst_stride == bytes) {
    std::memcpy(dst, src, count * bytes);
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(dst + i * dst_stride, src + i * src_stride, bytes);
}

// The largest magnitude; NaN counts as nothing.
float max_magnitude(const float* row, int n) {
  float max = 0.0f;
  for (int i = 0; i < n; ++i) {
    const float magnitude = std::fabs(row[i]);
    max = magnitude > max ? magnitude : max;
  }
  return max;
}

template <typename Code>
void quantize_row(const float* row, int n, float scale, Code* out) {
  for (int i = 0; i < n; ++i) out[i] = Quantization<Code>::round(row[i] / scale);
}

template <typename Code>
void quantize_token(const ReshapeParams& params, const TokenView& view, const CacheView& cache,
                    int64_t token, const Slot& slot) {
  const int head_dim = params.cache.head_dim;
  for (int h = 0; h < params.cache.num_kv_heads; ++h) {
    float row[kMaxHeadDim + kWidth];
    with_compute_type(params.dtype, [&](auto type) {
      read_row(row_of<decltype(type)>(view, token, h), head_dim, row);
    });
    float* const scale = slot.scale ? slot.scale + h * slot.scale_head_stride : nullptr;
    if (cache.scale.kind == ScaleKind::kPerTokenHead) {
      *scale = max_magnitude(row, head_dim) / Quantization<Code>::kMax;
    }
    // A stored scale of 0 goes with codes 0 (or NaN): any other divisor gives them.
    const bool zero_row = cache.scale.kind == ScaleKind::kPerTokenHead && *scale == 0.0f;
    quantize_row(row, head_dim, scale == nullptr || zero_row ? 1.0f : *scale,
                 reinterpret_cast<Code*>(slot.data + h * slot.head_stride));
  }
}

void store_token(const ReshapeParams& params, const TokenView& view, const CacheView& cache,
                 int64_t token) {
  const int64_t slot_index = params.slot_mapping[token];
  const DType stored = params.cache.dtype;
  const Slot slot = slot_of(cache, stored, slot_index / params.cache.block_size,
                            slot_index % params.cache.block_size);
  switch (stored) {
    case DType::kFloat8E4M3:
      return quantize_token<Float8E4M3>(params, view, cache, token, slot);
    case DType::kFloat8E5M2:
      return quantize_token<Float8E5M2>(params, view, cache, token, slot);
    case DType::kInt8:
      return quantize_token<int8_t>(params, view, cache, token, slot);
    default:
      return copy_rows(token_address(view, stored, token), view.head_stride * element_size(stored),
                       slot.data, slot.head_stride, params.cache.num_kv_heads,
                       params.cache.head_dim * element_size(stored));
  }
}

void load_token(const GatherParams& params, const CacheView& cache, const TokenView& view,
                int64_t block, int64_t offset, int64_t token) {
  const DType stored = params.cache.dtype;
  const int heads = params.cache.num_kv_heads;
  const int head_dim = params.cache.head_dim;
  const Slot slot = slot_of(cache, stored, block, offset);
  char* const out = token_address(view, params.dtype, token);
  const int64_t out_stride = view.head_stride * element_size(params.dtype);
  if (stored == params.dtype) {
    copy_rows(slot.data, slot.head_stride, out, out_stride, heads, head_dim * element_size(stored));
    return;
  }
  for (int h = 0; h < heads; ++h) {
    const float scale = slot.scale ? slot.scale[h * slot.scale_head_stride] : 1.0f;
    float row[kMaxHeadDim + kWidth];
    with_storage_type(stored, [&](auto type) {
      read_row(reinterpret_cast<const decltype(type)*>(slot.data + h * slot.head_stride), head_dim,
               row);
    });
    with_compute_type(params.dtype, [&](auto type) {
      write_row(row, scale, head_dim, reinterpret_cast<decltype(type)*>(out + h * out_stride));
    });
  }
}

// How many tokens make a task worth a thread.
int64_t tokens_per_task(const KvCacheView& cache) {
  const int64_t bytes =
      int64_t{2} * cache.num_kv_heads * cache.head_dim * element_size(cache.dtype);
  return bytes >= kBytesPerTask ? 1 : kBytesPerTask / (bytes > 0 ? bytes : 1);
}

// The sequence that owns row `token` of a gather: the last that begins at or before it.
int sequence_of(const GatherParams& params, int64_t token) {
  int low = 0;
  int high = params.num_seqs;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (params.cu_seq_lens[middle] <= token ? low : high) = middle;
  }
  return low;
}

}  // namespace

void reshape_and_cache(const ReshapeParams& params, Stream) {
  parallel_for(0, params.num_tokens, tokens_per_task(params.cache),
               [&](int64_t begin, int64_t end) {
                 for (int64_t token = begin; token < end; ++token) {
                   if (params.slot_mapping[token] < 0) continue;
                   store_token(params, params.key, params.cache.key, token);
                   store_token(params, params.value, params.cache.value, token);
                 }
               });
}

void gather_cache(const GatherParams& params, Stream) {
  if (params.num_seqs == 0) return;
  const int64_t block_size = params.cache.block_size;
  parallel_for(
      0, params.num_tokens, tokens_per_task(params.cache), [&](int64_t begin, int64_t end) {
        int seq = sequence_of(params, begin);
        for (int64_t token = begin; token < end; ++token) {
          while (seq + 1 < params.num_seqs && params.cu_seq_lens[seq + 1] <= token) ++seq;
          const int64_t position = token - params.cu_seq_lens[seq];
          const int64_t block =
              params.block_tables[seq * params.block_table_stride + position / block_size];
          load_token(params, params.cache.key, params.key, block, position % block_size, token);
          load_token(params, params.cache.value, params.value, block, position % block_size, token);
        }
      });
}

}  // namespace pagedattn::PAGEDATTN_ISA
