// Kernel launches and the function attributes that they depend on.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <tuple>
#include <utility>

namespace simt {

// Checks the launch as a device would, runs it to its end, and leaves what went wrong for
// cudaGetLastError(), whose text is then the whole finding.
cudaError_t launch(const void* kernel, const char* signature, const cudaLaunchConfig_t& config,
                   size_t parameter_bytes, std::function<void()> thread_body);

}  // namespace simt

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args&&... args) {
  const std::tuple<Params...> params(std::forward<Args>(args)...);
  return simt::launch(reinterpret_cast<const void*>(kernel), __PRETTY_FUNCTION__, *config,
                      (size_t{0} + ... + sizeof(Params)), [&] { std::apply(kernel, params); });
}

template <typename... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute attribute,
                                 int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

template <typename... Params>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Params...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}

template <typename... Params>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*kernel)(Params...),
                                                          int block_size, size_t dynamic_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      blocks, reinterpret_cast<const void*>(kernel), block_size, dynamic_bytes);
}
