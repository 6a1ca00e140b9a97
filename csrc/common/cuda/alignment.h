// How wide the accesses to a set of rows may be: found on the host, once per call.
#pragma once

#include <cstdint>

#include "../../cache/params.h"

namespace pagedattn {

class Alignment {
 public:
  // An address, or a number of bytes between two of them.
  void add(int64_t bytes) { bits_ |= static_cast<uint64_t>(bytes); }
  void add(const void* address) { bits_ |= reinterpret_cast<uintptr_t>(address); }

  void add(const TokenView& view, int64_t element_bytes) {
    add(view.data);
    add(view.token_stride * element_bytes);
    add(view.head_stride * element_bytes);
  }

  void add(const CacheView& view, int64_t element_bytes) {
    add(view.data);
    add(view.block_stride * element_bytes);
    add(view.token_stride * element_bytes);
    add(view.head_stride * element_bytes);
  }

  // Accesses of that many bytes (a power of two) are aligned.
  bool allows(uint64_t bytes) const { return (bits_ & (bytes - 1)) == 0; }

 private:
  uint64_t bits_ = 0;
};

// visit.operator()<N>() with the widest N in {16, 8, 4, 2, 1} bytes that is allowed.
template <typename Visit>
void with_widest_word(const Alignment& alignment, Visit&& visit) {
  if (alignment.allows(16)) return visit.template operator()<16>();
  if (alignment.allows(8)) return visit.template operator()<8>();
  if (alignment.allows(4)) return visit.template operator()<4>();
  if (alignment.allows(2)) return visit.template operator()<2>();
  return visit.template operator()<1>();
}

}  // namespace pagedattn
