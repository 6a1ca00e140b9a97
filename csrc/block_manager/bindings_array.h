// Arrays of integers from Python, without a copy: anything with the buffer protocol (numpy, array,
// memoryview) or DLPack (torch).
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "bindings_dlpack.h"

namespace pagedattn {

namespace py = pybind11;

[[noreturn]] inline void throw_value_error(const std::string& message) {
  throw py::value_error(message);
}
[[noreturn]] inline void throw_type_error(const std::string& message) {
  throw py::type_error(message);
}

inline std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

// A view of a signed integer array in host memory; keeps what it views alive.
class IntArray {
 public:
  static constexpr int kMaxDims = 2;

  // Whether `object` claims to be an array at all.
  static bool is_array(py::handle object) {
    return PyObject_CheckBuffer(object.ptr()) || has_dlpack_exchange(object) ||
           py::hasattr(object, "__dlpack__");
  }

  // Raises TypeError or ValueError, naming the argument, unless `object` is an array of int32 or
  // int64 in host memory with `dims` dimensions.
  IntArray(py::handle object, const char* name, int dims) : name_(name) {
    if (PyObject_CheckBuffer(object.ptr())) {
      open_buffer(object);
    } else {
      open_dlpack(object);
    }
    if (ndim != dims) {
      throw_value_error(name_ + " must have " + std::to_string(dims) + " dimension" +
                        (dims == 1 ? "" : "s") + ", has " + std::to_string(ndim));
    }
  }

  void* data = nullptr;
  int itemsize = 0;  // 4 or 8
  int ndim = 0;
  std::int64_t shape[kMaxDims] = {};
  std::int64_t strides[kMaxDims] = {};  // bytes
  bool is_read_only = false;

  bool is_contiguous_in(int dim) const { return shape[dim] <= 1 || strides[dim] == itemsize; }

  // Raises unless this can be written row by row, in items of `size` bytes.
  void check_output(int size) const {
    if (itemsize != size) {
      throw_type_error(name_ + " must be int" + std::to_string(size * 8) + ", is int" +
                       std::to_string(itemsize * 8));
    }
    if (is_read_only) throw_value_error(name_ + " is read-only");
    if (!is_contiguous_in(ndim - 1)) {
      throw_value_error(name_ + " must be contiguous in its last dimension");
    }
    if (reinterpret_cast<std::uintptr_t>(data) % size != 0 || strides[0] % size != 0) {
      throw_value_error(name_ + " is not aligned to its items");
    }
    // Rows that overlap would overwrite each other.
    if (ndim == 2 && shape[0] > 1 && strides[0] < shape[1] * size) {
      throw_value_error(name_ + " must have rows that do not overlap");
    }
  }

 private:
  void check_dtype(bool is_signed_int, int size, const std::string& given) {
    if (!is_signed_int || (size != 4 && size != 8)) {
      throw_type_error(name_ + " must be int32 or int64, is " + given);
    }
    itemsize = size;
  }

  void open_buffer(py::handle object) {
    Py_buffer& view = buffer_.view;
    if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
      throw py::error_already_set();
    }
    const std::string format = view.format == nullptr ? "B" : view.format;
    const bool is_int = format == "i" || format == "l" || format == "q" || format == "@i" ||
                        format == "@l" || format == "@q" || format == "=i" || format == "=q";
    check_dtype(is_int, static_cast<int>(view.itemsize), "an array of format '" + format + "'");
    data = view.buf;
    is_read_only = view.readonly;
    ndim = view.ndim;
    for (int d = 0; d < ndim && d < kMaxDims; ++d) {
      shape[d] = view.shape[d];
      strides[d] = view.strides[d];
    }
  }

  void open_dlpack(py::handle object) {
    const DlTensor tensor = export_tensor(object);
    if (!tensor.is_in_host_memory()) {
      throw_value_error(name_ + " must be in host memory, is on a device of DLPack type " +
                        std::to_string(tensor.device_type));
    }
    check_dtype(tensor.dtype_code == DlTensor::kInt && tensor.dtype_lanes == 1,
                tensor.dtype_bits / 8, tensor.dtype_name());
    data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    ndim = tensor.ndim;
    std::int64_t dense = itemsize;
    for (int d = ndim; d-- > 0;) {
      if (d < kMaxDims) {
        shape[d] = tensor.shape[d];
        strides[d] = tensor.strides == nullptr ? dense : tensor.strides[d] * itemsize;
      }
      dense *= tensor.shape[d];
    }
  }

  DlTensor export_tensor(py::handle object) {
    try {
      return dlpack_tensor(object, &dlpack_owner_);
    } catch (const py::error_already_set& error) {
      // Such as a tensor without memory; the rest of torch's message is a C++ stack trace.
      const std::string what = error.what();
      throw_value_error(name_ + " cannot be read: " + what.substr(0, what.find('\n')));
    }
  }

  struct Buffer {
    Py_buffer view = {};

    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { PyBuffer_Release(&view); }  // does nothing for a view never opened
  };

  std::string name_;
  Buffer buffer_;
  py::object dlpack_owner_;
};

}  // namespace pagedattn
