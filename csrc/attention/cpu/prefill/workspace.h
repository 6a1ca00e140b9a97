// What one thread needs for a unit of prefill, in one allocation.
#pragma once

#include <cstdlib>
#include <cstring>

#include "pack.h"
#include "weights.h"

namespace pagedattn::PAGEDATTN_ISA {

// Row stride of a strip's scores: not a multiple of the page size, so that rows do not share lines
// of the L1 cache.
constexpr int kScoreStride = kTileTokens + 16;

template <typename Kernel>
class Workspace {
 public:
  Workspace(const PackedShape<Kernel>& shape, int max_rows) {
    const int64_t rows = round_up(max_rows, Kernel::kRows);
    const int64_t sizes[] = {rows * shape.key_units,
                             rows * shape.dims,
                             int64_t{kTileTokens} * shape.key_units,
                             int64_t{shape.kTokenUnits} * shape.dims,
                             int64_t{kScoreStride} * Kernel::kStripRows,
                             int64_t{kWidth} * shape.key_units};
    float** const parts[] = {&query, &out, &keys, &values, &scores, &staging};
    constexpr int64_t kLine = 64 / sizeof(float);
    int64_t total = 0;
    for (const int64_t size : sizes) total += size + kLine;
    floats_ = static_cast<float*>(std::aligned_alloc(64, total * sizeof(float) / 64 * 64 + 64));
    if (floats_ == nullptr) std::abort();
    float* next = floats_;
    for (int i = 0; i < 6; ++i) {
      *parts[i] = next;
      next += (sizes[i] + kLine - 1) / kLine * kLine;
    }
    std::memset(query, 0, sizes[0] * sizeof(float));  // what lies past head_dim stays 0
    std::memset(staging, 0, sizes[5] * sizeof(float));
  }
  ~Workspace() { std::free(floats_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  float* query;    // [row][key_units], in the micro-kernel's units
  float* out;      // [row][dims]
  float* keys;     // pack.h
  float* values;   // pack.h
  float* scores;   // [row of a strip][kTileTokens], then weights
  float* staging;  // pack.h

 private:
  float* floats_;
};

}  // namespace pagedattn::PAGEDATTN_ISA
