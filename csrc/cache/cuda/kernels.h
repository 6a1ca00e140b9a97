// The cache half of the CUDA KernelTable.
#pragma once

#include "../../kernels.h"

namespace pagedattn::cuda {

void reshape_and_cache(const ReshapeParams& params, Stream stream);
void gather_cache(const GatherParams& params, Stream stream);
void copy_blocks(const CopyBlocksParams& params, Stream stream);
void swap_blocks(const SwapBlocksParams& params, Stream stream);

}  // namespace pagedattn::cuda
