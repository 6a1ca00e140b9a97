#include <simt/async_copies.h>
#include <simt/shared_window.h>

#include <cstring>

namespace simt {

void AsyncCopies::clear() {
  pending_.clear();
  open_group_ = 0;
}

void AsyncCopies::issue(SharedWindow& window, uint32_t to, uint32_t bytes, const void* from,
                        uint32_t from_bytes) {
  // The device may read the source as early as here: a bad address is to show at this line.
  char early[16];
  std::memcpy(early, from, from_bytes);
  asm volatile("" : : "r"(early) : "memory");
  window.begin_copy(to, bytes);
  pending_.push_back({to, bytes, from, from_bytes, open_group_});
}

void AsyncCopies::wait(SharedWindow& window, uint64_t groups_left) {
  if (open_group_ > groups_left) land(window, open_group_ - groups_left);
}

void AsyncCopies::wait_all(SharedWindow& window) { land(window, ++open_group_); }

void AsyncCopies::land(SharedWindow& window, uint64_t end_group) {
  size_t count = 0;
  while (count < pending_.size() && pending_[count].group < end_group) {
    const AsyncCopy& copy = pending_[count++];
    window.end_copy(copy.to, copy.bytes);
    char* to = window.pointer_to(copy.to);
    std::memcpy(to, copy.from, copy.from_bytes);
    std::memset(to + copy.from_bytes, 0, copy.bytes - copy.from_bytes);
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(count));
}

}  // namespace simt
