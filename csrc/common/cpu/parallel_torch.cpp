// parallel.h on ATen's thread pool, through the C functions of libtorch's stable ABI.
#include <torch/csrc/stable/c/shim.h>

#include <stdexcept>

#include "parallel.h"

namespace pagedattn {

void run_parallel(int64_t begin, int64_t end, int64_t grain, RangeBody body, void* context) {
  if (torch_parallel_for(begin, end, grain, body, context) != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error("pagedattn: torch_parallel_for failed");
  }
}

int64_t num_threads() {
  uint32_t count = 1;
  torch_get_num_threads(&count);
  return count;
}

}  // namespace pagedattn
