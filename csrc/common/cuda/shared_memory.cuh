#pragma once

#include <cuda_runtime.h>

namespace pagedattn {

// The block's dynamic shared memory.
template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

}  // namespace pagedattn
