#include "gather_cache.cuh"

#include "../../common/cuda/alignment.h"
#include "../../common/cuda/dispatch.h"
#include "../../common/cuda/launch.h"
#include "kernels.h"

namespace pagedattn::cuda {
namespace {

constexpr const char* kName = "gather_cache";

void gather_rows(const GatherParams& params, unsigned num_ctas, Stream stream) {
  const int element_bytes = element_size(params.dtype);
  Alignment alignment;
  alignment.add(int64_t{params.cache.head_dim} * element_bytes);
  for (const TokenView& view : {params.key, params.value}) alignment.add(view, element_bytes);
  for (const CacheView& view : {params.cache.key, params.cache.value}) {
    alignment.add(view, element_bytes);
  }
  with_widest_word(alignment, [&]<int kBytes>() {
    launch(gather_rows_kernel<kBytes>, num_ctas, kRowWarps * kWarpSize, 0, stream, kName, params,
           FastDivide(params.cache.block_size), element_bytes);
  });
}

void gather_converted_rows(const GatherParams& params, unsigned num_ctas, Stream stream) {
  with_storage_word(params.cache.dtype, [&](auto tag) {
    launch(gather_converted_rows_kernel<typename decltype(tag)::Type>, num_ctas,
           kRowWarps * kWarpSize, 0, stream, kName, params, FastDivide(params.cache.block_size));
  });
}

}  // namespace

void gather_cache(const GatherParams& params, Stream stream) {
  if (params.num_seqs == 0) return;
  const unsigned num_ctas =
      grid_size(num_row_ctas(params.num_tokens, params.cache.num_kv_heads), kName);
  if (params.dtype == params.cache.dtype) {
    gather_rows(params, num_ctas, stream);
  } else {
    gather_converted_rows(params, num_ctas, stream);
  }
}

}  // namespace pagedattn::cuda
