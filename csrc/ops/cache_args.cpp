#include "cache_args.h"

namespace pagedattn::ops {
namespace {

// Other projects' key layouts are common enough to be recognised and named.
void recognise_foreign_layout(const Arg& cache, int64_t head_dim) {
  const auto sizes = cache.tensor().sizes();
  constexpr auto kRemedy =
      "; turn it into [num_blocks, block_size, num_kv_heads, head_dim] with pagedattn.layouts";
  if (sizes.size() == 5) {
    cache.fail("has shape ", shape_text(cache.tensor()),
               ", which looks like the packed layout [num_blocks, num_kv_heads, head_dim / x, "
               "block_size, x]"
               " or a stacked K/V pair",
               kRemedy);
  }
  if (cache.dim() == 4 && head_dim != kAny && cache.size(3) != head_dim &&
      cache.size(2) == head_dim) {
    cache.fail("has shape ", shape_text(cache.tensor()),
               ", which looks like the layout [num_blocks, num_kv_heads, head_dim, block_size]",
               kRemedy);
  }
}

ScaleView check_scale(const Arg& scale, const Arg& cache) {
  if (!is_quantized(cache.dtype())) {
    scale.fail("must be None for an unquantised cache (", cache.name(), " has dtype ",
               dtype_name(cache.scalar_type()), ")");
  }
  scale.on_device_of(cache).has_dtype({ScalarType::Float});
  const int64_t num_heads = cache.size(2);
  ScaleView view;
  view.data = scale.data<float>();
  if (scale.tensor().numel() == 1 && scale.dim() <= 1) {
    view.kind = ScaleKind::kPerTensor;
  } else if (scale.dim() == 1 && scale.size(0) == num_heads) {
    view.kind = ScaleKind::kPerHead;
    view.head_stride = scale.stride(0);
  } else if (scale.dim() == 3 && scale.size(0) == cache.size(0) && scale.size(1) == cache.size(1) &&
             scale.size(2) == num_heads) {
    view.kind = ScaleKind::kPerTokenHead;
    view.block_stride = scale.stride(0);
    view.token_stride = scale.stride(1);
    view.head_stride = scale.stride(2);
  } else {
    scale.fail("must have shape [] or [1] (per tensor), [", num_heads, "] (per head) or [",
               cache.size(0), ", ", cache.size(1), ", ", num_heads, "] (per token and head), got ",
               shape_text(scale.tensor()));
  }
  return view;
}

CacheView check_half(const Arg& cache, const OptionalTensor& scale, const char* scale_name) {
  cache.has_contiguous_last_dim();
  if (cache.is_cuda()) {
    // 16-byte copies; an 8-bit row of an odd number of 8-byte pieces is read 8 bytes at a time.
    cache.is_aligned(cache.size(3) * element_size(cache.dtype()) % 16 == 0 ? 16 : 8);
  }
  CacheView view;
  view.data = cache.data<void>();
  view.block_stride = cache.stride(0);
  view.token_stride = cache.stride(1);
  view.head_stride = cache.stride(2);
  if (scale) view.scale = check_scale(Arg(cache.op(), scale_name, *scale), cache);
  return view;
}

KvCacheView check_pair(const Arg& key, const Arg& value, const CacheArgs& args) {
  const char* op = key.op();
  value.on_device_of(key).has_dtype_of(key).has_shape(
      "[num_blocks, block_size, num_kv_heads, head_dim], that of key_cache,",
      {key.size(0), key.size(1), key.size(2), key.size(3)});

  KvCacheView view;
  view.dtype = key.dtype();
  view.num_blocks = key.size(0);
  check_range(op, "num_kv_heads, key_cache.size(2),", key.size(2), 1, INT32_MAX);
  view.num_kv_heads = static_cast<int32_t>(key.size(2));

  const int64_t block_size = key.size(1);
  const bool cpu_token_blocks = block_size == 1 && key.is_cpu();
  if (!cpu_token_blocks && (block_size < 8 || block_size > 512 || block_size % 8 != 0)) {
    fail(op, "block_size, key_cache.size(1), must be a multiple of 8 from 8 to 512",
         key.is_cpu() ? ", or 1" : "", "; got ", block_size, " (key_cache has shape ",
         shape_text(key.tensor()), ")");
  }
  view.block_size = static_cast<int32_t>(block_size);

  const int64_t head_dim = key.size(3);
  if (head_dim < 32 || head_dim > 256 || head_dim % 8 != 0) {
    fail(op, "head_dim, key_cache.size(3), must be a multiple of 8 from 32 to 256; got ", head_dim,
         " (key_cache has shape ", shape_text(key.tensor()), ")");
  }
  view.head_dim = static_cast<int32_t>(head_dim);

  view.key = check_half(key, args.k_scale, "k_scale");
  view.value = check_half(value, args.v_scale, "v_scale");
  return view;
}

constexpr auto kCacheWords = "[num_blocks, block_size, num_kv_heads, head_dim]";

}  // namespace

KvCacheView check_cache(const CacheArgs& args, const Arg& like) {
  const Arg key(like.op(), "key_cache", args.key_cache);
  const Arg value(like.op(), "value_cache", args.value_cache);
  key.on_device_of(like);
  const ScalarType dtype = like.scalar_type();
  key.has_dtype({dtype, ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2, ScalarType::Char});
  const int64_t head_dim = like.size(2);
  recognise_foreign_layout(key, head_dim);
  recognise_foreign_layout(value, head_dim);
  key.has_shape(kCacheWords, {kAny, kAny, kAny, head_dim});
  return check_pair(key, value, args);
}

KvCacheView check_cache(const CacheArgs& args, const char* op) {
  const Arg key(op, "key_cache", args.key_cache);
  const Arg value(op, "value_cache", args.value_cache);
  key.has_dtype({ScalarType::Float, ScalarType::Half, ScalarType::BFloat16,
                 ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2, ScalarType::Char});
  recognise_foreign_layout(key, kAny);
  recognise_foreign_layout(value, kAny);
  key.has_shape(kCacheWords, {kAny, kAny, kAny, kAny});
  return check_pair(key, value, args);
}

}  // namespace pagedattn::ops
