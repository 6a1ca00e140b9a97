// Rows of any element type to and from rows of float, the type chosen at run time.
#pragma once

#include "../../cache/params.h"
#include "simd.h"

namespace pagedattn::PAGEDATTN_ISA {

// Calls f(T{}) with the C++ type that stores `dtype` and returns what it returns.
template <typename F>
inline auto with_storage_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat16:
      return f(Half{});
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kFloat8E4M3:
      return f(Float8E4M3{});
    case DType::kFloat8E5M2:
      return f(Float8E5M2{});
    case DType::kInt8:
      break;
  }
  return f(int8_t{});
}

// The same for the types of query and out.
template <typename F>
inline auto with_compute_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat16:
      return f(Half{});
    case DType::kBFloat16:
      return f(BFloat16{});
    default:
      return f(float{});
  }
}

// f(vector, index, count) for each vector of a row of n elements.
template <typename T, typename F>
inline void for_each_vector(const T* row, int n, const F& f) {
  int i = 0;
  for (; i + kWidth <= n; i += kWidth) f(load(row + i), i, kWidth);
  if (i < n) f(load_tail(row + i, n - i), i, n - i);
}

// Widens a row and pads it with zeros to a multiple of kWidth.
template <typename T>
inline void read_row(const T* row, int n, float* out) {
  for_each_vector(row, n, [&](Vec v, int i, int) { store(out + i, v); });
}

// Rounds factor * row to T.
template <typename T>
inline void write_row(const float* row, float factor, int n, T* out) {
  for_each_vector(row, n, [&](Vec v, int i, int count) { store(out + i, v * Vec(factor), count); });
}

// Row of one head of one token, of elements of type T.
template <typename T>
inline T* row_of(const TokenView& view, int64_t token, int64_t head) {
  return static_cast<T*>(view.data) + token * view.token_stride + head * view.head_stride;
}

}  // namespace pagedattn::PAGEDATTN_ISA
