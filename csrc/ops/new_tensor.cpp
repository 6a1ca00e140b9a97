#include "new_tensor.h"

#include <torch/csrc/stable/stableivalue_conversions.h>

#include <array>

namespace pagedattn::ops {

using torch::stable::Tensor;

Tensor new_tensor(std::initializer_list<int64_t> sizes, torch::headeronly::ScalarType dtype,
                  const torch::stable::Device& device) {
  std::array<int64_t, 4> strides{};
  int64_t stride = 1;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= sizes.begin()[dim];
  }
  // libtorch's own numbers of a dtype and a device type.
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.begin(), strides.data(), to<int32_t>(from(dtype)),
      to<int32_t>(from(device.type())), device.index(), &handle));
  return Tensor(handle);
}

}  // namespace pagedattn::ops
