#include "checks.h"

#include <torch/csrc/stable/device.h>

#include <algorithm>

namespace pagedattn::ops {
namespace {

std::string device_name(const Tensor& tensor) {
  const auto device = tensor.device();
  if (device.is_cpu()) return "cpu";
  if (device.is_cuda()) return "cuda:" + std::to_string(device.index());
  return "device type " + std::to_string(static_cast<int>(device.type()));
}

template <typename Sizes>
std::string list_text(const Sizes& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0) text += ", ";
    text += sizes[i] == kAny ? "*" : std::to_string(sizes[i]);
  }
  return text + "]";
}

}  // namespace

std::string dtype_name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Float8_e4m3fn:
      return "float8_e4m3fn";
    case ScalarType::Float8_e5m2:
      return "float8_e5m2";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Bool:
      return "bool";
    default:
      return torch::headeronly::toString(dtype);
  }
}

std::string shape_text(const Tensor& tensor) { return list_text(tensor.sizes()); }

std::optional<DType> kernel_dtype(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::Half:
      return DType::kFloat16;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    case ScalarType::Float8_e4m3fn:
      return DType::kFloat8E4M3;
    case ScalarType::Float8_e5m2:
      return DType::kFloat8E5M2;
    case ScalarType::Char:
      return DType::kInt8;
    default:
      return std::nullopt;
  }
}

const Arg& Arg::on_device_of(const Arg& other) const {
  if (!(tensor_.device() == other.tensor_.device())) {
    fail("must be on ", device_name(other.tensor_), " like ", other.name_, ", got ",
         device_name(tensor_));
  }
  return *this;
}

const Arg& Arg::on_cpu() const {
  if (!tensor_.is_cpu()) fail("must be on cpu, got ", device_name(tensor_));
  return *this;
}

const Arg& Arg::has_dtype(std::initializer_list<ScalarType> accepted) const {
  const ScalarType given = tensor_.scalar_type();
  if (std::find(accepted.begin(), accepted.end(), given) != accepted.end()) return *this;
  std::string wanted;
  for (const ScalarType dtype : accepted) {
    if (!wanted.empty()) wanted += ", ";
    wanted += dtype_name(dtype);
  }
  fail("must have dtype ", accepted.size() > 1 ? "one of " : "", wanted, ", got ",
       dtype_name(given));
}

const Arg& Arg::has_dtype_of(const Arg& other) const {
  if (tensor_.scalar_type() != other.tensor_.scalar_type()) {
    fail("must have dtype ", dtype_name(other.tensor_.scalar_type()), " like ", other.name_,
         ", got ", dtype_name(tensor_.scalar_type()));
  }
  return *this;
}

const Arg& Arg::has_shape(const char* words, std::initializer_list<int64_t> expected) const {
  const auto sizes = tensor_.sizes();
  bool same = sizes.size() == expected.size();
  for (size_t i = 0; same && i < expected.size(); ++i) {
    const int64_t want = expected.begin()[i];
    same = want == kAny || want == sizes[i];
  }
  if (!same) {
    fail("must have shape ", words, " = ", list_text(std::vector<int64_t>(expected)), ", got ",
         shape_text(tensor_));
  }
  return *this;
}

const Arg& Arg::has_contiguous_last_dim() const {
  const int64_t last = tensor_.dim() - 1;
  if (tensor_.size(last) > 1 && tensor_.stride(last) != 1) {
    fail("must have a contiguous last dimension (stride 1), got strides ",
         list_text(tensor_.strides()), "; call .contiguous()");
  }
  return *this;
}

const Arg& Arg::is_contiguous() const {
  if (!tensor_.is_contiguous()) {
    fail("must be contiguous, got shape ", shape_text(tensor_), " with strides ",
         list_text(tensor_.strides()), "; call .contiguous()");
  }
  return *this;
}

const Arg& Arg::does_not_overlap_itself() const {
  for (int64_t dim = 0; dim < tensor_.dim(); ++dim) {
    if (tensor_.size(dim) > 1 && tensor_.stride(dim) == 0) {
      fail("is written to and must not be an expanded view, got strides ",
           list_text(tensor_.strides()));
    }
  }
  return *this;
}

const Arg& Arg::is_aligned(int64_t bytes) const {
  bool aligned = reinterpret_cast<uintptr_t>(tensor_.data_ptr()) % bytes == 0;
  const auto item = static_cast<int64_t>(tensor_.element_size());
  for (int64_t dim = 0; dim + 1 < tensor_.dim(); ++dim) {
    aligned = aligned && stride(dim) * item % bytes == 0;
  }
  if (!aligned) {
    fail("must have a base address and strides that are multiples of ", bytes,
         " bytes, got strides ", list_text(tensor_.strides()), " of ", item, "-byte elements",
         "; allocate it with pagedattn.KVCache or slice it at such multiples");
  }
  return *this;
}

void check_range(const char* op, const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  if (high == INT64_MAX) fail(op, name, " must be at least ", low, ", got ", value);
  fail(op, name, " must be in [", low, ", ", high, "], got ", value);
}

}  // namespace pagedattn::ops
