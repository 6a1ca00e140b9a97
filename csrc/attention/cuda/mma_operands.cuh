// What the tensor-core kernels share: how operands of mma.m16n8k16 come from shared memory, and
// pairs of 16-bit elements.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace pagedattn {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// Offset, for ldmatrix x4, of this lane's row of a 16 x 16 piece of a matrix with a token or a head
// per row. The piece's 8 x 8 quarters arrive down its columns, or along its rows:
//     [ 0 2 ]      [ 0 1 ]
//     [ 1 3 ]      [ 2 3 ]
// An mma takes its operands from neighbouring registers, so each use has its order: A goes down
// the columns and B, as two operands of 8 columns, by halves of the piece; both the other way round
// where ldmatrix transposes.
template <int kRowBytes>
__device__ __forceinline__ uint32_t quarters_by_columns(int lane) {
  return (lane % 16) * kRowBytes + (lane / 16) * 16;
}
template <int kRowBytes>
__device__ __forceinline__ uint32_t quarters_by_rows(int lane) {
  return (lane / 16 * 8 + lane % 8) * kRowBytes + (lane / 8 % 2) * 16;
}

constexpr int kPieceBytes = 32;  // 16 elements of a row

template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t bits;
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&bits, &pair, sizeof(bits));
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &pair, sizeof(bits));
  }
  return bits;
}

}  // namespace pagedattn
