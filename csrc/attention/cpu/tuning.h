// What attention leaves to the CPU's make, not to its instruction set.
#pragma once

namespace pagedattn {

struct Tuning {
  bool prefetch_soon;  // ask memory a third time for rows of float (kSoon in prefetch.h)
  bool dots_bf16;  // vdpbf16ps, where there is one, does more products per cycle than FMA in fp32
};

const Tuning& tuning();

}  // namespace pagedattn
