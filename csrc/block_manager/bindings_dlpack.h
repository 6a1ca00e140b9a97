// The part of the DLPack ABI (https://dmlc.github.io/dlpack, version 1) that reading a tensor's
// address, type and shape takes.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <iterator>
#include <string>

namespace pagedattn {

namespace py = pybind11;

// struct DLTensor
struct DlTensor {
  enum : std::uint8_t { kInt = 0 };
  enum : std::int32_t { kCpu = 1, kCudaHost = 3 };  // kCudaHost: pinned host memory

  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t ndim;
  std::uint8_t dtype_code;
  std::uint8_t dtype_bits;
  std::uint16_t dtype_lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: dense
  std::uint64_t byte_offset;

  std::string dtype_name() const {
    static constexpr const char* kNames[] = {"int",    "uint",    "float", "opaque",
                                             "bfloat", "complex", "bool"};
    const char* name = dtype_code < std::size(kNames) ? kNames[dtype_code] : "code";
    return name + std::to_string(dtype_bits);
  }
  bool is_in_host_memory() const { return device_type == kCpu || device_type == kCudaHost; }
};

// struct DLPackExchangeAPI: C functions of an array library, reached through its array type, that
// save the capsule and the Python calls of __dlpack__.
struct DlpackExchangeApi {
  std::uint32_t version_major;
  std::uint32_t version_minor;
  DlpackExchangeApi* prev_api;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  int (*dltensor_from_py_object)(void* object, DlTensor* out);  // may be null
  void* current_work_stream;
};

inline const DlpackExchangeApi* dlpack_exchange_api(py::handle object) {
  const auto type = py::type::handle_of(object);
  PyObject* capsule = PyObject_GetAttrString(type.ptr(), "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const auto* api = static_cast<const DlpackExchangeApi*>(
      PyCapsule_IsValid(capsule, "dlpack_exchange_api")
          ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
          : nullptr);
  Py_DECREF(capsule);
  while (api != nullptr && api->version_major > 1) api = api->prev_api;
  return api != nullptr && api->dltensor_from_py_object != nullptr ? api : nullptr;
}

inline bool has_dlpack_exchange(py::handle object) {
  return dlpack_exchange_api(object) != nullptr;
}

// The tensor of an object with DLPack. `owner` keeps its memory, shape and strides alive.
inline DlTensor dlpack_tensor(py::handle object, py::object* owner) {
  if (const DlpackExchangeApi* api = dlpack_exchange_api(object)) {
    DlTensor tensor;
    if (api->dltensor_from_py_object(object.ptr(), &tensor) != 0) throw py::error_already_set();
    *owner = py::reinterpret_borrow<py::object>(object);
    return tensor;
  }
  *owner = object.attr("__dlpack__")();
  // A DLManagedTensor starts with its DLTensor.
  void* managed = PyCapsule_GetPointer(owner->ptr(), "dltensor");
  if (managed == nullptr) throw py::error_already_set();
  return *static_cast<DlTensor*>(managed);
}

}  // namespace pagedattn
