#include "checks.h"

#include <algorithm>

namespace pagedattn::ops {
namespace {

std::string device_name(const torch::stable::Device& device) {
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
  if (device_ != other.device_) {
    fail("must be on ", device_name(other.device_), " like ", other.name(), ", got ",
         device_name(device_));
  }
  return *this;
}

const Arg& Arg::on_cpu() const {
  if (!is_cpu()) fail("must be on cpu, got ", device_name(device_));
  return *this;
}

const Arg& Arg::has_dtype(std::initializer_list<ScalarType> accepted) const {
  if (std::find(accepted.begin(), accepted.end(), dtype_) != accepted.end()) return *this;
  std::string wanted;
  for (const ScalarType dtype : accepted) {
    if (!wanted.empty()) wanted += ", ";
    wanted += dtype_name(dtype);
  }
  fail("must have dtype ", accepted.size() > 1 ? "one of " : "", wanted, ", got ",
       dtype_name(dtype_));
}

const Arg& Arg::has_dtype_of(const Arg& other) const {
  if (dtype_ != other.dtype_) {
    fail("must have dtype ", dtype_name(other.dtype_), " like ", other.name(), ", got ",
         dtype_name(dtype_));
  }
  return *this;
}

const Arg& Arg::has_shape(const char* words, std::initializer_list<int64_t> expected) const {
  bool same = sizes_.size() == expected.size();
  for (size_t i = 0; same && i < expected.size(); ++i) {
    const int64_t want = expected.begin()[i];
    same = want == kAny || want == sizes_[i];
  }
  if (!same) {
    fail("must have shape ", words, " = ", list_text(std::vector<int64_t>(expected)), ", got ",
         list_text(sizes_));
  }
  return *this;
}

const Arg& Arg::has_contiguous_last_dim() const {
  const int64_t last = dim() - 1;
  if (sizes_[last] > 1 && strides_[last] != 1) {
    fail("must have a contiguous last dimension (stride 1), got strides ", list_text(strides_),
         "; call .contiguous()");
  }
  return *this;
}

const Arg& Arg::is_contiguous() const {
  if (!tensor_.is_contiguous()) {
    fail("must be contiguous, got shape ", list_text(sizes_), " with strides ", list_text(strides_),
         "; call .contiguous()");
  }
  return *this;
}

const Arg& Arg::does_not_overlap_itself() const {
  for (size_t dim = 0; dim < sizes_.size(); ++dim) {
    if (sizes_[dim] > 1 && strides_[dim] == 0) {
      fail("is written to and must not be an expanded view, got strides ", list_text(strides_));
    }
  }
  return *this;
}

const Arg& Arg::is_aligned(int64_t bytes) const {
  bool aligned = reinterpret_cast<uintptr_t>(tensor_.data_ptr()) % bytes == 0;
  const auto item = static_cast<int64_t>(tensor_.element_size());
  for (int64_t dim = 0; dim + 1 < this->dim(); ++dim) {
    aligned = aligned && stride(dim) * item % bytes == 0;
  }
  if (!aligned) {
    fail("must have a base address and strides that are multiples of ", bytes,
         " bytes, got strides ", list_text(strides_), " of ", item, "-byte elements",
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
