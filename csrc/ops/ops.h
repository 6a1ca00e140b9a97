// The C++ functions behind the op schemas, in the schemas' order of arguments. One function serves
// every device.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>
#include <vector>

namespace pagedattn::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

void paged_attention_v1(const Tensor& out, const Tensor& query, const Tensor& key_cache,
                        const Tensor& value_cache, const Tensor& block_tables,
                        const Tensor& seq_lens, int64_t max_seq_len, double scale,
                        int64_t window_left, double softcap, const OptionalTensor& alibi_slopes,
                        const OptionalTensor& sinks, const OptionalTensor& k_scale,
                        const OptionalTensor& v_scale, const OptionalTensor& lse);

void paged_attention_v2(const Tensor& out, const Tensor& partial_out, const Tensor& partial_lse,
                        const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                        const Tensor& block_tables, const Tensor& seq_lens, int64_t max_seq_len,
                        int64_t partition_size, double scale, int64_t window_left, double softcap,
                        const OptionalTensor& alibi_slopes, const OptionalTensor& sinks,
                        const OptionalTensor& k_scale, const OptionalTensor& v_scale,
                        const OptionalTensor& lse);

Tensor paged_attention(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                       const Tensor& block_tables, const Tensor& seq_lens, int64_t max_seq_len,
                       double scale, int64_t window_left, double softcap,
                       const OptionalTensor& alibi_slopes, const OptionalTensor& sinks,
                       const OptionalTensor& k_scale, const OptionalTensor& v_scale);

void paged_attention_varlen(const Tensor& out, const Tensor& query, const Tensor& key_cache,
                            const Tensor& value_cache, const Tensor& cu_seqlens_q,
                            const Tensor& block_tables, const Tensor& seq_lens,
                            int64_t max_query_len, int64_t max_seq_len, double scale, bool causal,
                            int64_t window_left, double softcap, const OptionalTensor& alibi_slopes,
                            const OptionalTensor& sinks, const OptionalTensor& tree_mask,
                            const OptionalTensor& k_scale, const OptionalTensor& v_scale,
                            const OptionalTensor& lse);

void merge_attention_states(const Tensor& out, const OptionalTensor& out_lse,
                            const Tensor& prefix_out, const Tensor& prefix_lse,
                            const Tensor& suffix_out, const Tensor& suffix_lse);

void reshape_and_cache(const Tensor& key, const Tensor& value, const Tensor& key_cache,
                       const Tensor& value_cache, const Tensor& slot_mapping,
                       const OptionalTensor& k_scale, const OptionalTensor& v_scale);

void copy_blocks(const std::vector<Tensor>& key_caches, const std::vector<Tensor>& value_caches,
                 const Tensor& block_mapping);

void swap_blocks(const std::vector<Tensor>& src, const std::vector<Tensor>& dst,
                 const Tensor& block_mapping);

std::tuple<Tensor, Tensor> gather_cache(const Tensor& key_cache, const Tensor& value_cache,
                                        const Tensor& block_tables, const Tensor& cu_seq_lens,
                                        int64_t num_tokens, const OptionalTensor& k_scale,
                                        const OptionalTensor& v_scale,
                                        std::optional<ScalarType> dtype);

}  // namespace pagedattn::ops
