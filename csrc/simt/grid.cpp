// Distributes the blocks of a grid over OS threads.
#include <simt/block.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <thread>

#include "faults.h"

namespace simt {
namespace {

// Blocks keep their fibers' stacks, so they are used again.
class BlockPool {
 public:
  std::unique_ptr<Block> take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return std::make_unique<Block>();
    std::unique_ptr<Block> block = std::move(free_.back());
    free_.pop_back();
    return block;
  }
  void give_back(std::unique_ptr<Block> block) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(block));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> free_;
};

// The order in which blocks start.
class BlockOrder {
 public:
  BlockOrder(uint64_t count, const Schedule& schedule) : count_(count) {
    if (schedule.order == Order::kReverse) {
      factor_ = count - 1;
      offset_ = count - 1;
    } else if (schedule.order != Order::kForward) {
      Random random(schedule.seed);
      do {
        factor_ = random.next() % count;
      } while (std::gcd(factor_, count) != 1);
      offset_ = random.next() % count;
    }
  }
  uint64_t operator[](uint64_t i) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(i) * factor_ + offset_) % count_);
  }

 private:
  uint64_t count_;
  uint64_t factor_ = 1;
  uint64_t offset_ = 0;
};

}  // namespace

std::string run_grid(const Grid& grid) {
  static BlockPool& pool = *new BlockPool;  // outlives static destruction
  const uint64_t count = uint64_t{grid.size.x} * grid.size.y * grid.size.z;
  const BlockOrder order(count, grid.schedule);
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::string error;

  const auto work = [&] {
    FaultGuard guard;
    std::unique_ptr<Block> block = pool.take();
    block->shared().attach();
    for (uint64_t i = next++; i < count && !failed; i = next++) {
      const uint64_t linear = order[i];
      const uint64_t row = linear / grid.size.x;
      const uint3 index{static_cast<unsigned>(linear % grid.size.x),
                        static_cast<unsigned>(row % grid.size.y),
                        static_cast<unsigned>(row / grid.size.y)};
      const uint64_t seed = Random(grid.schedule.seed ^ linear << 20).next();
      const std::string finding = block->run(grid, index, seed);
      if (finding.empty()) continue;
      failed = true;
      std::lock_guard<std::mutex> lock(mutex);
      if (error.empty()) error = finding;
    }
    pool.give_back(std::move(block));
  };

  std::vector<std::thread> workers;
  const uint64_t num_workers = std::min<uint64_t>(count, grid.schedule.os_threads);
  for (uint64_t i = 0; i < num_workers; ++i) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  return error;
}

}  // namespace simt
