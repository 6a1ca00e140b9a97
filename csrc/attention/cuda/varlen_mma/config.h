// What the launcher derives from the parameters, so that the kernel finds it in constant memory.
#pragma once

#include <cstdint>

#include "../../../common/cuda/fast_divide.h"

namespace pagedattn::varlen_mma {

// Of K or V, in bytes.
struct PageStrides {
  uint32_t block;
  uint32_t token;
  uint32_t head;
};

struct VarlenMmaConfig {
  FastDivide group_size;
  PageStrides key_strides;
  PageStrides value_strides;
  uint32_t row_bytes;
  int32_t max_large_tiles;  // see work.cuh
  // A logit in units of log2 is factor * score; with a rule, what masks.cuh makes of rule_scale *
  // score first, and factor is 1.
  bool has_logit_rule;
  float factor;
  float rule_scale;
  bool aligned_query;  // rows start at multiples of 16 bytes
  bool aligned_out;
};

}  // namespace pagedattn::varlen_mma
