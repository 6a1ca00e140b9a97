// Tensors that ops return, or work in.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <initializer_list>

namespace pagedattn::ops {

// Contiguous and uninitialised. torch::stable::empty would look its op up by name, and box.
torch::stable::Tensor new_tensor(std::initializer_list<int64_t> sizes,
                                 torch::headeronly::ScalarType dtype,
                                 const torch::stable::Device& device);

}  // namespace pagedattn::ops
