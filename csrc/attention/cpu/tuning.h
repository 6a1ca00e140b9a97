// What attention leaves to the CPU's make, not to its instruction set.
#pragma once

namespace pagedattn {

struct Tuning {
  // How far ahead memory is asked for a row, in chunks of rows (tile.h); 0: not.
  int prefetch_far;
  int prefetch_near;
  bool prefetch_soon;  // a last time, a few rows ahead (kSoon in tile.h)
  bool dots_bf16;  // vdpbf16ps, where there is one, does more products per cycle than FMA in fp32
};

const Tuning& tuning();

}  // namespace pagedattn
