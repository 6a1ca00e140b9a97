#include "copy_blocks.cuh"

#include <algorithm>

#include "../../common/cuda/alignment.h"
#include "../../common/cuda/launch.h"
#include "kernels.h"

namespace pagedattn::cuda {
namespace {

constexpr const char* kName = "copy_blocks";

template <int kBytes, int kCapacity>
void launch_copy(const CopyBlocksParams& params, int64_t first_cache, int64_t num_caches,
                 Stream stream) {
  CopyBatch<kCapacity> batch;
  batch.layout = params.layout;
  batch.mapping = params.mapping;
  std::copy_n(params.caches + first_cache, num_caches, batch.caches);
  const dim3 grid(grid_size(params.num_pairs, kName), static_cast<unsigned>(num_caches),
                  num_block_parts(params.layout));
  launch(copy_blocks_kernel<kBytes, kCapacity>, grid, kCopyThreads, 0, stream, kName, batch);
}

}  // namespace

void copy_blocks(const CopyBlocksParams& params, Stream stream) {
  Alignment alignment;
  add_layout(alignment, params.layout);
  for (int64_t c = 0; c < params.num_caches; ++c) alignment.add(params.caches[c]);

  with_widest_word(alignment, [&]<int kBytes>() {
    for (int64_t first = 0; first < params.num_caches; first += kMaxCopyCaches) {
      const int64_t count = std::min<int64_t>(kMaxCopyCaches, params.num_caches - first);
      if (count <= kFewCopyCaches) {
        launch_copy<kBytes, kFewCopyCaches>(params, first, count, stream);
      } else {
        launch_copy<kBytes, kMaxCopyCaches>(params, first, count, stream);
      }
    }
  });
}

}  // namespace pagedattn::cuda
