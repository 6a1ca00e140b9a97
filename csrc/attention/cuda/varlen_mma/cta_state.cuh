// What all threads of a CTA know about its work, in shared memory: the accumulators leave no
// registers for it. It lies in the padding of the first query rows, 16 bytes in each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../varlen_rows.cuh"
#include "partition.cuh"
#include "tile.h"

namespace pagedattn::varlen_mma {

// The keys to walk over. A tile of them that begins at `token` is seen whole by all rows where
// token - whole_begin < num_whole, unsigned.
struct KeyWalk {
  KvRange seen;  // by any row
  int32_t whole_begin;
  uint32_t num_whole;
};

template <int kHeadDim>
class CtaState {
 public:
  __device__ __forceinline__ explicit CtaState(unsigned char* shared)
      : padding_(shared + Matrix<kHeadDim>::kRowDataBytes) {}

  // To be followed by a barrier.
  __device__ __forceinline__ void store(const VarlenWork& work, const TileRange& range,
                                        const Partition& partition) const {
    if (threadIdx.x != 0) return;
    const int num_whole = range.all.end - range.all.begin - (kTileTokens - 1);
    at(0) = make_int4(range.any.begin, range.any.end, range.all.begin, max(num_whole, 0));
    at(1) = make_int4(work.seq, work.kv_head, work.first_row, work.num_rows);
    at(2) =
        make_int4(work.first_token, work.query_len, work.seq_len, work.num_rows - work.first_row);
    at(3) = make_int4(partition.index, partition.count, partition.size, 0);
  }

  __device__ __forceinline__ KeyWalk keys() const {
    const int4 words = at(0);
    return {{words.x, words.y}, words.z, static_cast<uint32_t>(words.w)};
  }

  // Of the sequence, from the CTA's first one on.
  __device__ __forceinline__ int32_t num_rows() const { return at(2).w; }

  __device__ __forceinline__ Partition partition() const {
    const int4 words = at(3);
    return {words.x, words.y, words.z};
  }

  __device__ __forceinline__ VarlenWork work() const {
    const int4 low = at(1);
    const int4 high = at(2);
    return {low.x, low.y, low.z, low.w, high.x, high.y, high.z};
  }

 private:
  __device__ __forceinline__ int4& at(int i) const {
    return *reinterpret_cast<int4*>(padding_ + i * Matrix<kHeadDim>::kRowBytes);
  }

  unsigned char* padding_;
};

// Larger tiles are never of a split sequence, and their kernels have no code for it.
template <int kRows, int kHeadDim>
__device__ __forceinline__ Partition tile_partition(const CtaState<kHeadDim>& cta) {
  return kRows <= kMediumRows ? cta.partition() : unsplit();
}

}  // namespace pagedattn::varlen_mma
