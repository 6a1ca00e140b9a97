// Softmax over tiles whose reference maximum moves only when it must, row by row.
//
// The weights are 2^(logit - reference), for a reference that is set kHeadroom above the largest
// logit seen, so they start out small; only when a weight of the row reaches 2 is the row's tile
// done again with a new reference. The test is a bit of the packed weights: in fp16 and in bf16,
// bit 14 is set in 2 and all above it, infinities and NaN, and in nothing below. What another row
// of the warp needs changes nothing: a row's bits depend on its own logits alone.
//
// Where values have scales, it is weight * scale that goes into the mma, and the reference is for
// these products: a scale is as good as a change of the logit.
#pragma once

#include <cuda_runtime.h>
#include <math.h>

#include <cfloat>
#include <cstdint>
#include <type_traits>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../mma_operands.cuh"

namespace pagedattn::varlen_mma {

// A row as far as a warp has seen it; logits are in units of log2.
struct RowState {
  float reference;
  float sum;
};

// The two rows, g and g + 8, that a lane shares with three others in a fragment of 16 rows by
// kBlocks * 8 tokens.
template <typename T, int kBlocks>
struct LazySoftmax {
  // bf16 has exponents to spare; of fp16's 14 below 1, weights of small logits need the rest.
  static constexpr float kHeadroom = std::is_same_v<T, __half> ? 3.0f : 24.0f;

  // Before the first visible key, a finite value that makes the weight of every logit infinite and
  // that of a masked one, -inf, still 0.
  float minus_reference[2] = {FLT_MAX, FLT_MAX};
  float sum[2] = {0.0f, 0.0f};  // over this lane's tokens

  // The weights of logits scores * factors, times the scales of the values, packed in pairs as an A
  // operand; out is rescaled where the reference moves.
  template <typename Scales, int kColumns>
  __device__ __forceinline__ void weigh(const float (&scores)[kBlocks][4],
                                        const float (&factors)[2], const Scales& scales,
                                        float (&out)[kColumns][4],
                                        uint32_t (&packed)[kBlocks / 2][4]) {
    float tile_sum[2];
    uint32_t bits[2];  // those of any weight of the row
    weigh_all(scores, factors, scales, packed, tile_sum, bits);
    if (__any_sync(kFullWarp, is_two(bits[0] | bits[1]))) {
      raise_references(scores, factors, scales, bits, out);
      weigh_all(scores, factors, scales, packed, tile_sum, bits);
    }
    sum[0] += tile_sum[0];
    sum[1] += tile_sum[1];
  }

  // Adds up what the four lanes of a row hold.
  __device__ __forceinline__ void reduce_sums() {
#pragma unroll
    for (float& s : sum) s = warp_sum<4>(s);
  }

  __device__ __forceinline__ RowState state(int r) const { return {-minus_reference[r], sum[r]}; }

 private:
  static __device__ bool is_two(uint32_t bits) { return (bits & 0x40004000u) != 0; }

  template <typename Scales>
  __device__ __forceinline__ void weigh_all(const float (&scores)[kBlocks][4],
                                            const float (&factors)[2], const Scales& scales,
                                            uint32_t (&packed)[kBlocks / 2][4],
                                            float (&tile_sum)[2], uint32_t (&bits)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      tile_sum[r] = 0.0f;
      bits[r] = 0;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
        const float low = ptx::exp2_approx(fmaf(scores[n][2 * r], factors[r], minus_reference[r]));
        const float high =
            ptx::exp2_approx(fmaf(scores[n][2 * r + 1], factors[r], minus_reference[r]));
        uint32_t& pair = packed[n / 2][n % 2 * 2 + r];
        pair = pack<T>(scales.scale_weight(low, n, 0), scales.scale_weight(high, n, 1));
        bits[r] |= pair;
        tile_sum[r] += low + high;
      }
    }
  }

  template <typename Scales, int kColumns>
  __device__ __forceinline__ void raise_references(const float (&scores)[kBlocks][4],
                                                   const float (&factors)[2], const Scales& scales,
                                                   const uint32_t (&bits)[2],
                                                   float (&out)[kColumns][4]) {
    float rescale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
        largest = fmaxf(largest, fmaxf(scales.scale_logit(scores[n][2 * r], factors[r], n, 0),
                                       scales.scale_logit(scores[n][2 * r + 1], factors[r], n, 1)));
      }
      largest = warp_max<4>(largest);
      uint32_t row_bits = bits[r];
      row_bits |= __shfl_xor_sync(kFullWarp, row_bits, 1);
      row_bits |= __shfl_xor_sync(kFullWarp, row_bits, 2);
      const float before = minus_reference[r];
      if (is_two(row_bits)) minus_reference[r] = fminf(before, -(largest + kHeadroom));
      rescale[r] = ptx::exp2_approx(minus_reference[r] - before);
      sum[r] *= rescale[r];
    }
#pragma unroll
    for (auto& block : out) {
#pragma unroll
      for (int e = 0; e < 4; ++e) block[e] *= rescale[e / 2];
    }
  }
};

}  // namespace pagedattn::varlen_mma
