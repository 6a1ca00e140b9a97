// reshape_and_cache and gather_cache: rows of one head of one token, copied as they are, quantised
// or dequantised.
#include <algorithm>

#include "../../common/cpu/parallel.h"
#include "../../common/cpu/quantize.h"
#include "../../common/cpu/rows.h"
#include "copy_row.h"
#include "kernels.h"

namespace pagedattn::PAGEDATTN_ISA {
namespace {

constexpr int kMaxHeadDim = 256;
// What is worth another thread, in bytes of the cache: its waking takes as long.
constexpr int64_t kBytesPerConversionTask = 16 << 10;

// A run of tokens whose slots in the cache, or rows outside, follow each other. Strides in bytes.
struct Rows {
  char* data;
  int64_t token_stride;
  int64_t head_stride;
};

// A token's scales in a cache.
struct Scales {
  float* data;  // of head 0, or null where the scale is 1
  int64_t head_stride;
};

Rows rows_of(const CacheView& view, DType dtype, int64_t block, int64_t offset) {
  const int64_t size = element_size(dtype);
  return {static_cast<char*>(view.data) +
              (block * view.block_stride + offset * view.token_stride) * size,
          view.token_stride * size, view.head_stride * size};
}

Rows rows_of(const TokenView& view, DType dtype, int64_t token) {
  const int64_t size = element_size(dtype);
  return {static_cast<char*>(view.data) + token * view.token_stride * size,
          view.token_stride * size, view.head_stride * size};
}

Scales scales_of(const ScaleView& scale, int64_t block, int64_t offset) {
  switch (scale.kind) {
    case ScaleKind::kNone:
      return {nullptr, 0};
    case ScaleKind::kPerTensor:
      return {scale.data, 0};
    case ScaleKind::kPerHead:
      return {scale.data, scale.head_stride};
    case ScaleKind::kPerTokenHead:
      break;
  }
  return {scale.data + block * scale.block_stride + offset * scale.token_stride, scale.head_stride};
}

// Rows of `bytes` each, in the order in which the sources lie in memory.
void copy_rows(Rows src, Rows dst, int64_t tokens, int64_t heads, int64_t bytes, bool stream) {
  if (src.head_stride == bytes && dst.head_stride == bytes) {
    bytes *= heads;
    heads = 1;
  }
  if (heads == 1 && src.token_stride == bytes && dst.token_stride == bytes) {
    bytes *= tokens;
    tokens = 1;
  }
  const auto copy = [&](int64_t t, int64_t h) {
    copy_row(dst.data + t * dst.token_stride + h * dst.head_stride,
             src.data + t * src.token_stride + h * src.head_stride, bytes, stream);
  };
  if (src.token_stride > src.head_stride) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) copy(t, h);
    }
  } else {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < tokens; ++t) copy(t, h);
    }
  }
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

// Tokens [token, token + count) go to, or come from, the slots from `offset` on of one block.
struct Run {
  int64_t token;
  int64_t count;
  int64_t block;
  int64_t offset;
};

template <typename Code>
void quantize(const ReshapeParams& params, const TokenView& tokens, const CacheView& cache,
              const Run& run) {
  const bool per_token = cache.scale.kind == ScaleKind::kPerTokenHead;
  const int head_dim = params.cache.head_dim;
  const Rows codes = rows_of(cache, params.cache.dtype, run.block, run.offset);
  for (int64_t t = 0; t < run.count; ++t) {
    const Scales scales = scales_of(cache.scale, run.block, run.offset + t);
    for (int h = 0; h < params.cache.num_kv_heads; ++h) {
      float row[kMaxHeadDim + kWidth];
      with_compute_type(params.dtype, [&](auto type) {
        read_row(row_of<decltype(type)>(tokens, run.token + t, h), head_dim, row);
      });
      float* const scale = scales.data ? scales.data + h * scales.head_stride : nullptr;
      if (per_token) *scale = max_magnitude(row, head_dim) / Quantization<Code>::kMax;
      // A stored scale of 0 goes with codes 0 (or NaN): any other divisor gives them.
      const bool zero_row = per_token && *scale == 0.0f;
      char* const out = codes.data + t * codes.token_stride + h * codes.head_stride;
      quantize_row(row, head_dim, scale == nullptr || zero_row ? 1.0f : *scale,
                   reinterpret_cast<Code*>(out));
    }
  }
}

void store_run(const ReshapeParams& params, const TokenView& tokens, const CacheView& cache,
               const Run& run, bool stream) {
  const DType stored = params.cache.dtype;
  switch (stored) {
    case DType::kFloat8E4M3:
      return quantize<Float8E4M3>(params, tokens, cache, run);
    case DType::kFloat8E5M2:
      return quantize<Float8E5M2>(params, tokens, cache, run);
    case DType::kInt8:
      return quantize<int8_t>(params, tokens, cache, run);
    default:
      return copy_rows(rows_of(tokens, stored, run.token),
                       rows_of(cache, stored, run.block, run.offset), run.count,
                       params.cache.num_kv_heads, params.cache.head_dim * element_size(stored),
                       stream);
  }
}

void dequantize(const GatherParams& params, const CacheView& cache, const TokenView& tokens,
                const Run& run) {
  const DType stored = params.cache.dtype;
  const int head_dim = params.cache.head_dim;
  const Rows codes = rows_of(cache, stored, run.block, run.offset);
  for (int64_t t = 0; t < run.count; ++t) {
    const Scales scales = scales_of(cache.scale, run.block, run.offset + t);
    for (int h = 0; h < params.cache.num_kv_heads; ++h) {
      const float scale = scales.data ? scales.data[h * scales.head_stride] : 1.0f;
      const char* const code = codes.data + t * codes.token_stride + h * codes.head_stride;
      float row[kMaxHeadDim + kWidth];
      with_storage_type(stored, [&](auto type) {
        read_row(reinterpret_cast<const decltype(type)*>(code), head_dim, row);
      });
      with_compute_type(params.dtype, [&](auto type) {
        write_row(row, scale, head_dim, row_of<decltype(type)>(tokens, run.token + t, h));
      });
    }
  }
}

void load_run(const GatherParams& params, const CacheView& cache, const TokenView& tokens,
              const Run& run, bool stream) {
  const DType stored = params.cache.dtype;
  if (stored != params.dtype) return dequantize(params, cache, tokens, run);
  copy_rows(rows_of(cache, stored, run.block, run.offset), rows_of(tokens, stored, run.token),
            run.count, params.cache.num_kv_heads, params.cache.head_dim * element_size(stored),
            stream);
}

// f(run) for tokens [begin, end), but for those without a slot.
template <typename F>
void for_each_run(const ReshapeParams& params, int64_t begin, int64_t end, const F& f) {
  const int64_t block_size = params.cache.block_size;
  for (Run run{begin, 1, 0, 0}; run.token < end; run.token += run.count, run.count = 1) {
    const int64_t* const slots = params.slot_mapping + run.token;
    if (slots[0] < 0) continue;
    run.block = slots[0] / block_size;
    run.offset = slots[0] % block_size;
    const int64_t most = std::min(end - run.token, block_size - run.offset);
    while (run.count < most && slots[run.count] == slots[0] + run.count) ++run.count;
    f(run);
  }
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

template <typename F>
void for_each_run(const GatherParams& params, int64_t begin, int64_t end, const F& f) {
  const int64_t block_size = params.cache.block_size;
  const int32_t* const cu = params.cu_seq_lens;
  int seq = sequence_of(params, begin);
  for (Run run{begin, 0, 0, 0}; run.token < end; run.token += run.count) {
    while (seq + 1 < params.num_seqs && cu[seq + 1] <= run.token) ++seq;
    const int64_t position = run.token - cu[seq];
    run.block = params.block_tables[seq * params.block_table_stride + position / block_size];
    run.offset = position % block_size;
    run.count =
        std::min({end, int64_t{cu[seq + 1]}, run.token + block_size - run.offset}) - run.token;
    f(run);
  }
}

// body(begin, end, stream) on ranges of tokens that are worth a thread. `dtype` is that of the rows
// outside the cache.
template <typename F>
void for_token_ranges(const KvCacheView& cache, DType dtype, int64_t num_tokens, const F& body) {
  const int64_t elements = int64_t{2} * cache.num_kv_heads * cache.head_dim;
  const int64_t bytes = elements * element_size(cache.dtype);
  if (dtype == cache.dtype) return parallel_copies(num_tokens, bytes, body);
  parallel_for(0, num_tokens, std::max<int64_t>(1, kBytesPerConversionTask / bytes),
               [&](int64_t begin, int64_t end) { body(begin, end, false); });
}

}  // namespace

// All keys of a range before its values: two streams through memory are faster than four.
void reshape_and_cache(const ReshapeParams& p, Stream) {
  for_token_ranges(p.cache, p.dtype, p.num_tokens, [&](int64_t begin, int64_t end, bool stream) {
    for_each_run(p, begin, end,
                 [&](const Run& run) { store_run(p, p.key, p.cache.key, run, stream); });
    for_each_run(p, begin, end,
                 [&](const Run& run) { store_run(p, p.value, p.cache.value, run, stream); });
  });
}

void gather_cache(const GatherParams& p, Stream) {
  if (p.num_seqs == 0) return;
  for_token_ranges(p.cache, p.dtype, p.num_tokens, [&](int64_t begin, int64_t end, bool stream) {
    for_each_run(p, begin, end,
                 [&](const Run& run) { load_run(p, p.cache.key, p.key, run, stream); });
    for_each_run(p, begin, end,
                 [&](const Run& run) { load_run(p, p.cache.value, p.value, run, stream); });
  });
}

}  // namespace pagedattn::PAGEDATTN_ISA
