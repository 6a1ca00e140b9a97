// No op has a backward: one whose input needs a gradient must say so, or the gradient would
// silently be zero. Asked here, in C++, because a kernel for the Autograd key can only be had in
// Python, and costs every call 7 us.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "checks.h"
#include "ops.h"

namespace pagedattn::ops {

// False where this torch does not tell whether a tensor requires grad; then ops.py has to ask.
bool can_ask_for_gradients();

// Whether autograd records this thread's ops.
bool records_gradients();

bool requires_grad(const Tensor& tensor);

template <typename T>
bool needs_gradient(const T& argument) {
  if constexpr (std::is_same_v<T, Tensor>) {
    return requires_grad(argument);
  } else if constexpr (std::is_same_v<T, OptionalTensor>) {
    return argument && requires_grad(*argument);
  } else if constexpr (std::is_same_v<T, std::vector<Tensor>>) {
    for (const Tensor& tensor : argument) {
      if (requires_grad(tensor)) return true;
    }
  }
  return false;
}

// An op's name as a template argument.
struct OpName {
  char text[32] = {};
  template <size_t N>
  constexpr OpName(const char (&name)[N]) {
    for (size_t i = 0; i < N; ++i) text[i] = name[i];
  }
};

template <OpName name, auto op>
struct WithoutBackward;

// call() is `op` that raises for inputs that need a gradient.
template <OpName name, typename R, typename... Args, R (*op)(Args...)>
struct WithoutBackward<name, op> {
  static R call(Args... args) {
    if (records_gradients() && (needs_gradient(args) || ...)) {
      throw std::runtime_error("pagedattn::" + std::string(name.text) +
                               " has no backward, but an input requires grad; call it under "
                               "torch.no_grad() or torch.inference_mode()");
    }
    return op(args...);
  }
};

}  // namespace pagedattn::ops
