// Words shared by the whole block manager. Nothing here knows torch or Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pagedattn {

using BlockId = std::int32_t;
using Token = std::int64_t;

inline constexpr BlockId kNoBlock = -1;
// What a sliding-window sequence's table holds where a block was given back.
inline constexpr BlockId kNullBlock = 0;
// slot_mapping entry of a token that is not written.
inline constexpr std::int64_t kSkippedSlot = -1;

template <typename T>
struct Span {
  T* data = nullptr;
  std::int64_t size = 0;

  T& operator[](std::int64_t i) const { return data[i]; }
  Span subspan(std::int64_t first, std::int64_t count) const { return {data + first, count}; }
};

using TokenSpan = Span<const Token>;

// Rows of int32 with a contiguous last dimension.
struct Int32Rows {
  std::int32_t* data = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t num_cols = 0;
  std::int64_t row_stride = 0;

  std::int32_t* row(std::int64_t i) const { return data + i * row_stride; }
};

// Copy of a whole block, device to device.
struct BlockCopy {
  BlockId src;
  BlockId dst;
};

// Move of a whole block between device and host; `src` and `dst` in the direction of the call.
struct BlockMove {
  std::int32_t src;
  std::int32_t dst;
};

// How messages name a request. C strings carry them, so a NUL in the id is shown.
inline std::string request_name(std::string_view request_id) {
  std::string name = "request '";
  for (const char c : request_id) c == '\0' ? name += "\\0" : name += c;
  return name + "'";
}

// The call needs more free blocks than there are; the manager's state is as before the call.
class OutOfBlocks : public std::runtime_error {
 public:
  enum class Pool { kDevice, kHost };

  OutOfBlocks(Pool pool, std::string_view request_id, std::int64_t needed, std::int64_t free,
              std::int64_t total)
      : std::runtime_error(
            std::string(pool == Pool::kDevice ? "out of KV cache blocks" : "out of host blocks") +
            ": " + request_name(request_id) + " needed " + std::to_string(needed) + ", free " +
            std::to_string(free) + ", total " + std::to_string(total)),
        request_id(request_id),
        needed(needed),
        free(free),
        total(total) {}

  std::string request_id;
  std::int64_t needed;
  std::int64_t free;
  std::int64_t total;
};

class UnknownRequest : public std::runtime_error {
 public:
  explicit UnknownRequest(std::string_view request_id)
      : std::runtime_error("no " + request_name(request_id)) {}
};

}  // namespace pagedattn
