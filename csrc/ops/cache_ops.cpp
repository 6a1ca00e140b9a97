// reshape_and_cache, gather_cache, copy_blocks, swap_blocks.
#include "block_layout.h"
#include "cache_args.h"
#include "device.h"
#include "new_tensor.h"
#include "ops.h"
#include "value_checks.h"

namespace pagedattn::ops {
namespace {

const char* const kTokenWords = "[num_tokens, num_kv_heads, head_dim]";
const char* const kCacheWords = "[num_blocks, block_size, num_kv_heads, head_dim]";

// One launch per layout: consecutive caches that share it go together. Nearly always all do.
template <typename Layouts, typename Launch>
void for_each_layout(const std::vector<Layouts>& layouts, const Launch& launch) {
  for (size_t first = 0, end = 0; first < layouts.size(); first = end) {
    while (end < layouts.size() && layouts[end].src == layouts[first].src &&
           layouts[end].dst == layouts[first].dst) {
      ++end;
    }
    launch(first, end - first);
  }
}

Arg check_block_mapping_arg(const char* op, const Tensor& block_mapping) {
  Arg mapping(op, "block_mapping", block_mapping);
  mapping.has_dtype({ScalarType::Long}).has_shape("[n, 2]", {kAny, 2}).is_contiguous();
  return mapping;
}

}  // namespace

void reshape_and_cache(const Tensor& key, const Tensor& value, const Tensor& key_cache,
                       const Tensor& value_cache, const Tensor& slot_mapping,
                       const OptionalTensor& k_scale, const OptionalTensor& v_scale) {
  const char* op = "reshape_and_cache";
  const Arg k(op, "key", key), v(op, "value", value), slots(op, "slot_mapping", slot_mapping);
  k.has_dtype({ScalarType::Float, ScalarType::Half, ScalarType::BFloat16})
      .has_shape(kTokenWords, {kAny, kAny, kAny});

  ReshapeParams params;
  params.cache = check_cache({key_cache, value_cache, k_scale, v_scale}, k);
  k.has_shape(kTokenWords, {kAny, params.cache.num_kv_heads, kAny}).has_contiguous_last_dim();
  v.on_device_of(k).has_dtype_of(k).has_shape(kTokenWords, {k.size(0), k.size(1), k.size(2)});
  v.has_contiguous_last_dim();
  slots.on_device_of(k).has_dtype({ScalarType::Long}).is_contiguous();
  slots.has_shape("[num_tokens]", {k.size(0)});
  Arg(op, "key_cache", key_cache).does_not_overlap_itself();
  Arg(op, "value_cache", value_cache).does_not_overlap_itself();
  if (params.cache.key.scale.kind == ScaleKind::kPerTokenHead) {
    Arg(op, "k_scale", *k_scale).does_not_overlap_itself();
  }
  if (params.cache.value.scale.kind == ScaleKind::kPerTokenHead) {
    Arg(op, "v_scale", *v_scale).does_not_overlap_itself();
  }

  params.key = {k.data<void>(), k.stride(0), k.stride(1)};
  params.value = {v.data<void>(), v.stride(0), v.stride(1)};
  params.dtype = k.dtype();
  params.slot_mapping = slots.data<int64_t>();
  params.num_tokens = k.size(0);
  if (params.num_tokens == 0) return;
  const Target target(key);
  if (!target.is_cuda()) check_slots(op, params);
  target->reshape_and_cache(params, target.stream());
}

std::tuple<Tensor, Tensor> gather_cache(const Tensor& key_cache, const Tensor& value_cache,
                                        const Tensor& block_tables, const Tensor& cu_seq_lens,
                                        int64_t num_tokens, const OptionalTensor& k_scale,
                                        const OptionalTensor& v_scale,
                                        std::optional<ScalarType> dtype) {
  const char* op = "gather_cache";
  const Arg keys(op, "key_cache", key_cache), tables(op, "block_tables", block_tables);
  const Arg cu(op, "cu_seq_lens", cu_seq_lens);

  GatherParams params;
  params.cache = check_cache({key_cache, value_cache, k_scale, v_scale}, op);
  tables.on_device_of(keys).has_dtype({ScalarType::Int});
  tables.has_shape("[num_seqs, max_blocks_per_seq]", {kAny, kAny}).has_contiguous_last_dim();
  const int64_t num_seqs = tables.size(0);
  cu.on_device_of(keys).has_dtype({ScalarType::Int}).is_contiguous();
  cu.has_shape("[num_seqs + 1]", {num_seqs + 1});
  check_range(op, "num_tokens", num_tokens, 0, INT32_MAX);
  const ScalarType cache_dtype = keys.scalar_type();
  const ScalarType out_dtype = dtype.value_or(cache_dtype);
  if (out_dtype != cache_dtype && out_dtype != ScalarType::Float && out_dtype != ScalarType::Half &&
      out_dtype != ScalarType::BFloat16) {
    fail(op, "dtype must be None (the cache's ", dtype_name(cache_dtype),
         "), float32, float16 or bfloat16, got ", dtype_name(out_dtype));
  }

  const int64_t num_heads = params.cache.num_kv_heads, head_dim = params.cache.head_dim;
  const auto new_output = [&] {
    return new_tensor({num_tokens, num_heads, head_dim}, out_dtype, keys.device());
  };
  std::tuple<Tensor, Tensor> result(new_output(), new_output());
  const auto view = [&](const Tensor& out) {
    return TokenView{out.data_ptr(), num_heads * head_dim, head_dim};
  };
  params.block_tables = tables.data<int32_t>();
  params.block_table_stride = tables.stride(0);
  params.max_blocks_per_seq = static_cast<int32_t>(tables.size(1));
  params.cu_seq_lens = cu.data<int32_t>();
  params.num_seqs = static_cast<int32_t>(num_seqs);
  params.num_tokens = num_tokens;
  params.key = view(std::get<0>(result));
  params.value = view(std::get<1>(result));
  params.dtype = *kernel_dtype(out_dtype);
  const Target target(key_cache);
  if (!target.is_cuda()) check_values(op, params);
  if (num_tokens > 0) target->gather_cache(params, target.stream());
  return result;
}

void copy_blocks(const std::vector<Tensor>& key_caches, const std::vector<Tensor>& value_caches,
                 const Tensor& block_mapping) {
  const char* op = "copy_blocks";
  const Arg mapping = check_block_mapping_arg(op, block_mapping);
  std::vector<void*> bases;
  std::vector<BlockLayouts> layouts;
  int64_t num_blocks = 0;
  const auto add_all = [&](const char* list, const std::vector<Tensor>& caches) {
    for (size_t i = 0; i < caches.size(); ++i) {
      const Arg cache(op, list, i, caches[i]);
      cache.on_device_of(mapping).does_not_overlap_itself();
      cache.has_shape(kCacheWords, {bases.empty() ? kAny : num_blocks, kAny, kAny, kAny});
      num_blocks = cache.size(0);
      bases.push_back(cache.data<void>());
      layouts.push_back(block_layouts(cache, cache));
    }
  };
  if (key_caches.size() != value_caches.size()) {
    fail(op, "key_caches and value_caches must have the same length, got ", key_caches.size(),
         " and ", value_caches.size());
  }
  add_all("key_caches", key_caches);
  add_all("value_caches", value_caches);

  const int64_t num_pairs = mapping.size(0);
  if (num_pairs == 0 || bases.empty()) return;
  const Target target(block_mapping);
  if (!target.is_cuda()) {
    check_block_mapping(op, mapping.data<int64_t>(), num_pairs, num_blocks, num_blocks, true);
  }
  for_each_layout(layouts, [&](size_t first, size_t count) {
    CopyBlocksParams params;
    params.caches = bases.data() + first;
    params.num_caches = static_cast<int64_t>(count);
    params.layout = layouts[first].src;
    params.mapping = mapping.data<int64_t>();
    params.num_pairs = num_pairs;
    target->copy_blocks(params, target.stream());
  });
}

void swap_blocks(const std::vector<Tensor>& src, const std::vector<Tensor>& dst,
                 const Tensor& block_mapping) {
  const char* op = "swap_blocks";
  const Arg mapping = check_block_mapping_arg(op, block_mapping);
  mapping.on_cpu();
  if (src.size() != dst.size()) {
    fail(op, "src and dst must have the same length, got ", src.size(), " and ", dst.size());
  }
  if (src.empty()) return;
  const Arg first_src(op, "src[0]", src[0]), first_dst(op, "dst[0]", dst[0]);
  first_src.has_shape(kCacheWords, {kAny, kAny, kAny, kAny});
  first_dst.has_shape(kCacheWords, {kAny, kAny, kAny, kAny});
  // Nothing would order a second GPU's work after copies on the first one's stream.
  if (first_src.is_cuda() && first_dst.is_cuda()) {
    first_dst.on_device_of(first_src);
  }
  std::vector<const void*> src_bases;
  std::vector<void*> dst_bases;
  std::vector<BlockLayouts> layouts;
  bool in_place = false;
  for (size_t i = 0; i < src.size(); ++i) {
    const Arg s(op, "src", i, src[i]), d(op, "dst", i, dst[i]);
    s.on_device_of(first_src);
    d.on_device_of(first_dst).has_dtype_of(s).does_not_overlap_itself();
    s.has_shape(kCacheWords, {first_src.size(0), kAny, kAny, kAny});
    d.has_shape(kCacheWords, {first_dst.size(0), s.size(1), s.size(2), s.size(3)});
    src_bases.push_back(s.data<void>());
    dst_bases.push_back(d.data<void>());
    layouts.push_back(block_layouts(s, d));
    in_place = in_place || src_bases.back() == dst_bases.back();
  }

  const int64_t num_pairs = mapping.size(0);
  check_block_mapping(op, mapping.data<int64_t>(), num_pairs, first_src.size(0), first_dst.size(0),
                      in_place);
  if (num_pairs == 0) return;
  const Target target(first_src.is_cuda() ? src[0] : dst[0]);
  for_each_layout(layouts, [&](size_t first, size_t count) {
    SwapBlocksParams params;
    params.src = src_bases.data() + first;
    params.dst = dst_bases.data() + first;
    params.num_caches = static_cast<int64_t>(count);
    params.src_layout = layouts[first].src;
    params.dst_layout = layouts[first].dst;
    params.mapping = mapping.data<int64_t>();
    params.num_pairs = num_pairs;
    target->swap_blocks(params, target.stream());
  });
}

}  // namespace pagedattn::ops
