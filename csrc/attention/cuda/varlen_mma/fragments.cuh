// A warp's rows and tokens laid on mma.m16n8k16, which computes D[16 x 8] += A[16 x 16] B[16 x 8];
// lane l = 4 * g + t holds
//
//     A  rows g, g + 8, columns 2t, 2t + 1, 2t + 8, 2t + 9        D  rows g, g + 8
//     B  rows 2t, 2t + 1, 2t + 8, 2t + 9, column g                   columns 2t, 2t + 1
//
//     S[rows x tokens] = Q[rows x dim] * K^T[dim x tokens]
//     O[rows x dim]   += P[rows x tokens] * V[tokens x dim]
//
// D's layout is A's, so P needs no exchange. Each 16 x 16 piece of K and V serves all fragments of
// 16 rows that the warp has. Q is read from shared memory for every tile: a quarter more reads,
// where registers for it would cost the second fragment.
#pragma once

#include <cuda_runtime.h>
#include <math.h>

#include <cstdint>
#include <type_traits>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/unroll.cuh"
#include "../mma_operands.cuh"
#include "tile.h"
#include "values.cuh"

namespace pagedattn::varlen_mma {

template <typename T, int kHeadDim, int kRows>
struct Fragments {
  static constexpr int kFragments = RowTile<kRows>::kFragments;
  static constexpr int kBlocks = RowTile<kRows>::kWarpTokens / 8;
  static constexpr int kPieces = kHeadDim / 16;
  static constexpr int kRowBytes = Matrix<kHeadDim>::kRowBytes;

  using Scores = float[kFragments][kBlocks][4];
  using Weights = uint32_t[kFragments][kBlocks / 2][4];  // pairs, as A operands
  using Output = float[kFragments][2 * kPieces][4];

  static __device__ uint32_t query_row(int lane) { return quarters_by_columns<kRowBytes>(lane); }
  static __device__ uint32_t key_row(int lane) { return quarters_by_rows<kRowBytes>(lane); }
  static __device__ uint32_t value_row(int lane) { return quarters_by_columns<kRowBytes>(lane); }

  static __device__ __forceinline__ void multiply_keys(Scores& scores, uint32_t query_row,
                                                       uint32_t key_row) {
    unrolled<kPieces>([&](auto i) {
      uint32_t q[kFragments][4];
      unrolled<kFragments>(
          [&](auto f) { ptx::ldmatrix_x4<f * 16 * kRowBytes + i * kPieceBytes>(q[f], query_row); });
      unrolled<kBlocks / 2>([&](auto n) {
        uint32_t k[4];
        ptx::ldmatrix_x4<n * 16 * kRowBytes + i * kPieceBytes>(k, key_row);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          float (&low)[4] = scores[f][2 * n];
          float (&high)[4] = scores[f][2 * n + 1];
          if constexpr (i == 0) {
            ptx::mma_m16n8k16<T>(low, q[f], {k[0], k[1]}, {});
            ptx::mma_m16n8k16<T>(high, q[f], {k[2], k[3]}, {});
          } else {
            ptx::mma_m16n8k16<T>(low, q[f], {k[0], k[1]}, low);
            ptx::mma_m16n8k16<T>(high, q[f], {k[2], k[3]}, high);
          }
        }
      });
    });
  }

  static __device__ __forceinline__ void add_values(Output& out, const Weights& weights,
                                                    uint32_t value_row) {
    unrolled<kBlocks / 2>([&](auto k) {
      unrolled<kPieces>([&](auto i) {
        uint32_t v[4];
        ptx::ldmatrix_x4_trans<k * 16 * kRowBytes + i * kPieceBytes>(v, value_row);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          multiply(out[f][2 * i], out[f][2 * i + 1], weights[f][k], v);
        }
      });
    });
  }

  // Adds infinite and NaN values to what gives them a weight: a product with a 1 in place of those
  // of one sign (NaN has both) and 0 elsewhere tells. Rare, so small rather than fast: a loop over
  // half the columns at a time collects a bit for each accumulator.
  static __device__ __forceinline__ void add_nonfinite(Output& out, const Weights& weights,
                                                       uint32_t value_row) {
    uint32_t sign = 0;
#pragma unroll 1
    do {
      add_infinite(out, weights, value_row, sign);
      sign ^= 0x80008000u;
    } while (sign != 0);
  }

 private:
  static constexpr uint32_t kOnes = std::is_same_v<T, __half> ? 0x3c003c00u : 0x3f803f80u;

  static __device__ __forceinline__ void add_infinite(Output& out, const Weights& weights,
                                                      uint32_t value_row, uint32_t sign) {
    constexpr int kHalf = kPieces / 2;
    unrolled<2 * kFragments>([&](auto part) {
      constexpr int f = part / 2;
      constexpr int kFirst = part % 2 * kHalf;
      uint64_t marks = 0;
#pragma unroll 1
      for (int i = 0; i < kHalf; ++i) {
        float seen[2][4] = {};
        unrolled<kBlocks / 2>([&](auto k) {
          uint32_t v[4];
          ptx::ldmatrix_x4_trans<k * 16 * kRowBytes + kFirst * kPieceBytes>(
              v, value_row + i * kPieceBytes);
#pragma unroll
          for (int j = 0; j < 4; ++j) v[j] = infinite_halves<T>(v[j], sign) & kOnes;
          multiply(seen[0], seen[1], weights[f][k], v);
        });
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          marks |= static_cast<uint64_t>(seen[e / 4][e % 4] != 0.0f) << (i * 8 + e);
        }
      }
#pragma unroll
      for (int e = 0; e < 8 * kHalf; ++e) {
        if ((marks >> e & 1) == 0) continue;
        out[f][2 * kFirst + e / 4][e % 4] += sign == 0 ? INFINITY : -INFINITY;
      }
    });
  }

  static __device__ __forceinline__ void multiply(float (&low)[4], float (&high)[4],
                                                  const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    ptx::mma_m16n8k16<T>(low, a, {b[0], b[1]}, low);
    ptx::mma_m16n8k16<T>(high, a, {b[2], b[3]}, high);
  }
};

}  // namespace pagedattn::varlen_mma
