// A loop whose index is a constant expression, for instructions with immediate operands.
#pragma once

#include <utility>

namespace pagedattn {

template <int kValue>
struct ConstantIndex {
  __device__ constexpr operator int() const { return kValue; }
};

// visit(ConstantIndex<i>{}) for i = 0, 1, ... kCount - 1.
template <int kCount, typename Visit>
__device__ __forceinline__ void unrolled(Visit&& visit) {
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) {
    (visit(ConstantIndex<kIndices>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

}  // namespace pagedattn
