// Two ways to lay a tile of 16 tokens and the query heads of one kv head on mma.m16n8k16, behind
// one face. An mma computes D[16 x 8] += A[16 x 16] * B[16 x 8]; lane l = 4 * g + t holds
//
//     A  rows g, g + 8, columns 2t, 2t + 1, 2t + 8, 2t + 9        D  rows g, g + 8
//     B  rows 2t, 2t + 1, 2t + 8, 2t + 9, column g                   columns 2t, 2t + 1
//
// HeadsAsColumns, up to 8 heads: the tokens fill the 16 rows, so 8 heads waste nothing.
//
//     S^T[tokens x heads] = K[tokens x dim] * Q^T[dim x heads]      Q^T stays in registers
//     O^T[dim x heads]   += V^T[dim x tokens] * P^T[tokens x heads]
//
//   D holds S^T by rows (token g: heads 2t, 2t + 1) while B wants P^T by columns (head g: tokens
//   2t, 2t + 1): a transposition of 8 x 8 matrices, which is one movmatrix each.
//
// HeadsAsRows, 16 heads per fragment: the textbook orientation.
//
//     S[heads x tokens] = Q[heads x dim] * K^T[dim x tokens]        Q is read from shared memory
//     O[heads x dim]   += P[heads x tokens] * V[tokens x dim]       for every tile
//
//   D's layout is A's, so P needs no exchange. Q in registers would cost 64 of them. Each 16 x 16
//   piece of K and V serves all fragments of 16 heads that the warp has.
//
// In both, a lane's scores of a fragment belong to two heads, whose softmax states 0 and 1 it
// keeps.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/unroll.cuh"
#include "../mma_operands.cuh"
#include "tile.h"

namespace pagedattn::decode_mma {

template <typename T, int kHeadDim>
struct HeadsAsColumns {
  static constexpr int kFragments = 1;
  static constexpr int kFragmentHeads = 8;
  static constexpr int kHeads = kFragments * kFragmentHeads;
  static constexpr int kPieces = kHeadDim / 16;
  static constexpr int kRowBytes = Tile<kHeadDim>::kRowBytes;
  // What a lane has of each fragment.
  static constexpr int kScores = 4;
  using Scores = float[kFragments][kScores];
  using Weights = uint32_t[kFragments][kScores / 2];  // pairs
  using Output = float[kFragments][kPieces][4];

  // Which of the fragment's two heads element e of its scores or outputs belongs to, and where.
  static constexpr __device__ int state_of(int e) { return e % 2; }
  static __device__ int head(int lane, int state) { return lane % 4 * 2 + state; }
  static __device__ int token(int lane, int e) { return lane / 4 + e / 2 * 8; }

  // Lanes that hold the same heads differ in these bits of their number.
  static constexpr int kTokenLanes = 4 + 8 + 16;

  static __device__ uint32_t key_row(int lane) { return quarters_by_columns<kRowBytes>(lane); }
  static __device__ uint32_t value_row(int lane) { return quarters_by_rows<kRowBytes>(lane); }

  struct Query {
    uint32_t b[kPieces][2];

    __device__ __forceinline__ Query(uint32_t rows, int lane) {
      // A B operand by columns is laid out like rows of heads; one load brings two pieces of dim.
      const uint32_t address = rows + (lane % 8) * kRowBytes + (lane / 8) * 16;
      unrolled<kPieces / 2>([&](auto i) {
        uint32_t r[4];
        ptx::ldmatrix_x4<i * 2 * kPieceBytes>(r, address);
        b[2 * i][0] = r[0];
        b[2 * i][1] = r[1];
        b[2 * i + 1][0] = r[2];
        b[2 * i + 1][1] = r[3];
      });
    }
  };

  static __device__ __forceinline__ void scores(Scores& s, const Query& query, uint32_t key_row) {
    unrolled<kPieces>([&](auto i) {
      uint32_t a[4];
      ptx::ldmatrix_x4<i * kPieceBytes>(a, key_row);
      if constexpr (i == 0) {
        ptx::mma_m16n8k16<T>(s[0], a, query.b[i], {});
      } else {
        ptx::mma_m16n8k16<T>(s[0], a, query.b[i], s[0]);
      }
    });
  }

  static __device__ __forceinline__ void accumulate(Output& out, const Weights& p,
                                                    uint32_t value_row) {
    const uint32_t b[2] = {ptx::movmatrix_trans(p[0][0]), ptx::movmatrix_trans(p[0][1])};
    unrolled<kPieces>([&](auto i) {
      uint32_t a[4];
      ptx::ldmatrix_x4_trans<Tile<kHeadDim>::kMatrixBytes + i * kPieceBytes>(a, value_row);
      ptx::mma_m16n8k16<T>(out[0][i], a, b, out[0][i]);
    });
  }

  // Rows [head][dim] of fp32 for the merge; the padding keeps the stores below on 32 banks.
  static constexpr int kMergeStride = kHeadDim + 4;
  static __device__ __forceinline__ void store(float* rows, const Output& out, int lane) {
    float* const first = rows + lane % 4 * 2 * kMergeStride + lane / 4;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) first[e % 2 * kMergeStride + i * 16 + e / 2 * 8] = out[0][i][e];
    }
  }
};

template <typename T, int kHeadDim, int kNumFragments>
struct HeadsAsRows {
  static constexpr int kFragments = kNumFragments;
  static constexpr int kFragmentHeads = 16;
  static constexpr int kHeads = kFragments * kFragmentHeads;
  static constexpr int kPieces = kHeadDim / 16;
  static constexpr int kRowBytes = Tile<kHeadDim>::kRowBytes;
  static constexpr int kScores = 8;
  using Scores = float[kFragments][kScores];
  using Weights = uint32_t[kFragments][kScores / 2];
  using Output = float[kFragments][2 * kPieces][4];

  static constexpr __device__ int state_of(int e) { return e / 2 % 2; }
  static __device__ int head(int lane, int state) { return lane / 4 + state * 8; }
  static __device__ int token(int lane, int e) { return e / 4 * 8 + lane % 4 * 2 + e % 2; }

  static constexpr int kTokenLanes = 1 + 2;

  static __device__ uint32_t key_row(int lane) { return quarters_by_rows<kRowBytes>(lane); }
  static __device__ uint32_t value_row(int lane) { return quarters_by_columns<kRowBytes>(lane); }

  struct Query {
    uint32_t row;

    __device__ __forceinline__ Query(uint32_t rows, int lane)
        : row(ptx::keep(rows + quarters_by_columns<kRowBytes>(lane))) {}
  };

  static __device__ __forceinline__ void scores(Scores& s, const Query& query, uint32_t key_row) {
    float low[kFragments][4];  // tokens 0..7
    float high[kFragments][4];
    unrolled<kPieces>([&](auto i) {
      uint32_t k[4];
      ptx::ldmatrix_x4<i * kPieceBytes>(k, key_row);
      unrolled<kFragments>([&](auto f) {
        uint32_t a[4];
        ptx::ldmatrix_x4<f * kFragmentHeads * kRowBytes + i * kPieceBytes>(a, query.row);
        if constexpr (i == 0) {
          ptx::mma_m16n8k16<T>(low[f], a, {k[0], k[1]}, {});
          ptx::mma_m16n8k16<T>(high[f], a, {k[2], k[3]}, {});
        } else {
          ptx::mma_m16n8k16<T>(low[f], a, {k[0], k[1]}, low[f]);
          ptx::mma_m16n8k16<T>(high[f], a, {k[2], k[3]}, high[f]);
        }
      });
    });
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[f][e] = low[f][e];
        s[f][4 + e] = high[f][e];
      }
    }
  }

  static __device__ __forceinline__ void accumulate(Output& out, const Weights& p,
                                                    uint32_t value_row) {
    unrolled<kPieces>([&](auto i) {
      uint32_t v[4];
      ptx::ldmatrix_x4_trans<Tile<kHeadDim>::kMatrixBytes + i * kPieceBytes>(v, value_row);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        ptx::mma_m16n8k16<T>(out[f][2 * i], p[f], {v[0], v[1]}, out[f][2 * i]);
        ptx::mma_m16n8k16<T>(out[f][2 * i + 1], p[f], {v[2], v[3]}, out[f][2 * i + 1]);
      }
    });
  }

  static constexpr int kMergeStride = kHeadDim + 8;
  static __device__ __forceinline__ void store(float* rows, const Output& out, int lane) {
    float* const first = rows + lane / 4 * kMergeStride + lane % 4 * 2;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 2 * kPieces; ++i) {
#pragma unroll
        for (int state = 0; state < 2; ++state) {
          const int head = f * kFragmentHeads + state * 8;
          *reinterpret_cast<float2*>(first + head * kMergeStride + i * 8) =
              make_float2(out[f][i][2 * state], out[f][i][2 * state + 1]);
        }
      }
    }
  }
};

}  // namespace pagedattn::decode_mma
