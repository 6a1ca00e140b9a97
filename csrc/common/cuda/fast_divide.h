// Division by a number known only at run time, as a multiplication and a shift (Granlund and
// Montgomery, "Division by invariant integers using multiplication", 1994).
#pragma once

#include <cstdint>

#include "../host_device.h"

namespace pagedattn {

// For numerators 0 <= n < 2^31 and divisors 1 <= d < 2^31: with p = 31 + ceil(log2 d),
// n / d = n * ceil(2^p / d) >> p; the multiplier fits 32 bits and the product 64.
struct FastDivide {
  uint32_t multiplier = uint32_t{1} << 31;
  int32_t shift = 31;
  int32_t divisor = 1;

  FastDivide() = default;
  explicit FastDivide(int32_t d) : divisor(d) {
    int32_t log2 = 0;
    while ((int64_t{1} << log2) < d) ++log2;
    shift = 31 + log2;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << shift) + d - 1) / d);
  }

  PAGEDATTN_HOST_DEVICE int32_t quotient(int32_t n) const {
    return static_cast<int32_t>((uint64_t{static_cast<uint32_t>(n)} * multiplier) >> shift);
  }
};

}  // namespace pagedattn
