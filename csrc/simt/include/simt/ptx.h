// Host twins of the PTX wrappers in csrc/common/cuda/ptx.cuh, which says what each of them does.
// They behave like sm_90 and check what the hardware leaves undefined.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "block.h"
#include "intrinsics.h"
#include "warp.h"

namespace simt {

inline float half_bits_to_float(uint32_t bits) {
  constexpr float kRebias = 0x1p112f;  // also makes subnormals right
  float magnitude = bit_cast<float>((bits & 0x7fff) << 13) * kRebias;
  if ((bits & 0x7c00) == 0x7c00) magnitude = bit_cast<float>(0x7f800000u | (bits & 0x3ff) << 13);
  return bits & 0x8000 ? -magnitude : magnitude;
}

template <typename T>
float element_to_float(uint32_t bits) {
  if constexpr (std::is_same_v<T, __half>) {
    return half_bits_to_float(bits & 0xffff);
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    return bit_cast<float>(bits << 16);
  }
}

// Fragments, with group = lane / 4 and pair = 2 * (lane % 4):
//
//   a[0] rows group,     columns pair, pair + 1      b[0] rows pair, pair + 1 of column group
//   a[1] rows group + 8, columns pair, pair + 1      b[1] rows pair + 8, pair + 9
//   a[2] rows group,     columns pair + 8, pair + 9  d[0], d[1] row group, columns pair, pair + 1;
//   c too a[3] rows group + 8, columns pair + 8, pair + 9  d[2], d[3] row group + 8
struct Mma {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  const float* c;
};

inline void require_whole_warp(const char* name, uint32_t lanes) {
  if (lanes == 0xffffffffu) return;
  this_thread->block->fail(this_thread->where,
                           std::string(name) + ": some lanes of the warp have exited");
}

// Products are exact and summed in double: the hardware sums in fp32 in an order of its own.
template <typename T>
void combine_mma(uint32_t lanes, Mma* const* parts) {
  require_whole_warp("mma", lanes);
  float a[16][16];
  float b[8][16];  // by columns
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const unsigned group = lane / 4;
    const unsigned pair = 2 * (lane % 4);
    for (unsigned i = 0; i < 4; ++i) {
      float* to = &a[group + 8 * (i % 2)][pair + 8 * (i / 2)];
      to[0] = element_to_float<T>(parts[lane]->a[i]);
      to[1] = element_to_float<T>(parts[lane]->a[i] >> 16);
    }
    for (unsigned i = 0; i < 2; ++i) {
      float* to = &b[group][pair + 8 * i];
      to[0] = element_to_float<T>(parts[lane]->b[i]);
      to[1] = element_to_float<T>(parts[lane]->b[i] >> 16);
    }
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    for (unsigned i = 0; i < 4; ++i) {
      const float* row = a[lane / 4 + 8 * (i / 2)];
      const float* column = b[2 * (lane % 4) + i % 2];
      double sum = parts[lane]->c[i];
      for (unsigned k = 0; k < 16; ++k) sum += static_cast<double>(row[k]) * column[k];
      parts[lane]->d[i] = static_cast<float>(sum);
    }
  }
}

// An 8 x 8 matrix of 16-bit elements and how a warp holds it: lane l has elements 2 * (l % 4) and
// the next of row l / 4; or of column l / 4, transposed.
struct Matrix {
  uint16_t rows[8][8];

  uint32_t of_lane(unsigned lane, bool transposed) const {
    const unsigned major = lane / 4;
    const unsigned minor = 2 * (lane % 4);
    const uint32_t low = transposed ? rows[minor][major] : rows[major][minor];
    const uint32_t high = transposed ? rows[minor + 1][major] : rows[major][minor + 1];
    return high << 16 | low;
  }
};

struct LoadMatrix {
  uint32_t* r;
  uint32_t address;
};

template <int kCount, bool kTransposed>
void combine_ldmatrix(uint32_t lanes, LoadMatrix* const* loads) {
  require_whole_warp("ldmatrix", lanes);
  SharedWindow& shared = this_thread->block->shared();
  for (unsigned i = 0; i < kCount; ++i) {
    Matrix matrix;
    for (unsigned row = 0; row < 8; ++row) {
      const unsigned lane = 8 * i + row;
      const uint32_t address = loads[lane]->address;
      std::string objection = shared.objection(address, 16, 16);
      if (objection.empty() && shared.in_flight(address, 16)) {
        objection = "reads what a cp.async will write that was not waited for";
      }
      if (!objection.empty()) {
        this_thread->block->fail(this_thread->where, "ldmatrix: the address of lane " +
                                                         std::to_string(lane) + ": " + objection);
      }
      std::memcpy(matrix.rows[row], shared.pointer_to(address), 16);
    }
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      loads[lane]->r[i] = matrix.of_lane(lane, kTransposed);
    }
  }
}

template <int kCount, bool kTransposed>
void ldmatrix(const char* name, uint32_t* r, uint32_t address, Location where) {
  LoadMatrix mine{r, address};
  meet<LoadMatrix, combine_ldmatrix<kCount, kTransposed>>(name, 0xffffffffu, mine, where, true);
}

inline void combine_movmatrix(uint32_t lanes, uint32_t* const* registers) {
  require_whole_warp("movmatrix", lanes);
  Matrix matrix;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    std::memcpy(&matrix.rows[lane / 4][2 * (lane % 4)], registers[lane], 4);
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) *registers[lane] = matrix.of_lane(lane, true);
}

inline void cp_async(uint32_t to, const char* from, int bytes, int from_bytes, Location where) {
  Block& block = *this_thread->block;
  std::string objection = block.shared().objection(to, bytes, bytes);
  if (objection.empty() && block.shared().in_flight(to, bytes)) {
    objection = "the destination of another cp.async that was not waited for";
  }
  if (objection.empty() && reinterpret_cast<uintptr_t>(from) % bytes != 0) {
    objection = "misaligned: the source is no multiple of " + std::to_string(bytes);
  }
  if (objection.empty() && (from_bytes < 0 || from_bytes > bytes)) {
    objection = "source size " + std::to_string(from_bytes);
  }
  if (!objection.empty()) block.fail(where, "cp.async: " + objection);
  this_thread->where = where;
  this_thread->copies.issue(block.shared(), to, bytes, from, from_bytes);
}

}  // namespace simt

namespace pagedattn::ptx {

inline constexpr bool kHasAmpereInstructions = true;
inline constexpr bool kHasFp8Conversions = true;

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

inline uint32_t keep(uint32_t value) { return value; }
inline int keep(int value) { return value; }
inline const char* keep(const char* pointer) { return pointer; }

inline const char* address(const char* base, uint32_t index, uint32_t stride) {
  return base + static_cast<uint64_t>(index) * stride;
}
template <int kIndex>
const char* address(const char* base, uint32_t stride) {
  return address(base, kIndex, stride);
}

template <typename T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  const float (&c)[4], simt::Location where = simt::Location::current()) {
  simt::Mma mine{d, a, b, c};
  simt::meet<simt::Mma, simt::combine_mma<T>>("mma.m16n8k16", 0xffffffffu, mine, where, true);
}

template <int kOffset = 0>
void ldmatrix_x4(uint32_t (&r)[4], uint32_t address,
                 simt::Location where = simt::Location::current()) {
  simt::ldmatrix<4, false>("ldmatrix.x4", r, address + kOffset, where);
}

template <int kOffset = 0>
void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address,
                       simt::Location where = simt::Location::current()) {
  simt::ldmatrix<4, true>("ldmatrix.x4.trans", r, address + kOffset, where);
}

inline uint32_t movmatrix_trans(uint32_t row, simt::Location where = simt::Location::current()) {
  simt::meet<uint32_t, simt::combine_movmatrix>("movmatrix", 0xffffffffu, row, where, true);
  return row;
}

template <int kDstOffset = 0, int kSrcOffset = 0>
void cp_async_16(uint32_t dst, const void* src, simt::Location where = simt::Location::current()) {
  simt::cp_async(dst + kDstOffset, static_cast<const char*>(src) + kSrcOffset, 16, 16, where);
}

template <int kDstOffset = 0, int kSrcOffset = 0>
void cp_async_16(uint32_t dst, const void* src, int src_bytes,
                 simt::Location where = simt::Location::current()) {
  simt::cp_async(dst + kDstOffset, static_cast<const char*>(src) + kSrcOffset, 16, src_bytes,
                 where);
}

inline void cp_async_4(uint32_t dst, const void* src,
                       simt::Location where = simt::Location::current()) {
  simt::cp_async(dst, static_cast<const char*>(src), 4, 4, where);
}

inline void cp_async_commit() { simt::this_thread->copies.commit(); }

template <int kPending>
void cp_async_wait() {
  simt::this_thread->copies.wait(simt::this_thread->block->shared(), kPending);
}

inline void named_barrier_sync(int id, int num_threads,
                               simt::Location where = simt::Location::current()) {
  simt::this_thread->block->named_barrier(id, num_threads, where);
}

inline float exp2_approx(float x) {
  const float result = exp2f(x);
  return result < FLT_MIN ? 0.0f : result;
}

}  // namespace pagedattn::ptx
