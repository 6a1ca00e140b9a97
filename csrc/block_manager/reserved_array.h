// Array whose first elements are one piece of memory, written at construction, so that no call in
// a step waits for the system to map a page. Beyond them it grows in chunks. Addresses stay.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace pagedattn {

template <typename T>
class ReservedArray {
 public:
  // An element is `width` consecutive T; `reserved` elements are there from the start.
  ReservedArray(std::int64_t width, std::int64_t reserved)
      : width_(width), num_reserved_(reserved), reserved_(width * reserved) {}

  const T* operator[](std::int64_t i) const {
    return i < num_reserved_ ? &reserved_[i * width_] : in_chunk(i - num_reserved_);
  }
  T* operator[](std::int64_t i) { return const_cast<T*>(std::as_const(*this)[i]); }

  void grow_to(std::int64_t size) {
    while (num_reserved_ + (static_cast<std::int64_t>(chunks_.size()) << kShift) < size) {
      chunks_.push_back(std::make_unique<T[]>(width_ << kShift));
    }
  }

 private:
  static constexpr int kShift = 8;
  static constexpr std::int64_t kMask = (1 << kShift) - 1;

  const T* in_chunk(std::int64_t i) const { return &chunks_[i >> kShift][(i & kMask) * width_]; }

  std::int64_t width_;
  std::int64_t num_reserved_;
  std::vector<T> reserved_;
  std::vector<std::unique_ptr<T[]>> chunks_;
};

}  // namespace pagedattn
