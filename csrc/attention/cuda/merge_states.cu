#include "merge_states.cuh"

#include "../../common/cuda/alignment.h"
#include "../../common/cuda/dispatch.h"
#include "../../common/cuda/launch.h"
#include "kernels.h"

namespace pagedattn::cuda {

void merge_states(const MergeParams& params, Stream stream) {
  with_float_type(params.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kVec = 16 / sizeof(T);
    Alignment alignment;
    alignment.add(params.head_dim * sizeof(T));
    for (const TokenView& view : {params.out, params.prefix_out, params.suffix_out}) {
      alignment.add(view, sizeof(T));
    }
    const auto kernel =
        alignment.allows(16) ? merge_states_kernel<T, kVec> : merge_states_kernel<T, 1>;
    const int64_t num_rows = params.num_tokens * params.num_heads;
    launch(kernel, grid_size((num_rows + kMergeWarps - 1) / kMergeWarps, "merge_states"),
           kMergeWarps * kWarpSize, 0, stream, "merge_states", params);
  });
}

}  // namespace pagedattn::cuda
