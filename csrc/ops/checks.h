// Argument checks. An Arg is a tensor together with its op's and its own name, so that every error
// says which op, which argument, what was given and what is wanted.
#pragma once

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

class Arg {
 public:
  Arg(const char* op, std::string name, Tensor tensor)
      : op_(op), name_(std::move(name)), tensor_(std::move(tensor)) {}

  const Tensor& tensor() const { return tensor_; }
  const char* op() const { return op_; }
  const std::string& name() const { return name_; }
  int64_t size(int64_t dim) const { return tensor_.size(dim); }
  // The stride of a dimension of size 1 is never used and may be anything: reported as 0.
  int64_t stride(int64_t dim) const { return tensor_.size(dim) == 1 ? 0 : tensor_.stride(dim); }
  DType dtype() const { return *kernel_dtype(tensor_.scalar_type()); }
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
    ops::fail(op_, name_, " ", parts...);
  }

 private:
  const char* op_;
  std::string name_;
  Tensor tensor_;
};

// A scalar argument that must lie in [low, high].
void check_range(const char* op, const char* name, int64_t value, int64_t low, int64_t high);

}  // namespace pagedattn::ops
