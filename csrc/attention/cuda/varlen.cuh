// Attention of query tokens of any number per sequence (prefill, chunked prefill, speculative
// trees) on plain SIMT cores.
//
// A CTA takes kRows query rows of one kv head (varlen_rows.cuh) and walks the keys they see,
// kTokens at a time, all as fp32 in shared memory:
//
//              kTokens                        kHeadDim
//         .---------------.              .---------------.
//   kRows | weights = exp | x    kTokens | V             |  ->  out, in registers
//         '---------------'              '---------------'
//
// Threads form an 8 x 16 grid over both products: 16 neighbouring lanes share kThreadRows rows, and
// with them their softmax state; rows never cross a warp.
#pragma once

#include <cuda_runtime.h>

#include "../../cache/cuda/paged_rows.cuh"
#include "../../common/cuda/convert.cuh"
#include "../../common/cuda/online_softmax.cuh"
#include "../../common/cuda/shared_memory.cuh"
#include "../../common/cuda/vector.cuh"
#include "../../common/cuda/warp_reduce.cuh"
#include "logits.cuh"
#include "tiles.h"
#include "varlen_rows.cuh"

namespace pagedattn {

template <typename Tile, int kHeadDim>
__device__ __forceinline__ void load_query(float* query, const AttentionParams& params,
                                           const VarlenWork& work, FastDivide group_size) {
  for (int i = threadIdx.x; i < Tile::kRows * kHeadDim; i += Tile::kThreads) {
    const int row = i / kHeadDim;
    const int dim = i % kHeadDim;
    const QueryRow at = query_row(work, row, group_size);
    float element = 0.0f;
    if (at.exists && dim < params.cache.head_dim) {
      const int64_t offset = (int64_t{work.first_token} + at.token) * params.query.token_stride +
                             at.head * params.query.head_stride;
      element = load_float(params.query.data, offset + dim, params.dtype);
    }
    query[row * Tile::kRowStride + dim] = element;
  }
}

// Tokens [first, first + kTokens) of a head as fp32, dequantised. Tokens outside `range` are
// neither looked up nor read; zeros take their place, and that of the elements past head_dim.
template <typename Tile, int kHeadDim, typename Word>
__device__ __forceinline__ void load_words(float* to, const CacheView& view, int kv_head,
                                           const BlockTable& table, int32_t first, KvRange range,
                                           int head_dim, DType dtype) {
  const HeadRows<const Word> rows(view, kv_head);
  const HeadScale scale(view.scale, kv_head);
  constexpr int kVec = sizeof(Word) == 4 ? 4 : 8;
  constexpr int kVecsPerRow = kHeadDim / kVec;
  for (int i = threadIdx.x; i < Tile::kTokens * kVecsPerRow; i += Tile::kThreads) {
    const int token = i / kVecsPerRow;
    const int dim = i % kVecsPerRow * kVec;
    const int32_t position = first + token;
    auto vec = zero_vec<Word, kVec>();
    float factor = 1.0f;
    if (position < range.end && dim < head_dim) {
      const Slot slot = table.slot(position);
      vec = load_vec<kVec>(rows.row(slot) + dim);
      if constexpr (sizeof(Word) == 1) factor = scale.at(slot);
    }
    float elements[kVec];
    widen(elements, vec, dtype);
    float* const row = to + token * Tile::kRowStride + dim;
#pragma unroll
    for (int j = 0; j < kVec; j += 4) {
      *reinterpret_cast<float4*>(row + j) =
          make_float4(elements[j] * factor, elements[j + 1] * factor, elements[j + 2] * factor,
                      elements[j + 3] * factor);
    }
  }
}

// The width of the cache's elements is known at run time only: one kernel serves them all.
template <typename Tile, int kHeadDim>
__device__ __forceinline__ void load_tokens(float* to, const CacheView& view, int kv_head,
                                            const BlockTable& table, int32_t first, KvRange range,
                                            int head_dim, DType dtype) {
  const auto load = [&](auto word) {
    load_words<Tile, kHeadDim, decltype(word)>(to, view, kv_head, table, first, range, head_dim,
                                               dtype);
  };
  switch (element_size(dtype)) {
    case 1:
      return load(uint8_t{});
    case 2:
      return load(uint16_t{});
    default:
      load(uint32_t{});
  }
}

template <typename Tile>
using VarlenDots = float[Tile::kThreadRows][Tile::kThreadTokens];

// dots[r][c]: of this thread's row r and token c * kRowLanes + its place among the row's lanes.
template <typename Tile, int kHeadDim>
__device__ __forceinline__ void multiply_keys(VarlenDots<Tile>& dots, const float* query,
                                              const float* keys) {
#pragma unroll 4
  for (int dim = 0; dim < kHeadDim; dim += 4) {
    float4 k[Tile::kThreadTokens];
#pragma unroll
    for (int c = 0; c < Tile::kThreadTokens; ++c) {
      k[c] = *reinterpret_cast<const float4*>(keys + c * Tile::kRowLanes * Tile::kRowStride + dim);
    }
#pragma unroll
    for (int r = 0; r < Tile::kThreadRows; ++r) {
      const float4 q = *reinterpret_cast<const float4*>(query + r * Tile::kRowStride + dim);
#pragma unroll
      for (int c = 0; c < Tile::kThreadTokens; ++c) {
        dots[r][c] += q.x * k[c].x + q.y * k[c].y + q.z * k[c].z + q.w * k[c].w;
      }
    }
  }
}

// This thread's part of the output: columns 2 * its place + 32 * j, in pairs.
template <typename Tile, int kHeadDim>
using VarlenOutput = float2[Tile::kThreadRows][kHeadDim / (2 * Tile::kRowLanes)];

// kMasked: not every row sees every token. Weight 0 alone would not do, as a token masked for one
// row may hold a NaN that is another row's to see.
template <typename Tile, int kHeadDim, bool kMasked>
__device__ __forceinline__ void add_values(VarlenOutput<Tile, kHeadDim>& out, const float* weights,
                                           const float* values) {
#pragma unroll 2
  for (int token = 0; token < Tile::kTokens; ++token) {
    float weight[Tile::kThreadRows];
#pragma unroll
    for (int r = 0; r < Tile::kThreadRows; ++r)
      weight[r] = weights[r * Tile::kWeightStride + token];
#pragma unroll
    for (int j = 0; j < kHeadDim / (2 * Tile::kRowLanes); ++j) {
      const float2 v = *reinterpret_cast<const float2*>(values + token * Tile::kRowStride +
                                                        j * 2 * Tile::kRowLanes);
#pragma unroll
      for (int r = 0; r < Tile::kThreadRows; ++r) {
        if (kMasked && weight[r] == 0.0f) continue;
        out[r][j].x += weight[r] * v.x;
        out[r][j].y += weight[r] * v.y;
      }
    }
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(VarlenTile<kHeadDim>::kThreads, 1)
    varlen_kernel(const __grid_constant__ AttentionParams params, const FastDivide block_size,
                  const FastDivide group_size, const int num_tiles) {
  using Tile = VarlenTile<kHeadDim>;
  constexpr int kPairs = kHeadDim / (2 * Tile::kRowLanes);
  const VarlenWork work = varlen_work<Tile::kRows>(params, num_tiles, group_size.divisor);
  if (work.first_row >= work.num_rows) return;

  float* const query = dynamic_shared<float>();
  float* const keys = query + Tile::kRows * Tile::kRowStride;
  float* const values = keys + Tile::kTokens * Tile::kRowStride;
  float* const weights = values + Tile::kTokens * Tile::kRowStride;
  load_query<Tile, kHeadDim>(query, params, work, group_size);

  const int lane = threadIdx.x % Tile::kRowLanes;
  const int first_row = threadIdx.x / Tile::kRowLanes * Tile::kThreadRows;
  RowMask masks[Tile::kThreadRows];
#pragma unroll
  for (int r = 0; r < Tile::kThreadRows; ++r) {
    const QueryRow at = query_row(work, first_row + r, group_size);
    if (at.exists) masks[r] = RowMask(params, work, at.token);
  }

  const BlockTable table{params.block_tables + work.seq * params.block_table_stride, block_size};
  const TileRange range = tile_range<Tile::kRows>(params, work, group_size);

  OnlineSoftmax softmax[Tile::kThreadRows];  // sum: of this lane's tokens only, until the end
  VarlenOutput<Tile, kHeadDim> out = {};
  for (int32_t first = range.any.begin; first < range.any.end; first += Tile::kTokens) {
    __syncthreads();  // the previous tile's readers are done
    load_tokens<Tile, kHeadDim>(keys, params.cache.key, work.kv_head, table, first, range.any,
                                params.cache.head_dim, params.cache.dtype);
    load_tokens<Tile, kHeadDim>(values, params.cache.value, work.kv_head, table, first, range.any,
                                params.cache.head_dim, params.cache.dtype);
    __syncthreads();

    VarlenDots<Tile> dots = {};
    multiply_keys<Tile, kHeadDim>(dots, query + first_row * Tile::kRowStride,
                                  keys + lane * Tile::kRowStride);
    float* const own_weights = weights + first_row * Tile::kWeightStride;
#pragma unroll
    for (int r = 0; r < Tile::kThreadRows; ++r) {
      const LogitRule rule(params, query_row(work, first_row + r, group_size).head);
      float logits[Tile::kThreadTokens];
      float tile_max = -INFINITY;
#pragma unroll
      for (int c = 0; c < Tile::kThreadTokens; ++c) {
        const int32_t position = first + c * Tile::kRowLanes + lane;
        logits[c] = masks[r].sees(position, params.masks.tree_mask_column_stride)
                        ? rule(dots[r][c], position - masks[r].q_pos)
                        : -INFINITY;
        tile_max = fmaxf(tile_max, logits[c]);
      }
      const float factor = softmax[r].raise_max(warp_max<Tile::kRowLanes>(tile_max));
#pragma unroll
      for (int c = 0; c < Tile::kThreadTokens; ++c) {
        const float weight = softmax[r].weight(logits[c]);
        softmax[r].sum += weight;
        own_weights[r * Tile::kWeightStride + c * Tile::kRowLanes + lane] = weight;
      }
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        out[r][j].x *= factor;
        out[r][j].y *= factor;
      }
    }
    __syncwarp();  // a row's weights come from 16 lanes of this warp
    const bool masked = first < range.all.begin || first + Tile::kTokens > range.all.end;
    if (masked) {
      add_values<Tile, kHeadDim, true>(out, own_weights, values + 2 * lane);
    } else {
      add_values<Tile, kHeadDim, false>(out, own_weights, values + 2 * lane);
    }
  }

#pragma unroll
  for (int r = 0; r < Tile::kThreadRows; ++r) {
    softmax[r].sum = warp_sum<Tile::kRowLanes>(softmax[r].sum);
    const QueryRow at = query_row(work, first_row + r, group_size);
    if (!at.exists) continue;
    float factor = 1.0f;
    if (params.masks.sinks != nullptr) factor = softmax[r].add(params.masks.sinks[at.head]);
    factor *= softmax[r].normalizer();
    const int64_t token = int64_t{work.first_token} + at.token;
    const int64_t row = token * params.out.token_stride + at.head * params.out.head_stride;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int dim = 2 * lane + j * 2 * Tile::kRowLanes;
      if (dim >= params.cache.head_dim) continue;
      store_float(params.out.data, row + dim, params.dtype, out[r][j].x * factor);
      store_float(params.out.data, row + dim + 1, params.dtype, out[r][j].y * factor);
    }
    if (lane == 0 && params.lse != nullptr) {
      params.lse[token * params.lse_token_stride + at.head * params.lse_head_stride] =
          softmax[r].lse();
    }
  }
}

}  // namespace pagedattn
