#include <simt/schedule.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>

namespace simt {
namespace {

constexpr const char* kOrderNames[] = {"forward", "reverse", "lanes", "bursts"};

Order parse_order(const char* text) {
  for (int i = 0; i < 4; ++i) {
    if (std::strcmp(text, kOrderNames[i]) == 0) return static_cast<Order>(i);
  }
  throw std::invalid_argument(std::string("PAGEDATTN_SIMT_ORDER is '") + text +
                              "', not forward, reverse, lanes or bursts");
}

uint64_t parse_number(const char* variable, const char* text) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0') {
    throw std::invalid_argument(std::string(variable) + " is '" + text + "', not a number");
  }
  return value;
}

unsigned nth_bit(uint32_t bits, unsigned n) {
  for (; n > 0; --n) bits &= bits - 1;
  return __builtin_ctz(bits);
}

unsigned lowest(uint32_t bits) { return __builtin_ctz(bits); }
unsigned highest(uint32_t bits) { return 31 - __builtin_clz(bits); }

}  // namespace

const char* order_name(Order order) { return kOrderNames[static_cast<int>(order)]; }

Schedule Schedule::from_environment() {
  Schedule schedule;
  if (const char* text = std::getenv("PAGEDATTN_SIMT_SEED")) {
    schedule.seed = parse_number("PAGEDATTN_SIMT_SEED", text);
    schedule.order = Order::kBursts;
  }
  if (const char* text = std::getenv("PAGEDATTN_SIMT_ORDER")) schedule.order = parse_order(text);
  schedule.os_threads = std::max(1u, std::thread::hardware_concurrency());
  if (const char* text = std::getenv("PAGEDATTN_SIMT_THREADS")) {
    schedule.os_threads =
        std::max(1u, static_cast<unsigned>(parse_number("PAGEDATTN_SIMT_THREADS", text)));
  }
  return schedule;
}

void ReadyThreads::reset(unsigned num_threads, Order order, uint64_t seed) {
  order_ = order;
  random_ = Random(seed);
  warps_ = 0;
  burst_warp_ = 0;
  std::fill(std::begin(lanes_), std::end(lanes_), 0);
  for (unsigned warp = 0; warp * 32 < num_threads; ++warp) {
    const unsigned count = num_threads - warp * 32;
    add(warp, count >= 32 ? ~0u : (1u << count) - 1);
  }
}

unsigned ReadyThreads::take() {
  unsigned warp = 0;
  switch (order_) {
    case Order::kForward:
      warp = lowest(warps_);
      break;
    case Order::kReverse:
      warp = highest(warps_);
      break;
    case Order::kLanes:
      warp = nth_bit(warps_, random_.below(__builtin_popcount(warps_)));
      break;
    case Order::kBursts:
      if ((warps_ >> burst_warp_ & 1) == 0) {
        burst_warp_ = nth_bit(warps_, random_.below(__builtin_popcount(warps_)));
      }
      warp = burst_warp_;
      break;
  }
  const uint32_t ready = lanes_[warp];
  unsigned lane = 0;
  switch (order_) {
    case Order::kForward:
      lane = lowest(ready);
      break;
    case Order::kReverse:
      lane = highest(ready);
      break;
    default:
      lane = nth_bit(ready, random_.below(__builtin_popcount(ready)));
  }
  lanes_[warp] &= ~(1u << lane);
  if (lanes_[warp] == 0) warps_ &= ~(1u << warp);
  return warp * 32 + lane;
}

}  // namespace simt
