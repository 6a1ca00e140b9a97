// One thread's cp.async operations. The data lands in shared memory only when it is waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simt {

class SharedWindow;

struct AsyncCopy {
  uint32_t to;
  uint32_t bytes;
  const void* from;
  uint32_t from_bytes;  // the rest is zero-filled
  uint64_t group;
};

class AsyncCopies {
 public:
  void clear();
  void issue(SharedWindow& window, uint32_t to, uint32_t bytes, const void* from,
             uint32_t from_bytes);
  void commit() { ++open_group_; }
  // Lands all committed groups but the newest `groups_left`.
  void wait(SharedWindow& window, uint64_t groups_left);
  void wait_all(SharedWindow& window);

 private:
  void land(SharedWindow& window, uint64_t end_group);

  std::vector<AsyncCopy> pending_;  // oldest first
  uint64_t open_group_ = 0;
};

}  // namespace simt
