// PTX instructions that CUDA C++ has no name for, one inline function each. kOffset is an immediate
// byte offset, which costs no instruction; shared-memory addresses are 32-bit, from
// shared_address().
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#ifndef __CUDACC__
#include <simt/ptx.h>  // host twins of everything below
#else

namespace pagedattn::ptx {

// mma.m16n8k16, ldmatrix on it and cp.async came with sm_80. Kernels that use them compile to
// nothing for older devices.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
inline constexpr bool kHasAmpereInstructions = true;
#else
inline constexpr bool kHasAmpereInstructions = false;
#endif

// Conversions from fp8 in one instruction came with sm_89.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
inline constexpr bool kHasFp8Conversions = true;
#else
inline constexpr bool kHasFp8Conversions = false;
#endif

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The value, as something the compiler cannot compute again: it keeps a register instead of
// recomputing an address in every iteration of a loop.
__device__ __forceinline__ uint32_t keep(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ int keep(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ const char* keep(const char* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

// base + index * stride.
__device__ __forceinline__ const char* address(const char* base, uint32_t index, uint32_t stride) {
  const char* result;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(result) : "r"(index), "r"(stride), "l"(base));
  return result;
}
template <int kIndex>
__device__ __forceinline__ const char* address(const char* base, uint32_t stride) {
  const char* result;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(result) : "r"(stride), "n"(kIndex), "l"(base));
  return result;
}

// a * b + c. a is 16 x 16 by rows, b is 16 x 8 by columns, c and d are 16 x 8.
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2], const float (&c)[4]) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
  }
}

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8 and
// receives of each matrix the elements 2 * (l % 4) and the next of row l / 4.
template <int kOffset = 0>
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4 + %5];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address), "n"(kOffset)
               : "memory");
}

// The same, each matrix transposed on its way.
template <int kOffset = 0>
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4 + %5];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address), "n"(kOffset)
               : "memory");
}

// Transposes an 8 x 8 matrix of 16-bit elements that is spread over the warp as ldmatrix does it.
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t row) {
  uint32_t column;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
  return column;
}

// Starts a copy of 16 bytes to shared memory, past L1.
template <int kDstOffset = 0, int kSrcOffset = 0>
__device__ __forceinline__ void cp_async_16(uint32_t dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;" ::"r"(dst), "l"(src),
               "n"(kDstOffset), "n"(kSrcOffset)
               : "memory");
}

// The same for the first src_bytes (0 to 16) of them; the rest becomes zero and is not read.
template <int kDstOffset = 0, int kSrcOffset = 0>
__device__ __forceinline__ void cp_async_16(uint32_t dst, const void* src, int src_bytes) {
  asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16, %4;" ::"r"(dst), "l"(src),
               "n"(kDstOffset), "n"(kSrcOffset), "r"(src_bytes)
               : "memory");
}

// Starts a copy of 4 bytes.
__device__ __forceinline__ void cp_async_4(uint32_t dst, const void* src) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's groups are still on their way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// A barrier among the num_threads threads (a multiple of 32) that name the same id, 1 to 15.
__device__ __forceinline__ void named_barrier_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// 2^x within 2 ulp; subnormal results are zero.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace pagedattn::ptx

#endif
