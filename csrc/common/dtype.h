// Element types as the kernels know them: what a tensor's dtype becomes on its way into a plain
// struct.
#pragma once

#include <cstdint>

namespace pagedattn {

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16, kFloat8E4M3, kFloat8E5M2, kInt8 };

constexpr int element_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kInt8:
      return 1;
  }
  return 0;
}

// An 8-bit storage type: value = stored * scale.
constexpr bool is_quantized(DType dtype) { return element_size(dtype) == 1; }

}  // namespace pagedattn
