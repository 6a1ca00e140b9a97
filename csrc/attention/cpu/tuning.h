// What attention leaves to the CPU's make, not to its instruction set.
#pragma once

namespace pagedattn {

struct Tuning {
  // How far ahead memory is asked for a row: kSoon rows (tile.h) in fp32, and in chunks of rows; 0:
  // not.
  bool prefetch_soon;
  int prefetch_near;
  int prefetch_far;
  bool dots_bf16;  // vdpbf16ps, where there is one, does more products per cycle than FMA in fp32
};

const Tuning& tuning();

}  // namespace pagedattn
