// Decode attention on plain SIMT cores: one query token per sequence, V1 and V2's partitions alike.
//
// A CTA serves up to kHeads query heads of one kv head. Each of its teams of lanes walks tokens of
// its own with its own softmax state per head, K and V going straight from memory to registers
// as words of the storage type's width:
//
//   team 0   tokens 0..3   16..19 ...      lane i of a team holds elements
//   team 1   tokens 4..7   20..23 ...      [i * kVec, (i + 1) * kVec) of the row,
//   ...                                    of q, and of the accumulator
//
// At the end the teams' states meet in shared memory.
#pragma once

#include <cuda_runtime.h>

#include "../../cache/cuda/paged_rows.cuh"
#include "../../common/cuda/convert.cuh"
#include "../../common/cuda/online_softmax.cuh"
#include "../../common/cuda/shared_memory.cuh"
#include "../../common/cuda/vector.cuh"
#include "../../common/cuda/warp_reduce.cuh"
#include "../params.h"
#include "logits.cuh"
#include "sequence.cuh"
#include "tiles.h"

namespace pagedattn {

// What one CTA of the grid does: a chunk of the query heads of a group, over one partition.
struct DecodeWork {
  int seq;
  int kv_head;
  int partition;
  int first_head;
  int num_heads;
  int32_t q_pos;
  KvRange range;  // visible keys of the partition
};

// Chunks of one group are neighbours, so that all but the first find K and V in L2.
template <int kHeads>
__device__ __forceinline__ DecodeWork decode_work(const AttentionParams& params,
                                                  int num_partitions) {
  const int group_size = params.num_q_heads / params.cache.num_kv_heads;
  const int num_chunks = (group_size + kHeads - 1) / kHeads;
  int index = blockIdx.x;
  DecodeWork work;
  const int chunk = index % num_chunks;
  index /= num_chunks;
  work.partition = index % num_partitions;
  index /= num_partitions;
  work.kv_head = index % params.cache.num_kv_heads;
  work.seq = index / params.cache.num_kv_heads;
  work.first_head = work.kv_head * group_size + chunk * kHeads;
  work.num_heads = min(kHeads, group_size - chunk * kHeads);
  work.q_pos = clamped_seq_len(params, work.seq) - 1;
  work.range = partition_range(params, decode_range(params, work.seq), work.partition);
  return work;
}

// First element of vector i of this lane's part of a row.
template <typename Tile>
__device__ __forceinline__ int lane_dim(int i) {
  const int lane = threadIdx.x % Tile::kTeamLanes;
  return (i * Tile::kTeamLanes + lane) * Tile::kVec;
}

template <typename Tile, typename Word>
__device__ __forceinline__ void load_row(Vec<Word, Tile::kVec> (&to)[Tile::kVecsPerLane],
                                         const Word* row, int head_dim) {
#pragma unroll
  for (int i = 0; i < Tile::kVecsPerLane; ++i) {
    const int dim = lane_dim<Tile>(i);
    to[i] = dim < head_dim ? load_vec<Tile::kVec>(row + dim) : zero_vec<Word, Tile::kVec>();
  }
}

// One lane's part of a row of each head, in fp32.
template <typename Tile>
using HeadVectors = float[Tile::kHeads][Tile::kVecsPerLane * Tile::kVec];

template <typename Tile>
__device__ __forceinline__ void load_query(HeadVectors<Tile>& query, const AttentionParams& params,
                                           const DecodeWork& work) {
#pragma unroll
  for (int h = 0; h < Tile::kHeads; ++h) {
    const int64_t row =
        work.seq * params.query.token_stride + (work.first_head + h) * params.query.head_stride;
#pragma unroll
    for (int i = 0; i < Tile::kVecsPerLane * Tile::kVec; ++i) {
      const int dim = lane_dim<Tile>(i / Tile::kVec) + i % Tile::kVec;
      const bool exists = h < work.num_heads && dim < params.cache.head_dim;
      query[h][i] = exists ? load_float(params.query.data, row + dim, params.dtype) : 0.0f;
    }
  }
}

// The tokens that a team has in flight, as they come from memory.
template <typename Tile, typename Word>
struct TeamTokens {
  Vec<Word, Tile::kVec> keys[Tile::kTokens][Tile::kVecsPerLane];
  Vec<Word, Tile::kVec> values[Tile::kTokens][Tile::kVecsPerLane];
  float key_scales[Tile::kTokens];
  float value_scales[Tile::kTokens];
};

// One sequence and kv head of the cache.
template <typename Word>
struct DecodeSource {
  BlockTable table;
  HeadRows<const Word> keys;
  HeadRows<const Word> values;
  HeadScale key_scale;
  HeadScale value_scale;

  __device__ __forceinline__ DecodeSource(const AttentionParams& params, const DecodeWork& work,
                                          FastDivide block_size)
      : table{params.block_tables + work.seq * params.block_table_stride, block_size},
        keys(params.cache.key, work.kv_head),
        values(params.cache.value, work.kv_head),
        key_scale(params.cache.key.scale, work.kv_head),
        value_scale(params.cache.value.scale, work.kv_head) {}
};

// Tokens from `end` on are neither looked up nor read: their place is taken by zeros.
template <typename Tile, typename Word>
__device__ __forceinline__ void load_tokens(TeamTokens<Tile, Word>& tokens,
                                            const DecodeSource<Word>& source, int32_t first,
                                            int32_t end, int head_dim) {
#pragma unroll
  for (int t = 0; t < Tile::kTokens; ++t) {
    const bool seen = first + t < end;
    const Slot slot = seen ? source.table.slot(first + t) : Slot{0, 0};
    load_row<Tile>(tokens.keys[t], source.keys.row(slot), seen ? head_dim : 0);
    load_row<Tile>(tokens.values[t], source.values.row(slot), seen ? head_dim : 0);
    tokens.key_scales[t] = tokens.value_scales[t] = 1.0f;
    if constexpr (sizeof(Word) == 1) {
      if (seen) {
        tokens.key_scales[t] = source.key_scale.at(slot);
        tokens.value_scales[t] = source.value_scale.at(slot);
      }
    }
  }
}

template <typename Tile>
using TokenHeadValues = float[Tile::kTokens][Tile::kHeads];

// Products over this lane's part of the rows.
template <typename Tile, typename Word>
__device__ __forceinline__ void multiply_keys(TokenHeadValues<Tile>& dots,
                                              const HeadVectors<Tile>& query,
                                              const TeamTokens<Tile, Word>& tokens, DType dtype) {
#pragma unroll
  for (int t = 0; t < Tile::kTokens; ++t) {
#pragma unroll
    for (int i = 0; i < Tile::kVecsPerLane; ++i) {
      float key[Tile::kVec];
      widen(key, tokens.keys[t][i], dtype);
#pragma unroll
      for (int j = 0; j < Tile::kVec; ++j) {
#pragma unroll
        for (int h = 0; h < Tile::kHeads; ++h) dots[t][h] += query[h][i * Tile::kVec + j] * key[j];
      }
    }
  }
}

template <typename Tile, typename Word>
__device__ __forceinline__ void add_values(HeadVectors<Tile>& out,
                                           const TokenHeadValues<Tile>& weights,
                                           const TeamTokens<Tile, Word>& tokens, DType dtype) {
#pragma unroll
  for (int t = 0; t < Tile::kTokens; ++t) {
    float scaled[Tile::kHeads];
#pragma unroll
    for (int h = 0; h < Tile::kHeads; ++h) scaled[h] = weights[t][h] * tokens.value_scales[t];
#pragma unroll
    for (int i = 0; i < Tile::kVecsPerLane; ++i) {
      float value[Tile::kVec];
      widen(value, tokens.values[t][i], dtype);
#pragma unroll
      for (int j = 0; j < Tile::kVec; ++j) {
#pragma unroll
        for (int h = 0; h < Tile::kHeads; ++h) out[h][i * Tile::kVec + j] += scaled[h] * value[j];
      }
    }
  }
}

// A team's walk: `softmax` is the same in all its lanes.
template <typename Tile, typename Word>
__device__ __forceinline__ void walk_tokens(OnlineSoftmax (&softmax)[Tile::kHeads],
                                            HeadVectors<Tile>& out, const AttentionParams& params,
                                            const DecodeWork& work, FastDivide block_size) {
  const DecodeSource<Word> source(params, work, block_size);
  HeadVectors<Tile> query;
  load_query<Tile>(query, params, work);
  const int team = threadIdx.x / Tile::kTeamLanes;
  // The bound is the same for all lanes of the warp, which meet in warp_sum.
  for (int32_t tile = work.range.begin; tile < work.range.end; tile += Tile::kTileTokens) {
    const int32_t first = tile + team * Tile::kTokens;
    TeamTokens<Tile, Word> tokens;
    load_tokens<Tile>(tokens, source, first, work.range.end, params.cache.head_dim);
    TokenHeadValues<Tile> dots = {};
    multiply_keys<Tile>(dots, query, tokens, params.cache.dtype);

    TokenHeadValues<Tile> weights = {};
#pragma unroll
    for (int h = 0; h < Tile::kHeads; ++h) {
      if (h >= work.num_heads) continue;
      const LogitRule rule(params, work.first_head + h);
      float logits[Tile::kTokens];
      float tile_max = -INFINITY;
#pragma unroll
      for (int t = 0; t < Tile::kTokens; ++t) {
        const float dot = warp_sum<Tile::kTeamLanes>(dots[t][h]) * tokens.key_scales[t];
        const int32_t position = first + t;
        logits[t] = position < work.range.end ? rule(dot, position - work.q_pos) : -INFINITY;
        tile_max = fmaxf(tile_max, logits[t]);
      }
      const float factor = softmax[h].raise_max(tile_max);
#pragma unroll
      for (int i = 0; i < Tile::kVecsPerLane * Tile::kVec; ++i) out[h][i] *= factor;
#pragma unroll
      for (int t = 0; t < Tile::kTokens; ++t) {
        weights[t][h] = softmax[h].weight(logits[t]);
        softmax[h].sum += weights[t][h];
      }
    }
    add_values<Tile>(out, weights, tokens, params.cache.dtype);
  }
}

// Where the teams' states meet.
template <typename Tile>
struct DecodeShared {
  float values[Tile::kTeams][Tile::kHeads][Tile::kPaddedDim];
  OnlineSoftmax softmax[Tile::kTeams][Tile::kHeads];
};

// One element of a head's row over all teams' tokens, not yet normalised, and the row's softmax.
template <typename Tile>
__device__ __forceinline__ float merge_teams(OnlineSoftmax& total, const DecodeShared<Tile>& shared,
                                             int head, int dim) {
  float value = 0.0f;
  for (int team = 0; team < Tile::kTeams; ++team) {
    const OnlineSoftmax part = shared.softmax[team][head];
    value *= total.raise_max(part.max);
    const float weight = total.weight(part.max);
    total.sum += weight * part.sum;
    value += weight * shared.values[team][head][dim];
  }
  return value;
}

__device__ __forceinline__ void store_output(const AttentionParams& params, const DecodeWork& work,
                                             int head, int dim, OnlineSoftmax softmax,
                                             float value) {
  if (params.masks.sinks != nullptr) value *= softmax.add(params.masks.sinks[head]);
  const int64_t row = work.seq * params.out.token_stride + head * params.out.head_stride;
  store_float(params.out.data, row + dim, params.dtype, value * softmax.normalizer());
  if (dim == 0 && params.lse != nullptr) {
    params.lse[work.seq * params.lse_token_stride + head * params.lse_head_stride] = softmax.lse();
  }
}

__device__ __forceinline__ void store_partial(const AttentionParams& params, const DecodeWork& work,
                                              int head, int dim, OnlineSoftmax softmax,
                                              float value) {
  const int64_t row =
      (int64_t{work.seq} * params.num_q_heads + head) * params.partial.num_partitions +
      work.partition;
  params.partial.out[row * params.cache.head_dim + dim] = value * softmax.normalizer();
  if (dim == 0) params.partial.lse[row] = softmax.lse();
}

template <typename Word, int kHeadDim>
__global__ void __launch_bounds__(DecodeTile<Word, kHeadDim>::kThreads)
    decode_kernel(const __grid_constant__ AttentionParams params, const FastDivide block_size,
                  const int num_partitions) {
  using Tile = DecodeTile<Word, kHeadDim>;
  const bool is_partition = params.partial.partition_size != 0;
  const DecodeWork work = decode_work<Tile::kHeads>(params, num_partitions);
  if (is_partition && work.range.begin >= work.range.end) return;

  OnlineSoftmax softmax[Tile::kHeads];
  HeadVectors<Tile> out = {};
  walk_tokens<Tile, Word>(softmax, out, params, work, block_size);

  auto& shared = *dynamic_shared<DecodeShared<Tile>>();
  const int team = threadIdx.x / Tile::kTeamLanes;
#pragma unroll
  for (int h = 0; h < Tile::kHeads; ++h) {
    if (threadIdx.x % Tile::kTeamLanes == 0) shared.softmax[team][h] = softmax[h];
#pragma unroll
    for (int i = 0; i < Tile::kVecsPerLane * Tile::kVec; ++i) {
      shared.values[team][h][lane_dim<Tile>(i / Tile::kVec) + i % Tile::kVec] = out[h][i];
    }
  }
  __syncthreads();

  for (int i = threadIdx.x; i < work.num_heads * kHeadDim; i += Tile::kThreads) {
    const int h = i / kHeadDim;
    const int dim = i % kHeadDim;
    if (dim >= params.cache.head_dim) continue;
    OnlineSoftmax total;
    const float value = merge_teams(total, shared, h, dim);
    if (is_partition) {
      store_partial(params, work, work.first_head + h, dim, total, value);
    } else {
      store_output(params, work, work.first_head + h, dim, total, value);
    }
  }
}

}  // namespace pagedattn
