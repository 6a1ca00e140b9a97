// Argument checks. An Arg is a tensor together with its op's and its own name, so that every error
// says which op, which argument, what was given and what is wanted.
#pragma once

#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../common/dtype.h"

namespace pagedattn::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename... Parts>
[[noreturn]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream text;
  text << "pagedattn::" << op << ": ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

std::string dtype_name(ScalarType dtype);
std::string shape_text(const Tensor& tensor);

// The kernels' name of a dtype; nullopt for one that no kernel knows.
std::optional<DType> kernel_dtype(ScalarType dtype);

constexpr int64_t kAny = -1;  // in an expected shape: this size is free

// Asks the tensor for what it is once: every question to libtorch's C functions costs a call.
class Arg {
 public:
  // `tensor` and `name` must outlive the Arg.
  Arg(const char* op, const char* name, const Tensor& tensor)
      : op_(op),
        name_(name),
        tensor_(tensor),
        sizes_(tensor.sizes()),
        strides_(tensor.strides()),
        dtype_(tensor.scalar_type()),
        device_(tensor.device()) {}
  // Item `index` of a list of tensors.
  Arg(const char* op, const char* name, size_t index, const Tensor& tensor)
      : Arg(op, name, tensor) {
    index_ = index;
  }

  const Tensor& tensor() const { return tensor_; }
  const char* op() const { return op_; }
  std::string name() const {
    return index_ ? name_ + ("[" + std::to_string(*index_) + "]") : name_;
  }
  int64_t dim() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t size(int64_t dim) const { return sizes_[dim]; }
  // The stride of a dimension of size 1 is never used and may be anything: reported as 0.
  int64_t stride(int64_t dim) const { return sizes_[dim] == 1 ? 0 : strides_[dim]; }
  ScalarType scalar_type() const { return dtype_; }
  DType dtype() const { return *kernel_dtype(dtype_); }
  const torch::stable::Device& device() const { return device_; }
  bool is_cpu() const { return device_.is_cpu(); }
  bool is_cuda() const { return device_.is_cuda(); }
  template <typename T>
  T* data() const {
    return static_cast<T*>(tensor_.data_ptr());
  }

  // Each check throws std::runtime_error, which Python sees as RuntimeError, and returns *this.
  const Arg& on_device_of(const Arg& other) const;
  const Arg& on_cpu() const;
  const Arg& has_dtype(std::initializer_list<ScalarType> accepted) const;
  const Arg& has_dtype_of(const Arg& other) const;
  // `words` names the dimensions, e.g. "[num_seqs, max_blocks_per_seq]".
  const Arg& has_shape(const char* words, std::initializer_list<int64_t> expected) const;
  const Arg& has_contiguous_last_dim() const;
  const Arg& is_contiguous() const;
  const Arg& does_not_overlap_itself() const;
  const Arg& is_aligned(int64_t bytes) const;  // base and strides

  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    ops::fail(op_, name(), " ", parts...);
  }

 private:
  const char* op_;
  const char* name_;
  std::optional<size_t> index_;
  const Tensor& tensor_;
  torch::headeronly::IntHeaderOnlyArrayRef sizes_;
  torch::headeronly::IntHeaderOnlyArrayRef strides_;
  ScalarType dtype_;
  torch::stable::Device device_;
};

// A scalar argument that must lie in [low, high].
void check_range(const char* op, const char* name, int64_t value, int64_t low, int64_t high);

}  // namespace pagedattn::ops
