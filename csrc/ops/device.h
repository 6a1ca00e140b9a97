// Where an op runs: the kernel table, the device guard and the stream of the tensors' device.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "../kernels.h"

namespace pagedattn::ops {

// Makes the device of `tensor` current for its lifetime, like c10::DeviceGuard.
class Target {
 public:
  explicit Target(const torch::stable::Tensor& tensor);

  bool is_cuda() const { return guard_.has_value(); }
  Stream stream() const { return stream_; }
  const KernelTable* operator->() const { return kernels_; }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  Stream stream_ = nullptr;
  const KernelTable* kernels_;
};

}  // namespace pagedattn::ops
