// A block of CUDA threads, each a fiber, all on one OS thread. A thread runs until it has to wait
// for others; then the schedule picks the next.
#pragma once

#include <vector_types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "async_copies.h"
#include "fiber.h"
#include "location.h"
#include "schedule.h"
#include "shared_window.h"

// CUDA's built-in variables, those of the running thread.
extern thread_local uint3 threadIdx;
extern thread_local uint3 blockIdx;
extern thread_local dim3 blockDim;
extern thread_local dim3 gridDim;

namespace simt {

constexpr unsigned kWarpSize = 32;
constexpr unsigned kMaxBlockThreads = 1024;

class Block;
struct Thread;

// What is launched.
struct Grid {
  std::string kernel;  // its name
  dim3 size;
  dim3 block_size;
  size_t dynamic_bytes = 0;
  std::function<void()> body;  // of one thread
  Schedule schedule;
};

// What the lanes of a mask do together: the last to arrive calls combine(lanes, arguments), lanes
// being those that take part and arguments[i] what lane i brought, then all go on.
struct WarpCall {
  const char* name = "";
  bool same_line = false;  // .aligned in PTX: all lanes execute the same instruction
  uint32_t mask = 0;
  Location where;
  void* argument = nullptr;
  void (*combine)(uint32_t lanes, void* const* arguments) = nullptr;
};

enum class Vote { kNone, kCount, kAnd, kOr };

struct Thread {
  enum class Waits { kNot, kAtBarrier, kAtNamedBarrier, kInWarp, kExited };

  uint3 index;
  unsigned linear = 0;
  Block* block = nullptr;
  Fiber fiber;
  AsyncCopies copies;
  Waits waits = Waits::kNot;
  Location where;                  // of the last collective
  const WarpCall* call = nullptr;  // while kInWarp
  int barrier_id = 0;              // while kAtNamedBarrier

  unsigned warp() const { return linear / kWarpSize; }
  unsigned lane() const { return linear % kWarpSize; }
};

class Block {
 public:
  // Runs one block to its end. Returns what went wrong, or nothing.
  std::string run(const Grid& grid, uint3 index, uint64_t seed);

  const Grid& grid() const { return *grid_; }
  uint3 index() const { return index_; }
  SharedWindow& shared() { return shared_; }

  // Called by the running thread.
  int barrier(Vote vote, int predicate, Location where);
  void named_barrier(int id, int num_threads, Location where);
  void warp_call(WarpCall& call);
  [[noreturn]] void fail(Location where, const std::string& what);

  // Keeps the first of these for the end of the block; the thread goes on.
  void note(const std::string& finding);
  // "kernel, block, thread", of the running thread.
  std::string describe_thread() const;

 private:
  static void thread_main(void* thread);
  Thread& thread(unsigned warp, unsigned lane) { return *threads_[warp * kWarpSize + lane]; }
  void wait();
  void make_current(unsigned thread);
  [[noreturn]] void leave();
  void exit_thread();
  struct OpenCall;
  OpenCall& join_call(const Thread& self, const WarpCall& call);
  bool complete_call(unsigned warp, OpenCall& call);
  std::string describe_waiting() const;

  const Grid* grid_ = nullptr;
  uint3 index_{};
  unsigned num_threads_ = 0;
  unsigned num_exited_ = 0;
  std::vector<std::unique_ptr<Thread>> threads_;
  ReadyThreads ready_;
  SharedWindow shared_;
  Fiber scheduler_;  // the OS thread's own stack
  std::string error_;

  // The barrier that is filling up.
  Vote barrier_vote_ = Vote::kNone;
  unsigned barrier_arrived_ = 0;
  unsigned barrier_true_ = 0;
  unsigned barrier_first_ = 0;
  int barrier_result_ = 0;

  // bar.sync id, num_threads
  struct NamedBarrier {
    int num_threads;
    int arrived;
  };
  static constexpr int kNamedBarriers = 16;
  NamedBarrier named_barriers_[kNamedBarriers] = {};

  // Lanes that wait for the rest of their mask.
  struct OpenCall {
    const WarpCall* call;  // of the first that arrived
    uint32_t arrived;
    void* arguments[kWarpSize];
  };
  static constexpr unsigned kMaxWarps = kMaxBlockThreads / kWarpSize;
  std::vector<OpenCall> open_calls_[kMaxWarps];
  uint32_t exited_lanes_[kMaxWarps] = {};  // or not there from the start
};

// The running CUDA thread; null outside of kernels.
extern thread_local Thread* this_thread;

// Runs all blocks of the grid over OS threads. Returns the first finding, or nothing.
std::string run_grid(const Grid& grid);

}  // namespace simt
