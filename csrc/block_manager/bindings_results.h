// Results and errors of the manager as Python objects.
//
// Results are struct sequences (native named tuples): read by field name or unpacked, and an order
// of magnitude cheaper to make than a Python-level class, which per-token calls would feel.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block_manager.h"

namespace pagedattn {

namespace py = pybind11;

inline py::object to_object(std::int64_t value) { return py::int_(value); }
inline py::object to_object(std::int32_t value) { return py::int_(value); }
inline py::object to_object(double value) { return py::float_(value); }
inline py::object to_object(const std::string& value) { return py::str(value); }
inline py::object to_object(py::object value) { return value; }
inline py::object to_object(const BlockCopy& copy) { return py::make_tuple(copy.src, copy.dst); }
inline py::object to_object(const BlockMove& move) { return py::make_tuple(move.src, move.dst); }
py::object to_object(const KvEvent& event);

template <typename Item>
py::object to_list(const std::vector<Item>& items) {
  py::list list(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    PyList_SET_ITEM(list.ptr(), i, to_object(items[i]).release().ptr());
  }
  return std::move(list);
}

py::object to_python(const Allocation& allocation);
py::object to_python(AllocationStatus status);
py::object to_python(const BlockManagerStats& stats);
py::object append_result(const std::vector<std::int64_t>& slots,
                         const std::optional<BlockCopy>& copy);
py::object batch_result(const BatchResult& result);
py::object allocate_batch_result(const BatchResult& result);

void register_results(py::module_& module);
void register_errors(py::module_& module);

}  // namespace pagedattn
