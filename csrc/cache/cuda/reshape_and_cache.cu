#include "reshape_and_cache.cuh"

#include "../../common/cuda/alignment.h"
#include "../../common/cuda/dispatch.h"
#include "../../common/cuda/launch.h"
#include "kernels.h"

namespace pagedattn::cuda {
namespace {

constexpr const char* kName = "reshape_and_cache";

void store_rows(const ReshapeParams& params, unsigned num_ctas, Stream stream) {
  const int element_bytes = element_size(params.cache.dtype);
  Alignment alignment;
  alignment.add(int64_t{params.cache.head_dim} * element_bytes);
  for (const TokenView& view : {params.key, params.value}) alignment.add(view, element_bytes);
  for (const CacheView& view : {params.cache.key, params.cache.value}) {
    alignment.add(view, element_bytes);
  }
  with_widest_word(alignment, [&]<int kBytes>() {
    launch(store_rows_kernel<kBytes>, num_ctas, kRowWarps * kWarpSize, 0, stream, kName, params,
           element_bytes);
  });
}

void quantize_rows(const ReshapeParams& params, unsigned num_ctas, Stream stream) {
  with_float_type(params.dtype, [&](auto from) {
    using From = typename decltype(from)::Type;
    Alignment alignment;
    for (const TokenView& view : {params.key, params.value}) alignment.add(view, sizeof(From));
    const bool aligned = alignment.allows(kQuantizeVec * sizeof(From));
    with_quantized_type(params.cache.dtype, [&](auto to) {
      using To = typename decltype(to)::Type;
      launch(quantize_rows_kernel<From, To>, num_ctas, kRowWarps * kWarpSize, 0, stream, kName,
             params, aligned);
    });
  });
}

}  // namespace

void reshape_and_cache(const ReshapeParams& params, Stream stream) {
  const unsigned num_ctas =
      grid_size(num_row_ctas(params.num_tokens, params.cache.num_kv_heads), kName);
  if (is_quantized(params.cache.dtype)) {
    quantize_rows(params, num_ctas, stream);
  } else {
    store_rows(params, num_ctas, stream);
  }
}

}  // namespace pagedattn::cuda
