// Exact combination of attentions over disjoint keys, each given as a normalised output and an lse:
// V2's partitions of one row, and the two sides of merge_attention_states.
#include <cmath>

#include "../../common/cpu/parallel.h"
#include "../../common/cpu/rows.h"
#include "kernels.h"
#include "work.h"

namespace pagedattn::PAGEDATTN_ISA {
namespace {

constexpr int64_t kRowsPerTask = 16;

// The partitions in which a decode row sees a key.
KvRange visible_partitions(const AttentionParams& params, int seq) {
  const int seq_len = sequence_length(params, seq);
  const KvRange keys = visible_range(params.masks, query_position(0, 1, seq_len), seq_len);
  if (keys.begin == keys.end) return {0, 0};
  const int size = params.partial.partition_size;
  return {keys.begin / size, (keys.end - 1) / size + 1};
}

template <typename T>
void reduce_row(const AttentionParams& params, int64_t token, int head) {
  const PartialParams& partial = params.partial;
  const int head_dim = params.cache.head_dim;
  const KvRange partitions = visible_partitions(params, static_cast<int>(token));
  const int64_t first = (token * params.num_q_heads + head) * partial.num_partitions;
  const float* const lse = partial.lse + first;

  const float sink = params.masks.sinks ? params.masks.sinks[head] : -kInfinity;
  float max = sink;
  for (int i = partitions.begin; i < partitions.end; ++i) max = lse[i] < max ? max : lse[i];
  if (max == -kInfinity) max = 0.0f;  // every weight is 0, not exp(-inf + inf) = NaN
  float sum = std::exp(sink - max);
  for (int i = partitions.begin; i < partitions.end; ++i) sum += std::exp(lse[i] - max);
  const float normalizer = sum == 0.0f ? 0.0f : 1.0f / sum;

  float total[kMaxHeadDim + kWidth] = {};
  for (int i = partitions.begin; i < partitions.end; ++i) {
    const Vec weight(std::exp(lse[i] - max) * normalizer);
    for_each_vector(partial.out + (first + i) * head_dim, head_dim, [&](Vec part, int d, int) {
      store(total + d, at::vec::fmadd(weight, part, load(total + d)));
    });
  }
  write_row(total, 1.0f, head_dim, row_of<T>(params.out, token, head));
  if (params.lse) {
    params.lse[token * params.lse_token_stride + head * params.lse_head_stride] =
        sum == 0.0f ? -kInfinity : max + std::log(sum);
  }
}

template <typename T>
void merge_row(const MergeParams& params, int64_t token, int head) {
  const auto element = [&](const float* data, const int64_t strides[2]) {
    return data[token * strides[0] + head * strides[1]];
  };
  const float prefix_lse = element(params.prefix_lse, params.prefix_lse_strides);
  const float suffix_lse = element(params.suffix_lse, params.suffix_lse_strides);
  const float max = prefix_lse < suffix_lse ? suffix_lse : prefix_lse;
  const bool use_prefix = prefix_lse != -kInfinity;
  const bool use_suffix = suffix_lse != -kInfinity;
  const float prefix_weight = use_prefix ? std::exp(prefix_lse - max) : 0.0f;
  const float suffix_weight = use_suffix ? std::exp(suffix_lse - max) : 0.0f;
  const float sum = prefix_weight + suffix_weight;

  const T* const prefix = row_of<T>(params.prefix_out, token, head);
  const T* const suffix = row_of<T>(params.suffix_out, token, head);
  T* const out = row_of<T>(params.out, token, head);
  for (int d = 0; d < params.head_dim; d += kWidth) {
    const int count = params.head_dim - d < kWidth ? params.head_dim - d : kWidth;
    const auto read = [&](const T* p) {
      return count == kWidth ? load(p + d) : load_tail(p + d, count);
    };
    Vec value(0.0f);
    if (use_prefix) value = Vec(prefix_weight / sum) * read(prefix);
    if (use_suffix) value = at::vec::fmadd(Vec(suffix_weight / sum), read(suffix), value);
    store(out + d, value, count);
  }
  if (params.out_lse) {
    params.out_lse[token * params.out_lse_strides[0] + head * params.out_lse_strides[1]] =
        sum == 0.0f ? -kInfinity : max + std::log(sum);
  }
}

}  // namespace

void reduce_partitions(const AttentionParams& params, Stream) {
  const int heads = params.num_q_heads;
  with_compute_type(params.dtype, [&](auto type) {
    parallel_for(0, params.num_seqs * int64_t{heads}, kRowsPerTask,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     reduce_row<decltype(type)>(params, i / heads, static_cast<int>(i % heads));
                   }
                 });
  });
}

void merge_states(const MergeParams& params, Stream) {
  const int heads = params.num_heads;
  with_compute_type(params.dtype, [&](auto type) {
    parallel_for(0, params.num_tokens * heads, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        merge_row<decltype(type)>(params, i / heads, static_cast<int>(i % heads));
      }
    });
  });
}

}  // namespace pagedattn::PAGEDATTN_ISA
