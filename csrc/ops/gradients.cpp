#include "gradients.h"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace pagedattn::ops {
namespace {

// The stable ABI has no word for it. c10::TensorImpl::requires_grad() is an exported function; a
// handle points at an at::Tensor, which is a pointer to a TensorImpl.
using RequiresGrad = bool (*)(const void* tensor_impl);

RequiresGrad find_requires_grad() {
  static const auto function =
      reinterpret_cast<RequiresGrad>(dlsym(RTLD_DEFAULT, "_ZNK3c1010TensorImpl13requires_gradEv"));
  return function;
}

}  // namespace

bool can_ask_for_gradients() { return find_requires_grad() != nullptr; }

bool records_gradients() { return can_ask_for_gradients() && aoti_torch_grad_mode_is_enabled(); }

bool requires_grad(const Tensor& tensor) {
  return find_requires_grad()(*reinterpret_cast<const void* const*>(tensor.get()));
}

}  // namespace pagedattn::ops

extern "C" __attribute__((visibility("default"))) bool pagedattn_can_ask_for_gradients() {
  return pagedattn::ops::can_ask_for_gradients();
}
