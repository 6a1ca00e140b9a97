// The cache half of a KernelTable. What converts elements is compiled per instruction set; what
// only moves bytes is compiled once.
#pragma once

#include "../../kernels.h"

namespace pagedattn {

void copy_blocks_cpu(const CopyBlocksParams& params, Stream);
void swap_blocks_cpu(const SwapBlocksParams& params, Stream);

#ifdef PAGEDATTN_ISA
namespace PAGEDATTN_ISA {

void reshape_and_cache(const ReshapeParams& params, Stream);
void gather_cache(const GatherParams& params, Stream);

}  // namespace PAGEDATTN_ISA
#endif

}  // namespace pagedattn
