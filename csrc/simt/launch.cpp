#include <simt/block.h>
#include <simt/launch.h>

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>

#include "last_error.h"

namespace simt {
namespace {

constexpr size_t kMaxParameterBytes = 32764;

std::mutex attributes_mutex;
std::map<const void*, size_t> granted_dynamic_bytes;

size_t granted(const void* kernel) {
  std::lock_guard<std::mutex> lock(attributes_mutex);
  const auto found = granted_dynamic_bytes.find(kernel);
  return found == granted_dynamic_bytes.end() ? kDefaultSharedBytes : found->second;
}

// The demangled name, without parameters, where the linker knows one.
std::string kernel_name(const void* kernel, const char* signature) {
  Dl_info info{};
  if (dladdr(kernel, &info) == 0 || info.dli_saddr != kernel || info.dli_sname == nullptr) {
    return std::string("a kernel of ") + signature;
  }
  int status = 0;
  char* demangled = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : info.dli_sname;
  std::free(demangled);
  if (name.rfind("void ", 0) == 0) name.erase(0, 5);
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

std::string number(uint64_t n) { return std::to_string(n); }

// Why a device would refuse this launch, or nothing.
std::string objection(const Grid& grid, size_t granted_bytes, size_t parameter_bytes) {
  const dim3 g = grid.size;
  const dim3 b = grid.block_size;
  const uint64_t threads = uint64_t{b.x} * b.y * b.z;
  if (threads == 0) return "the block is empty";
  if (threads > kMaxBlockThreads || b.x > 1024 || b.y > 1024 || b.z > 64) {
    return "a block of " + number(b.x) + " x " + number(b.y) + " x " + number(b.z) +
           " threads exceeds 1024 in all or 1024 x 1024 x 64";
  }
  if (g.x == 0 || g.y == 0 || g.z == 0) return "the grid is empty";
  if (g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) {
    return "a grid of " + number(g.x) + " x " + number(g.y) + " x " + number(g.z) +
           " blocks exceeds 2147483647 x 65535 x 65535";
  }
  if (grid.dynamic_bytes > kMaxSharedBytes) {
    return number(grid.dynamic_bytes) + " bytes of dynamic shared memory exceed " +
           number(kMaxSharedBytes);
  }
  if (grid.dynamic_bytes > granted_bytes) {
    return number(grid.dynamic_bytes) + " bytes of dynamic shared memory exceed the " +
           number(granted_bytes) + " that the kernel was granted by cudaFuncSetAttribute";
  }
  if (parameter_bytes > kMaxParameterBytes) {
    return number(parameter_bytes) + " bytes of parameters exceed " + number(kMaxParameterBytes);
  }
  return {};
}

}  // namespace

cudaError_t launch(const void* kernel, const char* signature, const cudaLaunchConfig_t& config,
                   size_t parameter_bytes, std::function<void()> thread_body) {
  Grid grid;
  grid.kernel = kernel_name(kernel, signature);
  grid.size = config.gridDim;
  grid.block_size = config.blockDim;
  grid.dynamic_bytes = config.dynamicSmemBytes;
  grid.body = std::move(thread_body);
  try {
    grid.schedule = Schedule::from_environment();
  } catch (const std::invalid_argument& error) {
    return set_last_error(cudaErrorInvalidValue, error.what());
  }
  const std::string refusal = objection(grid, granted(kernel), parameter_bytes);
  if (!refusal.empty()) {
    return set_last_error(cudaErrorInvalidConfiguration,
                          "simt: " + grid.kernel + ": bad launch: " + refusal);
  }
  const std::string finding = run_grid(grid);
  return finding.empty() ? cudaSuccess : set_last_error(cudaErrorLaunchFailure, finding);
}

}  // namespace simt

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<size_t>(value) > simt::kMaxSharedBytes) {
    return simt::set_last_error(cudaErrorInvalidValue,
                                "simt: cudaFuncSetAttribute: " + std::to_string(value) +
                                    " bytes of dynamic shared memory exceed " +
                                    std::to_string(simt::kMaxSharedBytes));
  }
  std::lock_guard<std::mutex> lock(simt::attributes_mutex);
  simt::granted_dynamic_bytes[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  *attributes = {};
  attributes->maxThreadsPerBlock = simt::kMaxBlockThreads;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(simt::granted(kernel));
  return cudaSuccess;
}
