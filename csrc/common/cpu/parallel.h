// The thread pool as the CPU kernels see it.
#pragma once

#include <atomic>
#include <cstdint>

namespace pagedattn {

// What a build has to provide (parallel_torch.cpp: ATen's pool): calls body(begin, end, context)
// on disjoint ranges that cover [begin, end). Ranges shorter than `grain` are not split further.
using RangeBody = void (*)(int64_t begin, int64_t end, void* context);
void run_parallel(int64_t begin, int64_t end, int64_t grain, RangeBody body, void* context);
int64_t num_threads();

// f(begin, end) on ranges that together cover [begin, end). f must not throw.
template <typename F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  if (begin >= end) return;
  run_parallel(
      begin, end, grain,
      [](int64_t range_begin, int64_t range_end, void* context) {
        (*static_cast<const F*>(context))(range_begin, range_end);
      },
      const_cast<F*>(&f));
}

// Units of very different cost: each goes to the thread that is free first, in about this order.
class UnitQueue {
 public:
  explicit UnitQueue(int64_t count) : count_(count) {}
  bool empty() const { return next_.load(std::memory_order_relaxed) >= count_; }
  bool take(int64_t& unit) {
    unit = next_.fetch_add(1, std::memory_order_relaxed);
    return unit < count_;
  }

 private:
  std::atomic<int64_t> next_{0};
  const int64_t count_;
};

// f() on every thread, or on `count` of them if that is fewer. f must not throw.
template <typename F>
void on_threads(int64_t count, const F& f) {
  const int64_t threads = num_threads();
  parallel_for(0, count < threads ? count : threads, 1, [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) f();
  });
}

}  // namespace pagedattn
