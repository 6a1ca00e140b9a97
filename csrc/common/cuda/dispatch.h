// From a dtype known at run time to a type: visit(TypeTag<T>{}) with the T that the dtype names.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <stdexcept>

#include "../dtype.h"

namespace pagedattn {

template <typename T>
struct TypeTag {
  using Type = T;
};

// fp32, fp16 and bf16.
template <typename Visit>
void with_float_type(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(TypeTag<float>{});
    case DType::kFloat16:
      return visit(TypeTag<__half>{});
    case DType::kBFloat16:
      return visit(TypeTag<__nv_bfloat16>{});
    default:
      throw std::runtime_error("pagedattn: expected float32, float16 or bfloat16");
  }
}

// The 8-bit types.
template <typename Visit>
void with_quantized_type(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::kFloat8E4M3:
      return visit(TypeTag<__nv_fp8_e4m3>{});
    case DType::kFloat8E5M2:
      return visit(TypeTag<__nv_fp8_e5m2>{});
    case DType::kInt8:
      return visit(TypeTag<int8_t>{});
    default:
      throw std::runtime_error("pagedattn: expected float8_e4m3fn, float8_e5m2 or int8");
  }
}

// An unsigned word of the width of whatever a cache can hold: visit(TypeTag<uint16_t>{}) for fp16.
template <typename Visit>
void with_storage_word(DType dtype, Visit&& visit) {
  switch (element_size(dtype)) {
    case 1:
      return visit(TypeTag<uint8_t>{});
    case 2:
      return visit(TypeTag<uint16_t>{});
    default:
      return visit(TypeTag<uint32_t>{});
  }
}

}  // namespace pagedattn
