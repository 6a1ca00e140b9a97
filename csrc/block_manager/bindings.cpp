// The Python module pagedattn._block_manager: conversion of arguments and results, the lock and
// the GIL. Only the bindings* files know Python.
#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <utility>

#include "bindings_args.h"
#include "bindings_doc.h"
#include "bindings_results.h"
#include "block_manager.h"

namespace pagedattn {
namespace {

struct PyBlockManager {
  explicit PyBlockManager(const BlockManagerConfig& config) : core(config) {}

  std::mutex mutex;
  BlockManager core;
};

// Calls on more tokens or table entries than this let other Python threads run meanwhile.
constexpr std::int64_t kLongCall = 8192;

// Runs call(core) under the lock. Nobody waits for the lock while holding the GIL, and `call`
// touches no Python object, so the two locks cannot deadlock.
template <typename Call>
auto locked(PyBlockManager& self, std::int64_t work, Call call) {
  if (work < kLongCall) {
    std::unique_lock<std::mutex> lock(self.mutex, std::try_to_lock);
    if (lock.owns_lock()) return call(self.core);
  }
  py::gil_scoped_release release;
  std::lock_guard<std::mutex> lock(self.mutex);
  return call(self.core);
}

template <typename Call>
auto locked(PyBlockManager& self, Call call) {
  return locked(self, 0, std::move(call));
}

// The optional output arrays of a batch call.
class BatchOutputs {
 public:
  BatchOutputs(py::handle slot_mapping, py::handle block_tables, py::handle seq_lens) {
    if (!slot_mapping.is_none()) {
      open(&slot_mapping_, slot_mapping, "slot_mapping", 1, 8);
      buffers.slot_mapping = Span<std::int64_t>{static_cast<std::int64_t*>(slot_mapping_->data),
                                                slot_mapping_->shape[0]};
    }
    if (!block_tables.is_none()) {
      open(&block_tables_, block_tables, "block_tables", 2, 4);
      buffers.block_tables =
          Int32Rows{static_cast<std::int32_t*>(block_tables_->data), block_tables_->shape[0],
                    block_tables_->shape[1], block_tables_->strides[0] / 4};
    }
    if (!seq_lens.is_none()) {
      open(&seq_lens_, seq_lens, "seq_lens", 1, 4);
      buffers.seq_lens =
          Span<std::int32_t>{static_cast<std::int32_t*>(seq_lens_->data), seq_lens_->shape[0]};
    }
  }

  // Entries to write, for the decision to release the GIL.
  std::int64_t size() const {
    return (block_tables_ ? block_tables_->shape[0] * block_tables_->shape[1] : 0) +
           (slot_mapping_ ? slot_mapping_->shape[0] : 0);
  }

  BatchBuffers buffers;

 private:
  static void open(std::optional<IntArray>* array, py::handle object, const char* name, int dims,
                   int itemsize) {
    if (!IntArray::is_array(object)) {
      throw_type_error(std::string(name) + " must be an int" + std::to_string(itemsize * 8) +
                       " array, not " + type_name(object));
    }
    array->emplace(object, name, dims);
    (*array)->check_output(itemsize);
  }

  std::optional<IntArray> slot_mapping_;
  std::optional<IntArray> block_tables_;
  std::optional<IntArray> seq_lens_;
};

std::optional<std::int64_t> to_optional_int64(py::handle object, const char* name) {
  if (object.is_none()) return std::nullopt;
  return to_int64(object, name);
}

std::unique_ptr<PyBlockManager> make(py::handle num_blocks, py::handle block_size,
                                     bool enable_prefix_caching, py::handle num_host_blocks,
                                     double watermark, py::handle window, bool enable_kv_events) {
  BlockManagerConfig config;
  config.num_blocks = to_int64(num_blocks, "num_blocks");
  config.block_size = to_int64(block_size, "block_size");
  config.enable_prefix_caching = enable_prefix_caching;
  config.num_host_blocks = to_int64(num_host_blocks, "num_host_blocks");
  config.watermark = watermark;
  config.window = to_optional_int64(window, "window");
  config.record_events = enable_kv_events;
  return std::make_unique<PyBlockManager>(config);
}

py::object allocate(PyBlockManager& self, py::handle request_id, py::handle token_ids,
                    py::handle cache_salt) {
  const auto id = to_string_view(request_id, "request_id");
  const auto salt = to_optional_string_view(cache_salt, "cache_salt");
  const IntsArg tokens(token_ids, "token_ids");
  return to_python(locked(self, tokens.span().size, [&](BlockManager& core) {
    return core.allocate(id, tokens.span(), salt);
  }));
}

py::object allocate_batch(PyBlockManager& self, py::handle request_ids, py::handle token_ids,
                          py::handle counts, py::handle cache_salt, py::handle slot_mapping,
                          py::handle block_tables, py::handle seq_lens) {
  const RequestIdsArg ids(request_ids);
  const IntsArg tokens(token_ids, "token_ids");
  const IntsArg sizes(counts, "counts");
  const auto salt = to_optional_string_view(cache_salt, "cache_salt");
  const BatchOutputs out(slot_mapping, block_tables, seq_lens);
  return allocate_batch_result(
      locked(self, tokens.span().size + out.size(), [&](BlockManager& core) {
        return core.allocate_batch({ids.span(), tokens.span(), sizes.span()}, salt, out.buffers);
      }));
}

py::object append(PyBlockManager& self, py::handle request_id, py::handle token_ids) {
  const auto id = to_string_view(request_id, "request_id");
  const IntsArg tokens(token_ids, "token_ids");
  std::vector<std::int64_t> slots(tokens.span().size);
  const auto copy = locked(self, tokens.span().size, [&](BlockManager& core) {
    return core.append(id, tokens.span(), {slots.data(), tokens.span().size});
  });
  return append_result(slots, copy);
}

py::object append_batch(PyBlockManager& self, py::handle request_ids, py::handle token_ids,
                        py::handle counts, py::handle slot_mapping, py::handle block_tables,
                        py::handle seq_lens) {
  const RequestIdsArg ids(request_ids);
  const IntsArg tokens(token_ids, "token_ids");
  std::optional<IntsArg> sizes;
  if (!counts.is_none()) sizes.emplace(counts, "counts");
  const BatchOutputs out(slot_mapping, block_tables, seq_lens);
  return batch_result(locked(self, tokens.span().size + out.size(), [&](BlockManager& core) {
    TokenBatch batch{ids.span(), tokens.span()};
    if (sizes) batch.counts = sizes->span();
    return core.append_batch(batch, out.buffers);
  }));
}

void fill_batch(PyBlockManager& self, py::handle request_ids, py::handle block_tables,
                py::handle seq_lens) {
  const RequestIdsArg ids(request_ids);
  const BatchOutputs out(py::none(), block_tables, seq_lens);
  locked(self, out.size(), [&](BlockManager& core) { core.fill_batch(ids.span(), out.buffers); });
}

py::object lookup(PyBlockManager& self, py::handle token_ids, py::handle cache_salt) {
  const IntsArg tokens(token_ids, "token_ids");
  const auto salt = to_optional_string_view(cache_salt, "cache_salt");
  return py::int_(locked(self, tokens.span().size,
                         [&](BlockManager& core) { return core.lookup(tokens.span(), salt); }));
}

py::object pin_prefix(PyBlockManager& self, py::handle token_ids, py::handle cache_salt) {
  const IntsArg tokens(token_ids, "token_ids");
  const auto salt = to_optional_string_view(cache_salt, "cache_salt");
  return py::int_(locked(self, tokens.span().size,
                         [&](BlockManager& core) { return core.pin_prefix(tokens.span(), salt); }));
}

py::object unpin_prefix(PyBlockManager& self, py::handle token_ids, py::handle cache_salt) {
  const IntsArg tokens(token_ids, "token_ids");
  const auto salt = to_optional_string_view(cache_salt, "cache_salt");
  return py::int_(locked(self, tokens.span().size, [&](BlockManager& core) {
    return core.unpin_prefix(tokens.span(), salt);
  }));
}

py::object can_allocate(PyBlockManager& self, py::handle num_tokens) {
  const std::int64_t count = to_int64(num_tokens, "num_tokens");
  return to_python(locked(self, [&](BlockManager& core) { return core.can_allocate(count); }));
}

void fork(PyBlockManager& self, py::handle parent_id, py::handle child_id) {
  const auto parent = to_string_view(parent_id, "parent_id");
  const auto child = to_string_view(child_id, "child_id");
  locked(self, [&](BlockManager& core) { core.fork(parent, child); });
}

void truncate(PyBlockManager& self, py::handle request_id, py::handle num_tokens) {
  const auto id = to_string_view(request_id, "request_id");
  const std::int64_t count = to_int64(num_tokens, "num_tokens");
  locked(self, [&](BlockManager& core) { core.truncate(id, count); });
}

py::object free(PyBlockManager& self, py::handle request_id, py::handle num_computed) {
  const auto id = to_string_view(request_id, "request_id");
  const auto computed = to_optional_int64(num_computed, "num_computed");
  return to_list(locked(self, [&](BlockManager& core) { return core.free(id, computed); }));
}

py::object swap_out(PyBlockManager& self, py::handle request_id) {
  const auto id = to_string_view(request_id, "request_id");
  return to_list(locked(self, [&](BlockManager& core) { return core.swap_out(id); }));
}

py::object swap_in(PyBlockManager& self, py::handle request_id) {
  const auto id = to_string_view(request_id, "request_id");
  return to_list(locked(self, [&](BlockManager& core) { return core.swap_in(id); }));
}

py::object block_table(PyBlockManager& self, py::handle request_id) {
  const auto id = to_string_view(request_id, "request_id");
  return to_list(
      locked(self, [&](BlockManager& core) { return std::vector<BlockId>(core.block_table(id)); }));
}

std::int64_t num_tokens(PyBlockManager& self, py::handle request_id) {
  const auto id = to_string_view(request_id, "request_id");
  return locked(self, [&](BlockManager& core) { return core.num_tokens(id); });
}

bool contains(PyBlockManager& self, py::handle request_id) {
  const auto id = to_string_view(request_id, "request_id");
  return locked(self, [&](BlockManager& core) { return core.has_request(id); });
}

std::int64_t ref_count(PyBlockManager& self, py::handle block_id) {
  const std::int64_t id = to_int64(block_id, "block_id");
  return locked(self, [&](BlockManager& core) { return core.ref_count(id); });
}

std::int64_t common_prefix_blocks(PyBlockManager& self, py::handle request_ids) {
  const RequestIdsArg ids(request_ids);
  return locked(self, [&](BlockManager& core) { return core.common_prefix_blocks(ids.span()); });
}

std::string repr(PyBlockManager& self) {
  const auto [config, num_free] = locked(self, [](BlockManager& core) {
    return std::make_pair(core.config(), core.num_free_blocks());
  });
  return "BlockManager(num_blocks=" + std::to_string(config.num_blocks) +
         ", block_size=" + std::to_string(config.block_size) +
         ", num_free_blocks=" + std::to_string(num_free) + ")";
}

}  // namespace

PYBIND11_MODULE(_block_manager, module) {
  module.doc() = "C++ core of pagedattn.block_manager.";
  register_results(module);
  register_errors(module);

  using py::arg;
  const py::kw_only kw_only;
  py::class_<PyBlockManager>(module, "BlockManager", doc::kBlockManager)
      .def(py::init(&make), arg("num_blocks"), arg("block_size") = 16, kw_only,
           arg("enable_prefix_caching") = true, arg("num_host_blocks") = 0, arg("watermark") = 0.0,
           arg("window") = py::none(), arg("enable_kv_events") = false)
      .def("allocate", &allocate, arg("request_id"), arg("token_ids"), kw_only,
           arg("cache_salt") = py::none(), doc::kAllocate)
      .def("allocate_batch", &allocate_batch, arg("request_ids"), arg("token_ids"), arg("counts"),
           kw_only, arg("cache_salt") = py::none(), arg("slot_mapping") = py::none(),
           arg("block_tables") = py::none(), arg("seq_lens") = py::none(), doc::kAllocateBatch)
      .def("lookup", &lookup, arg("token_ids"), kw_only, arg("cache_salt") = py::none(),
           doc::kLookup)
      .def("can_allocate", &can_allocate, arg("num_tokens"), doc::kCanAllocate)
      .def("append", &append, arg("request_id"), arg("token_ids"), doc::kAppend)
      .def("append_batch", &append_batch, arg("request_ids"), arg("token_ids"),
           arg("counts") = py::none(), kw_only, arg("slot_mapping") = py::none(),
           arg("block_tables") = py::none(), arg("seq_lens") = py::none(), doc::kAppendBatch)
      .def("fill_batch", &fill_batch, arg("request_ids"), arg("block_tables"), arg("seq_lens"),
           doc::kFillBatch)
      .def("fork", &fork, arg("parent_id"), arg("child_id"), doc::kFork)
      .def("truncate", &truncate, arg("request_id"), arg("num_tokens"), doc::kTruncate)
      .def("free", &free, arg("request_id"), kw_only, arg("num_computed") = py::none(), doc::kFree)
      .def("common_prefix_blocks", &common_prefix_blocks, arg("request_ids"),
           doc::kCommonPrefixBlocks)
      .def("pin_prefix", &pin_prefix, arg("token_ids"), kw_only, arg("cache_salt") = py::none(),
           doc::kPinPrefix)
      .def("unpin_prefix", &unpin_prefix, arg("token_ids"), kw_only, arg("cache_salt") = py::none(),
           doc::kUnpinPrefix)
      .def("swap_out", &swap_out, arg("request_id"), doc::kSwapOut)
      .def("swap_in", &swap_in, arg("request_id"), doc::kSwapIn)
      .def("block_table", &block_table, arg("request_id"), doc::kBlockTable)
      .def("num_tokens", &num_tokens, arg("request_id"), doc::kNumTokens)
      .def("__contains__", &contains, arg("request_id"))
      .def("ref_count", &ref_count, arg("block_id"), doc::kRefCount)
      .def(
          "stats",
          [](PyBlockManager& self) {
            return to_python(locked(self, [](BlockManager& core) { return core.stats(); }));
          },
          doc::kStats)
      .def(
          "reset_prefix_cache",
          [](PyBlockManager& self) {
            return locked(self, kLongCall,
                          [](BlockManager& core) { return core.reset_prefix_cache(); });
          },
          doc::kResetPrefixCache)
      .def(
          "take_kv_events",
          [](PyBlockManager& self) {
            return to_list(locked(self, [](BlockManager& core) { return core.take_events(); }));
          },
          doc::kTakeKvEvents)
      .def(
          "check_invariants",
          [](PyBlockManager& self) {
            locked(self, kLongCall, [](BlockManager& core) { core.check_invariants(); });
          },
          doc::kCheckInvariants)
      .def_property_readonly(
          "num_free_blocks",
          [](PyBlockManager& self) {
            return locked(self, [](BlockManager& core) { return core.num_free_blocks(); });
          },
          doc::kNumFreeBlocks)
      .def_property_readonly(
          "num_host_free_blocks",
          [](PyBlockManager& self) {
            return locked(self, [](BlockManager& core) { return core.num_host_free_blocks(); });
          },
          doc::kNumHostFreeBlocks)
      .def_property_readonly(
          "num_blocks", [](const PyBlockManager& self) { return self.core.config().num_blocks; },
          "Device blocks, as given.")
      .def_property_readonly(
          "block_size", [](const PyBlockManager& self) { return self.core.config().block_size; },
          "Tokens in a block.")
      .def("__repr__", &repr);
}

}  // namespace pagedattn
