// Array that grows in chunks: addresses stay, growth copies nothing, memory follows use.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace pagedattn {

template <typename T>
class ChunkedArray {
 public:
  // An element is `width` consecutive T.
  explicit ChunkedArray(std::int64_t width) : width_(width) {}

  T* operator[](std::int64_t i) { return &chunks_[i >> kShift][(i & kMask) * width_]; }
  const T* operator[](std::int64_t i) const { return &chunks_[i >> kShift][(i & kMask) * width_]; }

  void grow_to(std::int64_t size) {
    while (static_cast<std::int64_t>(chunks_.size()) << kShift < size) {
      chunks_.push_back(std::make_unique<T[]>(width_ << kShift));
    }
  }

 private:
  static constexpr int kShift = 10;
  static constexpr std::int64_t kMask = (1 << kShift) - 1;

  std::int64_t width_;
  std::vector<std::unique_ptr<T[]>> chunks_;
};

}  // namespace pagedattn
