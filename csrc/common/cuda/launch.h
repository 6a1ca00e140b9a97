// The one way a kernel is launched and the one place where launches are checked.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace pagedattn {

// Above this, dynamic shared memory must be asked for by name.
constexpr size_t kDefaultSharedMemoryLimit = 48 * 1024;

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("pagedattn: CUDA error in ") + what + ": " +
                           cudaGetErrorString(error));
}

// The number of CTAs along grid.x, the only dimension that holds more than 65535.
inline unsigned grid_size(int64_t num_blocks, const char* name) {
  if (num_blocks > std::numeric_limits<int32_t>::max()) {
    throw std::runtime_error(std::string("pagedattn: ") + name + " would need " +
                             std::to_string(num_blocks) + " thread blocks, more than a grid holds");
  }
  return static_cast<unsigned>(num_blocks);
}

// Launches nothing where the grid is empty.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, void* stream,
            const char* name, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > kDefaultSharedMemoryLimit) {
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               name);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  const cudaError_t last = cudaGetLastError();
  check_cuda(error != cudaSuccess ? error : last, name);
}

}  // namespace pagedattn
