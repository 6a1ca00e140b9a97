#include "bindings_results.h"

#include <array>

namespace pagedattn {
namespace {

// A struct sequence type, made once when the module is imported.
template <std::size_t kNumFields>
class ResultType {
 public:
  ResultType(const char* name, const char* doc,
             std::array<PyStructSequence_Field, kNumFields> fields)
      : name_(name), doc_(doc) {
    std::copy(fields.begin(), fields.end(), fields_.begin());
    fields_[kNumFields] = {nullptr, nullptr};
  }

  void add_to(py::module_& module) {
    PyStructSequence_Desc description = {name_, doc_, fields_.data(), kNumFields};
    type_ = PyStructSequence_NewType(&description);
    if (type_ == nullptr) throw py::error_already_set();
    const std::string qualified = name_;
    module.attr(qualified.substr(qualified.rfind('.') + 1).c_str()) =
        py::handle(reinterpret_cast<PyObject*>(type_));
  }

  template <typename... Values>
  py::object operator()(const Values&... values) const {
    static_assert(sizeof...(Values) == kNumFields);
    PyObject* result = PyStructSequence_New(type_);
    if (result == nullptr) throw py::error_already_set();
    Py_ssize_t i = 0;
    (PyStructSequence_SetItem(result, i++, to_object(values).release().ptr()), ...);
    return py::reinterpret_steal<py::object>(result);
  }

 private:
  const char* name_;
  const char* doc_;
  std::array<PyStructSequence_Field, kNumFields + 1> fields_;
  PyTypeObject* type_ = nullptr;
};

ResultType<2> allocation_type(
    "pagedattn.block_manager.Allocation", "Result of BlockManager.allocate.",
    {{{"block_ids", "the request's block table"},
      {"num_cached_tokens", "leading tokens whose KV is in the cache already"}}});

ResultType<2> append_result_type(
    "pagedattn.block_manager.AppendResult", "Result of BlockManager.append.",
    {{{"slots", "block_id * block_size + offset for each token"},
      {"copies", "(src, dst) blocks to copy before the step writes"}}});

ResultType<2> batch_result_type(
    "pagedattn.block_manager.BatchResult", "Result of BlockManager.append_batch.",
    {{{"failed", "positions of the requests that did not fit and are unchanged"},
      {"copies", "(src, dst) blocks to copy before the step writes, in any order"}}});

ResultType<2> allocate_batch_result_type(
    "pagedattn.block_manager.AllocateBatchResult", "Result of BlockManager.allocate_batch.",
    {{{"failed", "positions of the requests that did not fit and do not exist"},
      {"num_cached_tokens", "for each request, leading tokens that are cached already"}}});

ResultType<11> stats_type(
    "pagedattn.block_manager.BlockManagerStats", "Result of BlockManager.stats.",
    {{{"num_blocks", "device blocks, as given"},
      {"num_free", "blocks that can be handed out"},
      {"num_hittable_free", "free blocks whose content can still be hit"},
      {"num_pinned", "blocks whose content is pinned"},
      {"usage", "fraction of the blocks that are used or pinned, 0 to 1"},
      {"num_host_blocks", "host blocks, as given"},
      {"num_host_free", "host blocks that are free"},
      {"prefix_queried_tokens", "tokens of all allocated prompts"},
      {"prefix_hit_tokens", "those found in the cache"},
      {"num_evictions", "cached blocks that were handed out for other content"},
      {"num_copies_on_write", "blocks copied because they were shared"}}});

ResultType<6> kv_event_type(
    "pagedattn.block_manager.KvEvent", "One change of the prefix cache.",
    {{{"kind", "'stored', 'removed' or 'cleared'"},
      {"prefix_id", "the prefix that can, or can no longer, be hit; None if cleared"},
      {"parent_id", "stored: the prefix one block shorter; None at the start of a prompt"},
      {"block_id", "stored: the block that holds it"},
      {"token_ids", "stored: the tokens of that block"},
      {"cache_salt", "stored, at the start of a prompt: its salt"}}});

PyObject* allocation_status = nullptr;
PyObject* out_of_blocks = nullptr;

void set_out_of_blocks(const OutOfBlocks& error) {
  const py::handle type(out_of_blocks);
  py::object instance = type(error.what());
  instance.attr("needed") = error.needed;
  instance.attr("free") = error.free;
  instance.attr("total") = error.total;
  instance.attr("request_id") = error.request_id;
  PyErr_SetObject(type.ptr(), instance.ptr());
}

}  // namespace

py::object to_python(const Allocation& allocation) {
  return allocation_type(to_list(allocation.block_ids), allocation.num_cached_tokens);
}

py::object to_python(AllocationStatus status) {
  static constexpr const char* kNames[] = {"OK", "LATER", "NEVER"};
  return py::handle(allocation_status).attr(kNames[static_cast<int>(status)]);
}

py::object to_python(const BlockManagerStats& s) {
  return stats_type(s.num_blocks, s.num_free, s.num_hittable_free, s.num_pinned, s.usage,
                    s.num_host_blocks, s.num_host_free, s.prefix_queried_tokens,
                    s.prefix_hit_tokens, s.num_evictions, s.num_copies_on_write);
}

py::object to_object(const KvEvent& event) {
  const py::none none;
  switch (event.kind) {
    case KvEvent::Kind::kStored:
      return kv_event_type(std::string("stored"), event.prefix,
                           event.parent == kNoPrefix ? py::object(none) : to_object(event.parent),
                           event.block, to_list(event.tokens),
                           event.cache_salt ? to_object(*event.cache_salt) : py::object(none));
    case KvEvent::Kind::kRemoved:
      return kv_event_type(std::string("removed"), event.prefix, none, none, none, none);
    default:
      return kv_event_type(std::string("cleared"), none, none, none, none, none);
  }
}

py::object append_result(const std::vector<std::int64_t>& slots,
                         const std::optional<BlockCopy>& copy) {
  std::vector<BlockCopy> copies;
  if (copy) copies.push_back(*copy);
  return append_result_type(to_list(slots), to_list(copies));
}

py::object batch_result(const BatchResult& result) {
  return batch_result_type(to_list(result.failed), to_list(result.copies));
}

py::object allocate_batch_result(const BatchResult& result) {
  return allocate_batch_result_type(to_list(result.failed), to_list(result.num_cached_tokens));
}

void register_results(py::module_& module) {
  allocation_type.add_to(module);
  append_result_type.add_to(module);
  batch_result_type.add_to(module);
  allocate_batch_result_type.add_to(module);
  stats_type.add_to(module);
  kv_event_type.add_to(module);

  py::object status = py::module_::import("enum").attr("Enum")(
      "AllocationStatus", "OK LATER NEVER", py::arg("module") = "pagedattn.block_manager");
  status.doc() = "Whether a prompt fits: now, once others are freed, or not even in an empty pool.";
  module.attr("AllocationStatus") = status;
  allocation_status = status.release().ptr();
}

void register_errors(py::module_& module) {
  out_of_blocks = PyErr_NewExceptionWithDoc(
      "pagedattn.block_manager.OutOfBlocks",
      "Too few free blocks; the manager is as it was before the call.\n\n"
      "Attributes: needed, free and total (numbers of blocks), request_id.",
      PyExc_MemoryError, nullptr);
  if (out_of_blocks == nullptr) throw py::error_already_set();
  module.attr("OutOfBlocks") = py::handle(out_of_blocks);

  // Other C++ exceptions map by themselves: std::invalid_argument to ValueError,
  // std::out_of_range to IndexError, the rest to RuntimeError.
  py::register_local_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const OutOfBlocks& error) {
      set_out_of_blocks(error);
    } catch (const UnknownRequest& error) {
      PyErr_SetString(PyExc_KeyError, error.what());
    }
  });
}

}  // namespace pagedattn
