// The two layouts of fragments.cuh over tiles of 8-bit codes, which ldmatrix reads as pairs.
//
// K: a register has 4 consecutive elements of a token's row, 4t to 4t + 3 of 16, where an mma wants
// elements 2t, 2t + 1, 2t + 8, 2t + 9. Any order of the elements does, if Q has the same: Q's are
// stored in that order (dim_position in query.cuh).
//
// V, transposed: a register has 2 consecutive elements, 2g and 2g + 1, of 2 tokens, where an mma
// wants one element of 2 tokens. Its codes 0, 2 and 1, 3 are such pairs, of even and of odd
// elements; only store() has to know which accumulators are which.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/unroll.cuh"
#include "../widen.cuh"
#include "fragments.cuh"
#include "tile.h"

namespace pagedattn::decode_mma {

// A piece of a row is again kPieceBytes, now of 32 elements, for two mma.
template <typename Storage, int kHeadDim>
struct HeadsAsColumns8Bit : HeadsAsColumns<__half, kHeadDim> {
  using Base = HeadsAsColumns<__half, kHeadDim>;
  using Base::kMergeStride;
  using Base::kPieces;
  using typename Base::Output;
  using typename Base::Query;
  using typename Base::Scores;
  using typename Base::Weights;
  static constexpr int kRowBytes = Tile<kHeadDim, 1>::kRowBytes;

  static __device__ uint32_t key_row(int lane) { return quarters_by_columns<kRowBytes>(lane); }
  static __device__ uint32_t value_row(int lane) { return quarters_by_columns<kRowBytes>(lane); }

  static __device__ __forceinline__ void scores(Scores& s, const Query& query, uint32_t key_row) {
    unrolled<kPieces / 2>([&](auto i) {
      uint32_t k[4];
      ptx::ldmatrix_x4<i * kPieceBytes>(k, key_row);
      unrolled<2>([&](auto half) {
        uint32_t a[4];
        Widen<Storage>::template apply<Pairs::kAdjacent>(k[2 * half], a[0], a[2]);
        Widen<Storage>::template apply<Pairs::kAdjacent>(k[2 * half + 1], a[1], a[3]);
        if constexpr (i == 0 && half == 0) {
          ptx::mma_m16n8k16<__half>(s[0], a, query.b[0], {});
        } else {
          ptx::mma_m16n8k16<__half>(s[0], a, query.b[2 * i + half], s[0]);
        }
      });
    });
  }

  static __device__ __forceinline__ void accumulate(Output& out, const Weights& p,
                                                    uint32_t value_row) {
    const uint32_t b[2] = {ptx::movmatrix_trans(p[0][0]), ptx::movmatrix_trans(p[0][1])};
    unrolled<kPieces / 2>([&](auto i) {
      uint32_t v[4];
      ptx::ldmatrix_x4_trans<Tile<kHeadDim, 1>::kMatrixBytes + i * kPieceBytes>(v, value_row);
      unrolled<2>([&](auto half) {
        uint32_t a[4];
        Widen<Storage>::template apply<Pairs::kAlternate>(v[2 * half], a[0], a[1]);
        Widen<Storage>::template apply<Pairs::kAlternate>(v[2 * half + 1], a[2], a[3]);
        ptx::mma_m16n8k16<__half>(out[0][2 * i + half], a, b, out[0][2 * i + half]);
      });
    });
  }

  static __device__ __forceinline__ void store(float* rows, const Output& out, int lane) {
    float* const first = rows + lane % 4 * 2 * kMergeStride + lane / 4 * 2;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int head = 0; head < 2; ++head) {
        *reinterpret_cast<float2*>(first + head * kMergeStride + i * 16) =
            make_float2(out[0][i][head], out[0][i][head + 2]);
      }
    }
  }
};

template <typename Storage, int kHeadDim>
struct HeadsAsRows8Bit : HeadsAsRows<__half, kHeadDim, 1> {
  using Base = HeadsAsRows<__half, kHeadDim, 1>;
  using Base::kPieces;
  using typename Base::Output;
  using typename Base::Query;
  using typename Base::Scores;
  using typename Base::Weights;
  static constexpr int kRowBytes = Tile<kHeadDim, 1>::kRowBytes;

  static __device__ uint32_t key_row(int lane) { return quarters_by_columns<kRowBytes>(lane); }
  static __device__ uint32_t value_row(int lane) { return quarters_by_columns<kRowBytes>(lane); }

  static __device__ __forceinline__ void scores(Scores& s, const Query& query, uint32_t key_row) {
    float low[4];  // tokens 0..7
    float high[4];
    unrolled<kPieces / 2>([&](auto i) {
      uint32_t k[4];
      ptx::ldmatrix_x4<i * kPieceBytes>(k, key_row);
      unrolled<2>([&](auto half) {
        uint32_t a[4];
        ptx::ldmatrix_x4<(2 * i + half) * kPieceBytes>(a, query.row);
        uint32_t b[2][2];
        Widen<Storage>::template apply<Pairs::kAdjacent>(k[2 * half], b[0][0], b[0][1]);
        Widen<Storage>::template apply<Pairs::kAdjacent>(k[2 * half + 1], b[1][0], b[1][1]);
        if constexpr (i == 0 && half == 0) {
          ptx::mma_m16n8k16<__half>(low, a, b[0], {});
          ptx::mma_m16n8k16<__half>(high, a, b[1], {});
        } else {
          ptx::mma_m16n8k16<__half>(low, a, b[0], low);
          ptx::mma_m16n8k16<__half>(high, a, b[1], high);
        }
      });
    });
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[0][e] = low[e];
      s[0][4 + e] = high[e];
    }
  }

  // out[0][2 * i] has the even elements of 16, out[0][2 * i + 1] the odd ones.
  static __device__ __forceinline__ void accumulate(Output& out, const Weights& p,
                                                    uint32_t value_row) {
    unrolled<kPieces / 2>([&](auto i) {
      uint32_t v[4];
      ptx::ldmatrix_x4_trans<Tile<kHeadDim, 1>::kMatrixBytes + i * kPieceBytes>(v, value_row);
      unrolled<2>([&](auto half) {
        uint32_t even[2];
        uint32_t odd[2];
        Widen<Storage>::template apply<Pairs::kAlternate>(v[2 * half], even[0], odd[0]);
        Widen<Storage>::template apply<Pairs::kAlternate>(v[2 * half + 1], even[1], odd[1]);
        constexpr int kFirst = 4 * i + 2 * half;
        ptx::mma_m16n8k16<__half>(out[0][kFirst], p[0], even, out[0][kFirst]);
        ptx::mma_m16n8k16<__half>(out[0][kFirst + 1], p[0], odd, out[0][kFirst + 1]);
      });
    });
  }

  static constexpr int kMergeStride = kHeadDim + 16;
  static __device__ __forceinline__ void store(float* rows, const Output& out, int lane) {
    float* const first = rows + lane / 4 * kMergeStride + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const auto& even = out[0][2 * i];
      const auto& odd = out[0][2 * i + 1];
#pragma unroll
      for (int state = 0; state < 2; ++state) {
        *reinterpret_cast<float4*>(first + state * 8 * kMergeStride + i * 16) =
            make_float4(even[2 * state], odd[2 * state], even[2 * state + 1], odd[2 * state + 1]);
      }
    }
  }
};

}  // namespace pagedattn::decode_mma
