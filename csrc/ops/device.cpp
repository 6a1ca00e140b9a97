#include "device.h"

#include <dlfcn.h>

#include <stdexcept>

namespace pagedattn::ops {
namespace {

#ifdef PAGEDATTN_WITH_CUDA

// The library must load beside a CPU-only torch, so it has no undefined symbol of libtorch_cuda:
// the one that tells the current stream is looked up at the first CUDA call, when libtorch_cuda is
// certainly loaded.
Stream current_cuda_stream(int32_t device_index) {
  using GetStream = AOTITorchError (*)(int32_t, void**);
  static const auto get_stream = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    void* symbol = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
    return reinterpret_cast<GetStream>(symbol);
  }();
  void* stream = nullptr;
  if (get_stream == nullptr || get_stream(device_index, &stream) != 0) {
    throw std::runtime_error(
        "pagedattn: this torch does not give its current CUDA stream; install a CUDA build of "
        "torch >= 2.10");
  }
  return stream;
}

const KernelTable& cuda_table() { return cuda_kernels(); }

#else

Stream current_cuda_stream(int32_t) { return nullptr; }

const KernelTable& cuda_table() {
  throw std::runtime_error(
      "pagedattn was built without its CUDA half; reinstall it with nvcc on PATH (or CUDA_HOME "
      "set) and "
      "PAGEDATTN_CUDA=1 to see why it was left out");
}

#endif

}  // namespace

Target::Target(const torch::stable::Tensor& tensor) {
  if (!tensor.is_cuda()) {
    kernels_ = &cpu_kernels();
    return;
  }
  kernels_ = &cuda_table();
  guard_.emplace(tensor.get_device_index());
  stream_ = current_cuda_stream(tensor.get_device_index());
}

}  // namespace pagedattn::ops
