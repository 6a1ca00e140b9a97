// In which order the threads of a block run. CUDA promises none, so a correct kernel gives the same
// result under all of them.
#pragma once

#include <cstdint>

namespace simt {

enum class Order {
  kForward,  // the lowest thread that can run, as far as it gets
  kReverse,  // the highest one
  kLanes,    // a random thread of a random warp at every switch
  kBursts,   // a random warp as far as it gets, its lanes at random
};

// From PAGEDATTN_SIMT_ORDER (forward, reverse, lanes, bursts), PAGEDATTN_SIMT_SEED and
// PAGEDATTN_SIMT_THREADS. A seed without an order means bursts. Throws std::invalid_argument.
struct Schedule {
  Order order = Order::kForward;
  uint64_t seed = 0;
  unsigned os_threads = 1;

  static Schedule from_environment();
};

const char* order_name(Order order);

class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}

  // splitmix64
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  unsigned below(unsigned bound) { return static_cast<unsigned>((next() >> 32) * bound >> 32); }

 private:
  uint64_t state_;
};

// The threads of a block that can run, and which of them does next. Warps and lanes are bits.
class ReadyThreads {
 public:
  void reset(unsigned num_threads, Order order, uint64_t seed);
  void add(unsigned warp, uint32_t lanes) {
    lanes_[warp] |= lanes;
    if (lanes != 0) warps_ |= 1u << warp;
  }
  bool empty() const { return warps_ == 0; }

  // Takes one out. Not to be called when empty.
  unsigned take();

 private:
  uint32_t lanes_[32] = {};
  uint32_t warps_ = 0;
  unsigned burst_warp_ = 0;
  Order order_ = Order::kForward;
  Random random_;
};

}  // namespace simt
