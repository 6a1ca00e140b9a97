// paged_attention_v1, paged_attention_v2, paged_attention, paged_attention_varlen,
// merge_attention_states.
#include <torch/csrc/stable/ops.h>

#include <cmath>

#include "cache_args.h"
#include "device.h"
#include "new_tensor.h"
#include "ops.h"
#include "value_checks.h"

namespace pagedattn::ops {
namespace {

const char* const kTokenWords = "[num_tokens, num_q_heads, head_dim]";

// The keyword arguments that every attention op has.
struct MaskArgs {
  int64_t window_left;
  double softcap;
  const OptionalTensor& alibi_slopes;
  const OptionalTensor& sinks;
};

// The arguments that every attention op has, checked; `params` lacks only what its op adds.
class AttentionCall {
 public:
  AttentionCall(const char* op, const Tensor& query, const CacheArgs& cache,
                const Tensor& block_tables, const Tensor& seq_lens, int64_t max_seq_len,
                double scale, const MaskArgs& masks)
      : op_(op), query_(op, "query", query) {
    query_.has_dtype({ScalarType::Float, ScalarType::Half, ScalarType::BFloat16})
        .has_shape(kTokenWords, {kAny, kAny, kAny})
        .has_contiguous_last_dim();
    params.cache = check_cache(cache, query_);
    params.dtype = query_.dtype();
    params.query = token_view(query_);
    params.num_tokens = query_.size(0);
    check_heads();
    check_tables(block_tables, seq_lens);
    check_range(op, "max_seq_len", max_seq_len, 0, INT32_MAX);
    params.max_seq_len = max_seq_len;
    params.scale = static_cast<float>(scale);
    if (!std::isfinite(params.scale)) fail(op, "scale must be a finite float32, got ", scale);
    check_masks(masks);
  }

  void set_out(const Tensor& out) {
    const Arg arg(op_, "out", out);
    arg.on_device_of(query_).has_dtype_of(query_);
    arg.has_shape(kTokenWords, {query_.size(0), query_.size(1), query_.size(2)});
    arg.has_contiguous_last_dim().does_not_overlap_itself();
    params.out = token_view(arg);
  }

  void set_lse(const OptionalTensor& lse) {
    if (!lse) return;
    const Arg arg(op_, "lse", *lse);
    arg.on_device_of(query_).has_dtype({ScalarType::Float}).does_not_overlap_itself();
    arg.has_shape("[num_tokens, num_q_heads]", {query_.size(0), query_.size(1)});
    params.lse = arg.data<float>();
    params.lse_token_stride = arg.stride(0);
    params.lse_head_stride = arg.stride(1);
  }

  void expect_one_query_per_sequence() const {
    query_.has_shape("[num_seqs, num_q_heads, head_dim], one token per row of block_tables,",
                     {params.num_seqs, kAny, kAny});
  }

  void set_partials(const Tensor& partial_out, const Tensor& partial_lse, int64_t partition_size) {
    check_range(op_, "partition_size", partition_size, 64, INT32_MAX);
    if (partition_size % 64 != 0) {
      fail(op_, "partition_size must be a multiple of 64, got ", partition_size);
    }
    const Arg out(op_, "partial_out", partial_out), lse(op_, "partial_lse", partial_lse);
    out.on_device_of(query_).has_dtype({ScalarType::Float}).is_contiguous();
    lse.on_device_of(query_).has_dtype({ScalarType::Float}).is_contiguous();
    out.has_shape("[num_tokens, num_q_heads, num_partitions, head_dim]",
                  {query_.size(0), query_.size(1), kAny, query_.size(2)});
    lse.has_shape("[num_tokens, num_q_heads, num_partitions], that of partial_out,",
                  {query_.size(0), query_.size(1), out.size(2)});
    const int64_t needed = count_partitions(params.max_seq_len, partition_size);
    if (out.size(2) < needed) {
      fail(op_,
           "partial_out and partial_lse must have num_partitions >= "
           "max(1, ceil(max_seq_len / partition_size)) = ",
           needed, ", got ", out.size(2));
    }
    params.partial.partition_size = static_cast<int32_t>(partition_size);
    params.partial.num_partitions = static_cast<int32_t>(out.size(2));
    params.partial.out = out.data<float>();
    params.partial.lse = lse.data<float>();
  }

  void set_queries(const Tensor& cu_seqlens_q, int64_t max_query_len, bool causal,
                   const OptionalTensor& tree_mask) {
    const Arg cu(op_, "cu_seqlens_q", cu_seqlens_q);
    cu.on_device_of(query_).has_dtype({ScalarType::Int}).is_contiguous();
    cu.has_shape("[num_seqs + 1]", {int64_t{params.num_seqs} + 1});
    check_range(op_, "max_query_len", max_query_len, 0, INT32_MAX);
    params.cu_seqlens_q = cu.data<int32_t>();
    params.max_query_len = max_query_len;
    params.masks.causal = causal;
    if (!tree_mask) return;
    const Arg mask(op_, "tree_mask", *tree_mask);
    mask.on_device_of(query_).has_dtype({ScalarType::Bool});
    mask.has_shape("[num_tokens, max_query_len]", {query_.size(0), max_query_len});
    params.masks.tree_mask = mask.data<bool>();
    params.masks.tree_mask_token_stride = mask.stride(0);
    params.masks.tree_mask_column_stride = mask.stride(1);
  }

  // The device to run on, once the values that the host may look at are checked.
  Target target() const {
    Target target(query_.tensor());
    if (!target.is_cuda()) check_values(op_, params);
    return target;
  }

  AttentionParams params;

 private:
  static TokenView token_view(const Arg& arg) {
    return {arg.data<void>(), arg.stride(0), arg.stride(1)};
  }

  void check_heads() {
    const int64_t q_heads = query_.size(1);
    const int32_t kv_heads = params.cache.num_kv_heads;
    check_range(op_, "num_q_heads, query.size(1),", q_heads, 1, INT32_MAX);
    if (q_heads % kv_heads != 0) {
      query_.fail("must have a number of heads that the ", kv_heads,
                  " heads of key_cache divide, got ", q_heads);
    }
    params.num_q_heads = static_cast<int32_t>(q_heads);
  }

  void check_tables(const Tensor& block_tables, const Tensor& seq_lens) {
    const Arg tables(op_, "block_tables", block_tables), lens(op_, "seq_lens", seq_lens);
    tables.on_device_of(query_).has_dtype({ScalarType::Int});
    tables.has_shape("[num_seqs, max_blocks_per_seq]", {kAny, kAny}).has_contiguous_last_dim();
    lens.on_device_of(query_).has_dtype({ScalarType::Int}).is_contiguous();
    lens.has_shape("[num_seqs]", {tables.size(0)});
    check_range(op_, "num_seqs, block_tables.size(0),", tables.size(0), 0, INT32_MAX);
    check_range(op_, "max_blocks_per_seq, block_tables.size(1),", tables.size(1), 0, INT32_MAX);
    params.block_tables = tables.data<int32_t>();
    params.block_table_stride = tables.stride(0);
    params.num_seqs = static_cast<int32_t>(tables.size(0));
    params.max_blocks_per_seq = static_cast<int32_t>(tables.size(1));
    params.seq_lens = lens.data<int32_t>();
  }

  void check_masks(const MaskArgs& masks) {
    check_range(op_, "window_left", masks.window_left, -1, INT64_MAX);
    params.masks.softcap = static_cast<float>(masks.softcap);
    const bool vanished = masks.softcap != 0.0 && params.masks.softcap == 0.0f;
    if (!(params.masks.softcap >= 0.0f) || std::isinf(params.masks.softcap) || vanished) {
      fail(op_, "softcap must be 0 (off) or a finite float32 above it, got ", masks.softcap);
    }
    // A window that no sequence outgrows is no window; dropping it keeps positions within 32 bits.
    params.masks.window_left =
        masks.window_left >= params.max_seq_len ? -1 : static_cast<int32_t>(masks.window_left);
    params.masks.alibi_slopes = per_head("alibi_slopes", masks.alibi_slopes, alibi_slopes_);
    params.masks.sinks = per_head("sinks", masks.sinks, sinks_);
  }

  // Kernels read these as contiguous fp32; models keep them in their own dtype. `keep` owns the
  // result.
  const float* per_head(const char* name, const OptionalTensor& given, OptionalTensor& keep) const {
    if (!given) return nullptr;
    const Arg arg(op_, name, *given);
    arg.on_device_of(query_)
        .has_dtype({ScalarType::Float, ScalarType::Half, ScalarType::BFloat16})
        .has_shape("[num_q_heads]", {params.num_q_heads});
    keep = torch::stable::contiguous(given->scalar_type() == ScalarType::Float
                                         ? *given
                                         : torch::stable::to(*given, ScalarType::Float));
    return static_cast<const float*>(keep->data_ptr());
  }

  const char* op_;
  Arg query_;
  OptionalTensor alibi_slopes_;
  OptionalTensor sinks_;
};

void run_v2(const AttentionParams& params, const Target& target) {
  target->decode(params, target.stream());
  target->reduce_partitions(params, target.stream());
}

}  // namespace

void paged_attention_v1(const Tensor& out, const Tensor& query, const Tensor& key_cache,
                        const Tensor& value_cache, const Tensor& block_tables,
                        const Tensor& seq_lens, int64_t max_seq_len, double scale,
                        int64_t window_left, double softcap, const OptionalTensor& alibi_slopes,
                        const OptionalTensor& sinks, const OptionalTensor& k_scale,
                        const OptionalTensor& v_scale, const OptionalTensor& lse) {
  AttentionCall call("paged_attention_v1", query, {key_cache, value_cache, k_scale, v_scale},
                     block_tables, seq_lens, max_seq_len, scale,
                     {window_left, softcap, alibi_slopes, sinks});
  call.expect_one_query_per_sequence();
  call.set_out(out);
  call.set_lse(lse);
  if (call.params.num_seqs == 0) return;
  const Target target = call.target();
  target->decode(call.params, target.stream());
}

void paged_attention_v2(const Tensor& out, const Tensor& partial_out, const Tensor& partial_lse,
                        const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                        const Tensor& block_tables, const Tensor& seq_lens, int64_t max_seq_len,
                        int64_t partition_size, double scale, int64_t window_left, double softcap,
                        const OptionalTensor& alibi_slopes, const OptionalTensor& sinks,
                        const OptionalTensor& k_scale, const OptionalTensor& v_scale,
                        const OptionalTensor& lse) {
  AttentionCall call("paged_attention_v2", query, {key_cache, value_cache, k_scale, v_scale},
                     block_tables, seq_lens, max_seq_len, scale,
                     {window_left, softcap, alibi_slopes, sinks});
  call.expect_one_query_per_sequence();
  call.set_out(out);
  call.set_lse(lse);
  call.set_partials(partial_out, partial_lse, partition_size);
  if (call.params.num_seqs == 0) return;
  run_v2(call.params, call.target());
}

Tensor paged_attention(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                       const Tensor& block_tables, const Tensor& seq_lens, int64_t max_seq_len,
                       double scale, int64_t window_left, double softcap,
                       const OptionalTensor& alibi_slopes, const OptionalTensor& sinks,
                       const OptionalTensor& k_scale, const OptionalTensor& v_scale) {
  AttentionCall call("paged_attention", query, {key_cache, value_cache, k_scale, v_scale},
                     block_tables, seq_lens, max_seq_len, scale,
                     {window_left, softcap, alibi_slopes, sinks});
  call.expect_one_query_per_sequence();
  const int64_t num_seqs = query.size(0), num_heads = query.size(1), head_dim = query.size(2);
  const auto device = query.device();
  Tensor out = new_tensor({num_seqs, num_heads, head_dim}, query.scalar_type(), device);
  call.set_out(out);
  if (call.params.num_seqs == 0) return out;

  const Target target = call.target();
  // A loose bound must not size the workspace: no sequence outgrows the columns of its table.
  call.params.max_seq_len = longest_sequence(call.params);
  const int64_t partition_size = target->choose_partition_size(call.params);
  if (partition_size == 0) {
    target->decode(call.params, target.stream());
    return out;
  }
  const int64_t num_partitions = count_partitions(call.params.max_seq_len, partition_size);
  const Tensor partial_out =
      new_tensor({num_seqs, num_heads, num_partitions, head_dim}, ScalarType::Float, device);
  const Tensor partial_lse =
      new_tensor({num_seqs, num_heads, num_partitions}, ScalarType::Float, device);
  call.set_partials(partial_out, partial_lse, partition_size);
  run_v2(call.params, target);
  return out;
}

void paged_attention_varlen(const Tensor& out, const Tensor& query, const Tensor& key_cache,
                            const Tensor& value_cache, const Tensor& cu_seqlens_q,
                            const Tensor& block_tables, const Tensor& seq_lens,
                            int64_t max_query_len, int64_t max_seq_len, double scale, bool causal,
                            int64_t window_left, double softcap, const OptionalTensor& alibi_slopes,
                            const OptionalTensor& sinks, const OptionalTensor& tree_mask,
                            const OptionalTensor& k_scale, const OptionalTensor& v_scale,
                            const OptionalTensor& lse) {
  AttentionCall call("paged_attention_varlen", query, {key_cache, value_cache, k_scale, v_scale},
                     block_tables, seq_lens, max_seq_len, scale,
                     {window_left, softcap, alibi_slopes, sinks});
  call.set_out(out);
  call.set_lse(lse);
  call.set_queries(cu_seqlens_q, max_query_len, causal, tree_mask);
  if (call.params.num_seqs == 0) return;
  const Target target = call.target();
  if (call.params.num_tokens == 0 || max_query_len == 0) return;
  const int64_t num_partials = target->count_varlen_partials(call.params) * query.size(1);
  OptionalTensor partial_out;
  OptionalTensor partial_lse;
  if (num_partials > 0) {
    const auto device = query.device();
    partial_out = new_tensor({num_partials, query.size(2)}, ScalarType::Float, device);
    partial_lse = new_tensor({num_partials}, ScalarType::Float, device);
    call.params.partial.out = static_cast<float*>(partial_out->data_ptr());
    call.params.partial.lse = static_cast<float*>(partial_lse->data_ptr());
  }
  target->varlen(call.params, target.stream());
}

void merge_attention_states(const Tensor& out, const OptionalTensor& out_lse,
                            const Tensor& prefix_out, const Tensor& prefix_lse,
                            const Tensor& suffix_out, const Tensor& suffix_lse) {
  const char* op = "merge_attention_states";
  const Arg merged(op, "out", out);
  merged.has_dtype({ScalarType::Float, ScalarType::Half, ScalarType::BFloat16})
      .has_shape("[num_tokens, num_heads, head_dim]", {kAny, kAny, kAny})
      .does_not_overlap_itself();
  const int64_t num_tokens = merged.size(0), num_heads = merged.size(1), head_dim = merged.size(2);
  check_range(op, "num_heads, out.size(1),", num_heads, 0, INT32_MAX);
  check_range(op, "head_dim, out.size(2),", head_dim, 0, INT32_MAX);

  const auto state = [&](const char* name, const Tensor& tensor) {
    const Arg arg(op, name, tensor);
    arg.on_device_of(merged).has_dtype_of(merged);
    arg.has_shape("[num_tokens, num_heads, head_dim], that of out,",
                  {num_tokens, num_heads, head_dim});
    arg.has_contiguous_last_dim();
    return TokenView{arg.data<void>(), arg.stride(0), arg.stride(1)};
  };
  const auto lse = [&](const char* name, const Tensor& tensor, int64_t (&strides)[2]) {
    const Arg arg(op, name, tensor);
    arg.on_device_of(merged).has_dtype({ScalarType::Float});
    arg.has_shape("[num_tokens, num_heads]", {num_tokens, num_heads});
    strides[0] = arg.stride(0);
    strides[1] = arg.stride(1);
    return arg.data<float>();
  };
  MergeParams params;
  params.out = state("out", out);
  params.prefix_out = state("prefix_out", prefix_out);
  params.suffix_out = state("suffix_out", suffix_out);
  params.dtype = merged.dtype();
  params.prefix_lse = lse("prefix_lse", prefix_lse, params.prefix_lse_strides);
  params.suffix_lse = lse("suffix_lse", suffix_lse, params.suffix_lse_strides);
  if (out_lse) {
    params.out_lse = lse("out_lse", *out_lse, params.out_lse_strides);
    Arg(op, "out_lse", *out_lse).does_not_overlap_itself();
  }
  params.num_tokens = num_tokens;
  params.num_heads = static_cast<int32_t>(num_heads);
  params.head_dim = static_cast<int32_t>(head_dim);
  if (out.numel() == 0) return;
  const Target target(out);
  target->merge_states(params, target.stream());
}

}  // namespace pagedattn::ops
