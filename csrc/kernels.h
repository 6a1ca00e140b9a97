// The kernels of one device behind one face. The CPU half, the CUDA half and the SIMT test runtime
// each provide one table; the ops fill the plain structs, pick the table of the tensors' device,
// and call.
#pragma once

#include "attention/params.h"
#include "cache/params.h"

namespace pagedattn {

// cudaStream_t on CUDA, unused on the CPU.
using Stream = void*;

struct KernelTable {
  // V1 when params.partial.partition_size == 0; otherwise V2's partitions, written to
  // params.partial.
  void (*decode)(const AttentionParams&, Stream);
  // V2's second pass: params.partial -> out, lse; adds the sinks.
  void (*reduce_partitions)(const AttentionParams&, Stream);
  // With params.partial.out and lse for as many (token, partition) pairs, times heads, as
  // count_varlen_partials says.
  void (*varlen)(const AttentionParams&, Stream);
  void (*merge_states)(const MergeParams&, Stream);
  void (*reshape_and_cache)(const ReshapeParams&, Stream);
  void (*gather_cache)(const GatherParams&, Stream);
  void (*copy_blocks)(const CopyBlocksParams&, Stream);
  void (*swap_blocks)(const SwapBlocksParams&, Stream);
  // paged_attention's choice from host values alone: 0 for V1, else V2's partition size.
  int32_t (*choose_partition_size)(const AttentionParams&);
  // From host values alone; 0: varlen needs no workspace.
  int64_t (*count_varlen_partials)(const AttentionParams&);
};

const KernelTable& cpu_kernels();   // of the best instruction set that this CPU has
const char* cpu_isa_name();         // "generic", "avx2", ...: which table cpu_kernels() is
const KernelTable& cuda_kernels();  // only in builds with the CUDA half

}  // namespace pagedattn
