// The CTA's query rows, in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/vector.cuh"
#include "../../params.h"
#include "../varlen_rows.cuh"
#include "tile.h"

namespace pagedattn::varlen_mma {

// Where a row begins in a tensor of tokens.
__device__ __forceinline__ int64_t row_offset(const TokenView& view, const VarlenWork& work,
                                              const QueryRow& at) {
  return (int64_t{work.first_token} + at.token) * view.token_stride + at.head * view.head_stride;
}

// Copies the rows to `rows`; rows that do not exist and elements past head_dim become zeros.
// `aligned`: all rows of query start at multiples of 16 bytes, and cp.async copies them.
template <typename T, int kHeadDim, int kRows>
__device__ __forceinline__ void load_query(unsigned char* rows, const AttentionParams& params,
                                           const VarlenWork& work, FastDivide group_size,
                                           bool aligned) {
  constexpr int kVec = 8;
  constexpr int kVecs = kHeadDim / kVec;
  const T* const query = static_cast<const T*>(params.query.data);
  const uint32_t address = ptx::shared_address(rows);
  for (int i = threadIdx.x; i < kRows * kVecs; i += kThreads) {
    const int row = i / kVecs;
    const int dim = i % kVecs * kVec;
    const int offset = row * SharedLayout<kHeadDim, kRows>::kRowBytes + dim * 2;
    const QueryRow at = query_row(work, row, group_size);
    const bool exists = at.exists && dim < params.cache.head_dim;
    const T* const from = query + (exists ? row_offset(params.query, work, at) + dim : 0);
    if (aligned) {
      ptx::cp_async_16(address + offset, from, exists ? 16 : 0);
      continue;
    }
    Vec<T, kVec> vec = zero_vec<T, kVec>();
    if (exists) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) vec[e] = from[e];
    }
    store_vec(reinterpret_cast<T*>(rows + offset), vec);
  }
}

}  // namespace pagedattn::varlen_mma
