// Registers torch.ops.pagedattn.*: the schemas, and one implementation for CPU and CUDA.
#include <torch/csrc/stable/library.h>

#include "gradients.h"
#include "ops.h"

// The SIMT test runtime builds these sources once more under a name of its own.
#ifndef PAGEDATTN_NAMESPACE
#define PAGEDATTN_NAMESPACE pagedattn
#endif

#define MASKS "int window_left=-1, float softcap=0.0, Tensor? alibi_slopes=None, Tensor? sinks=None"
#define SCALES "Tensor? k_scale=None, Tensor? v_scale=None"
#define PAGED_CACHE "Tensor key_cache, Tensor value_cache"

STABLE_TORCH_LIBRARY(PAGEDATTN_NAMESPACE, m) {
  m.def("paged_attention_v1(Tensor(a!) out, Tensor query, " PAGED_CACHE
        ", Tensor block_tables, Tensor seq_lens, SymInt max_seq_len, float scale, *, " MASKS
        ", " SCALES ", Tensor(b!)? lse=None) -> ()");
  m.def(
      "paged_attention_v2(Tensor(a!) out, Tensor(b!) partial_out, Tensor(c!) partial_lse, "
      "Tensor query, " PAGED_CACHE
      ", Tensor block_tables, Tensor seq_lens, SymInt max_seq_len, SymInt partition_size, "
      "float scale, *, " MASKS ", " SCALES ", Tensor(d!)? lse=None) -> ()");
  m.def("paged_attention(Tensor query, " PAGED_CACHE
        ", Tensor block_tables, Tensor seq_lens, SymInt max_seq_len, float scale, *, " MASKS
        ", " SCALES ") -> Tensor");
  m.def("paged_attention_varlen(Tensor(a!) out, Tensor query, " PAGED_CACHE
        ", Tensor cu_seqlens_q, Tensor block_tables, Tensor seq_lens, SymInt max_query_len, "
        "SymInt max_seq_len, float scale, *, bool causal=True, " MASKS
        ", Tensor? tree_mask=None, " SCALES ", Tensor(b!)? lse=None) -> ()");
  m.def(
      "merge_attention_states(Tensor(a!) out, Tensor(b!)? out_lse, Tensor prefix_out, "
      "Tensor prefix_lse, Tensor suffix_out, Tensor suffix_lse) -> ()");
  m.def(
      "reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
      "Tensor slot_mapping, *, Tensor(c!)? k_scale=None, Tensor(d!)? v_scale=None) -> ()");
  m.def(
      "copy_blocks(Tensor(a!)[] key_caches, Tensor(b!)[] value_caches, Tensor block_mapping) "
      "-> ()");
  m.def("swap_blocks(Tensor[] src, Tensor(a!)[] dst, Tensor block_mapping) -> ()");
  m.def("gather_cache(" PAGED_CACHE
        ", Tensor block_tables, Tensor cu_seq_lens, SymInt num_tokens, *, " SCALES
        ", ScalarType? dtype=None) -> (Tensor key, Tensor value)");
}

#define REGISTER(op) \
  m.impl(#op, TORCH_BOX((&pagedattn::ops::WithoutBackward<#op, &pagedattn::ops::op>::call)))

namespace {

void register_kernels(torch::stable::detail::StableLibrary& m) {
  REGISTER(paged_attention_v1);
  REGISTER(paged_attention_v2);
  REGISTER(paged_attention);
  REGISTER(paged_attention_varlen);
  REGISTER(merge_attention_states);
  REGISTER(reshape_and_cache);
  REGISTER(copy_blocks);
  REGISTER(swap_blocks);
  REGISTER(gather_cache);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(PAGEDATTN_NAMESPACE, CPU, m) { register_kernels(m); }
STABLE_TORCH_LIBRARY_IMPL(PAGEDATTN_NAMESPACE, CUDA, m) { register_kernels(m); }
