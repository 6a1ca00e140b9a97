// What callers may pass where the manager takes tokens, counts and request ids.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings_array.h"
#include "types.h"

namespace pagedattn {

// An integer argument; errors name it.
inline std::int64_t to_int64(py::handle object, const std::string& name) {
  py::object index;
  if (!PyLong_Check(object.ptr())) {
    if (!PyIndex_Check(object.ptr())) {
      throw_type_error(name + " must be an int, not " + type_name(object));
    }
    index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
    if (!index) throw py::error_already_set();
    object = index;
  }
  int overflow = 0;
  const std::int64_t value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow != 0) {
    PyErr_Format(PyExc_OverflowError, "%s does not fit in int64", name.c_str());
    throw py::error_already_set();
  }
  return value;
}

// A str argument. The view lives as long as the object.
inline std::string_view to_string_view(py::handle object, const char* name) {
  if (!PyUnicode_Check(object.ptr())) {
    throw_type_error(std::string(name) + " must be a str, not " + type_name(object));
  }
  if (PyUnicode_IS_COMPACT_ASCII(object.ptr())) {  // its text is UTF-8 as it stands
    return {static_cast<const char*>(PyUnicode_DATA(object.ptr())),
            static_cast<std::size_t>(PyUnicode_GET_LENGTH(object.ptr()))};
  }
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (text == nullptr) throw py::error_already_set();
  return {text, static_cast<std::size_t>(size)};
}

inline std::optional<std::string_view> to_optional_string_view(py::handle object,
                                                               const char* name) {
  if (object.is_none()) return std::nullopt;
  return to_string_view(object, name);
}

// A list, tuple or other sequence of ints, or a one-dimensional array of int32 or int64. A
// contiguous int64 array is read where it is.
class IntsArg {
 public:
  IntsArg(py::handle object, const char* name) {
    if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
      read_sequence(object, name);
    } else if (IntArray::is_array(object)) {
      read_array(object, name);
    } else if (PySequence_Check(object.ptr()) && !PyUnicode_Check(object.ptr())) {
      read_sequence(object, name);
    } else {
      throw_type_error(std::string(name) + " must be a sequence or array of ints, not " +
                       type_name(object));
    }
  }

  Span<const std::int64_t> span() const { return span_; }

 private:
  void read_sequence(py::handle object, const char* name) {
    const auto items =
        py::reinterpret_steal<py::object>(PySequence_Fast(object.ptr(), "not a sequence"));
    if (!items) throw py::error_already_set();
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(items.ptr());
    PyObject* const* const item = PySequence_Fast_ITEMS(items.ptr());
    std::int64_t* const values = make_copy(size);
    for (Py_ssize_t i = 0; i < size; ++i) {
      // Ints made one after the other lie so in memory.
      __builtin_prefetch(reinterpret_cast<const char*>(item[i]) + kAhead);
      if (!read_small_int(item[i], &values[i])) return read_slowly(object, name);
    }
  }

  // Takes any item with __index__. That may run Python code, so the items must be in a tuple,
  // which cannot change meanwhile.
  void read_slowly(py::handle object, const char* name) {
    const auto items = py::reinterpret_steal<py::object>(PySequence_Tuple(object.ptr()));
    if (!items) throw py::error_already_set();
    const Py_ssize_t size = PyTuple_GET_SIZE(items.ptr());
    std::int64_t* const values = make_copy(size);
    for (Py_ssize_t i = 0; i < size; ++i) {
      values[i] =
          to_int64(PyTuple_GET_ITEM(items.ptr(), i), name + ("[" + std::to_string(i) + "]"));
    }
  }

  // Reads an int of one digit (30 bits), which token ids are, without a call.
  static bool read_small_int(PyObject* item, std::int64_t* value) {
    if (!PyLong_CheckExact(item)) return false;
#if PY_VERSION_HEX >= 0x030C0000
    const auto* number = reinterpret_cast<const PyLongObject*>(item);
    if (!PyUnstable_Long_IsCompact(number)) return false;
    *value = PyUnstable_Long_CompactValue(number);
#else
    const Py_ssize_t num_digits = Py_SIZE(item);
    if (num_digits < -1 || num_digits > 1) return false;
    *value = num_digits *
             static_cast<std::int64_t>(reinterpret_cast<const PyLongObject*>(item)->ob_digit[0]);
#endif
    return true;
  }

  void read_array(py::handle object, const char* name) {
    array_.emplace(object, name, 1);
    const IntArray& array = *array_;
    const std::int64_t size = array.shape[0];
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(array.data) % 8 == 0;
    if (array.itemsize == 8 && array.is_contiguous_in(0) && is_aligned) {
      span_ = {static_cast<const std::int64_t*>(array.data), size};
      return;
    }
    std::int64_t* const values = make_copy(size);
    if (array.itemsize == 8) {
      copy_items<std::int64_t>(array, values);
    } else {
      copy_items<std::int32_t>(array, values);
    }
  }

  template <typename Item>
  static void copy_items(const IntArray& array, std::int64_t* values) {
    const char* next = static_cast<const char*>(array.data);
    for (std::int64_t i = 0; i < array.shape[0]; ++i, next += array.strides[0]) {
      Item item;
      std::memcpy(&item, next, sizeof item);
      values[i] = item;
    }
  }

  // Memory for `size` ints, which the caller fills.
  std::int64_t* make_copy(std::int64_t size) {
    copy_.reset(new std::int64_t[size]);
    span_ = {copy_.get(), size};
    return copy_.get();
  }

  static constexpr int kAhead = 1024;  // bytes

  std::optional<IntArray> array_;
  std::unique_ptr<std::int64_t[]> copy_;
  Span<const std::int64_t> span_;
};

// A sequence of str.
class RequestIdsArg {
 public:
  explicit RequestIdsArg(py::handle object) {
    if (PyUnicode_Check(object.ptr()) || !PySequence_Check(object.ptr())) {
      throw_type_error("request_ids must be a sequence of str, not " + type_name(object));
    }
    items_ = py::reinterpret_steal<py::object>(PySequence_Tuple(object.ptr()));
    if (!items_) throw py::error_already_set();
    const Py_ssize_t size = PyTuple_GET_SIZE(items_.ptr());
    views_.reserve(size);
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* item = PyTuple_GET_ITEM(items_.ptr(), i);
      if (!PyUnicode_Check(item)) {
        throw_type_error("request_ids[" + std::to_string(i) + "] must be a str, not " +
                         type_name(item));
      }
      views_.push_back(to_string_view(item, ""));
    }
  }

  Span<const std::string_view> span() const {
    return {views_.data(), static_cast<std::int64_t>(views_.size())};
  }

 private:
  py::object items_;  // owns what the views show
  std::vector<std::string_view> views_;
};

}  // namespace pagedattn
