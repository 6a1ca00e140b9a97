// Barriers, the order of threads, and the errors of those that do not meet.
#include <numeric>

#include "../../../csrc/common/cuda/ptx.cuh"
#include "../../../csrc/common/cuda/shared_memory.cuh"
#include "check.h"

namespace simt_tests {

using pagedattn::dynamic_shared;

__global__ void reverse_through_shared(const int* from, int* to) {
  __shared__ int tile[128];
  const int offset = blockIdx.x * blockDim.x;
  tile[threadIdx.x] = from[offset + threadIdx.x];
  __syncthreads();
  to[offset + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

TEST(barrier_orders_shared_memory) {
  std::vector<int> from(1024), to(1024);
  std::iota(from.begin(), from.end(), 0);
  under_all_schedules([&] {
    run(reverse_through_shared, 8, 128, 0, from.data(), to.data());
    for (int i = 0; i < 1024; ++i) check_equal(to[i], i / 128 * 128 + 127 - i % 128);
  });
}

__global__ void three_dimensions(unsigned* seen) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  ++seen[block * blockDim.x * blockDim.y * blockDim.z + thread];
}

TEST(every_thread_of_every_block_runs_once) {
  under_all_schedules([] {
    std::vector<unsigned> seen(24 * 30);
    run(three_dimensions, dim3(2, 3, 4), dim3(5, 3, 2), 0, seen.data());
    for (unsigned count : seen) check_equal(count, 1u);
  });
}

__global__ void barrier_votes(int* results) {
  const int odd = threadIdx.x % 2;
  if (__syncthreads_count(odd) == 32) atomicAdd(&results[0], 1);
  if (__syncthreads_or(threadIdx.x == 40)) atomicAdd(&results[1], 1);
  if (__syncthreads_or(0)) atomicAdd(&results[2], 1);
  if (__syncthreads_and(1)) atomicAdd(&results[3], 1);
  if (__syncthreads_and(odd)) atomicAdd(&results[4], 1);
}

TEST(barriers_vote) {
  under_all_schedules([] {
    int results[5] = {};
    run(barrier_votes, 1, 64, 0, results);
    check_equal(results[0], 64);
    check_equal(results[1], 64);
    check_equal(results[2], 0);
    check_equal(results[3], 64);
    check_equal(results[4], 0);
  });
}

__global__ void record_order(int* order, int* count) { order[atomicAdd(count, 1)] = threadIdx.x; }

std::vector<int> recorded_order(const char* name, int seed) {
  use_schedule(name, seed);
  std::vector<int> order(128);
  int count = 0;
  run(record_order, 1, 128, 0, order.data(), &count);
  use_schedule("forward", 0);
  return order;
}

TEST(orders_are_as_named_and_repeat_by_seed) {
  std::vector<int> forward(128);
  std::iota(forward.begin(), forward.end(), 0);
  check(recorded_order("forward", 0) == forward, "forward");
  check(recorded_order("reverse", 0) == std::vector<int>(forward.rbegin(), forward.rend()),
        "reverse");
  for (const char* name : {"lanes", "bursts"}) {
    check(recorded_order(name, 1) == recorded_order(name, 1), "the same seed");
    check(recorded_order(name, 1) != recorded_order(name, 2), "another seed");
  }
  const std::vector<int> bursts = recorded_order("bursts", 3);
  for (int i = 0; i < 128; ++i) check_equal(bursts[i] / 32, bursts[i / 32 * 32] / 32);
}

TEST(a_wrong_schedule_is_refused) {
  int order = 0;
  int count = 0;
  setenv("PAGEDATTN_SIMT_ORDER", "sideways", 1);
  check_contains(finding(record_order, 1, 1, 0, &order, &count), "sideways");
  use_schedule("forward", 0);
  setenv("PAGEDATTN_SIMT_SEED", "x1", 1);
  check_contains(finding(record_order, 1, 1, 0, &order, &count), "x1");
  use_schedule("forward", 0);
}

__global__ void half_the_threads_wait() {
  if (threadIdx.x < 32) __syncthreads();
}

TEST(a_barrier_that_some_threads_never_reach_is_found) {
  under_all_schedules([] {
    const std::string found = finding(half_the_threads_wait, 3, 64, 0);
    check_contains(found, "divergent barrier");
    check_contains(found, "half_the_threads_wait");
    check_contains(found, "block (");
    check_contains(found, "thread (");
    check_contains(found, "barrier_test.cpp:");
  });
}

__global__ void two_barriers() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST(threads_at_different_barriers_are_found) {
  under_all_schedules([] { check_contains(finding(two_barriers, 1, 64, 0), "divergent barrier"); });
}

__global__ void wait_for_each_other() {
  if (threadIdx.x < 16) __syncthreads();
  __syncwarp();
}

TEST(a_deadlock_names_who_waits_where) {
  under_all_schedules([] {
    const std::string found = finding(wait_for_each_other, 1, 32, 0);
    check_contains(found, "deadlock");
    check_contains(found, "16 threads wait at the barrier");
    check_contains(found, "16 threads wait in __syncwarp");
  });
}

__global__ void pairs_of_warps(int* sums) {
  int* values = dynamic_shared<int>();
  const int pair = threadIdx.x / 64;
  values[threadIdx.x] = threadIdx.x;
  pagedattn::ptx::named_barrier_sync(1 + pair, 64);
  atomicAdd(&sums[pair], values[threadIdx.x ^ 63]);
}

TEST(named_barriers_hold_their_warps_only) {
  under_all_schedules([] {
    int sums[2] = {};
    run(pairs_of_warps, 1, 128, 512, sums);
    check_equal(sums[0], 63 * 32);
    check_equal(sums[1], 63 * 32 + 64 * 64);
  });
}

__global__ void disagreeing_named_barrier() {
  pagedattn::ptx::named_barrier_sync(1, threadIdx.x < 32 ? 64 : 96);
}

TEST(named_barriers_check_their_thread_count) {
  under_all_schedules([] {
    check_contains(finding(disagreeing_named_barrier, 1, 96, 0), "this thread expects");
    check_contains(finding(disagreeing_named_barrier, 1, 32, 0), "within the block");
  });
}

// Planted bug: no barrier between writing and reading.
__global__ void read_before_write(const float* from, float* to) {
  __shared__ float tile[64];
  tile[threadIdx.x] = from[threadIdx.x];
  to[threadIdx.x] = tile[63 - threadIdx.x];
}

TEST(a_missing_barrier_before_reading_gives_nan) {
  std::vector<float> from(64, 1.0f);
  const int correct = count_schedules([&] {
    std::vector<float> to(64);
    run(read_before_write, 1, 64, 0, from.data(), to.data());
    return to == from;
  });
  check_equal(correct, 0);
}

// Planted bug: the next tile is written without waiting for the readers of the last one.
__global__ void overwrite_before_read(const float* from, float* to, bool second_barrier) {
  __shared__ float tile[64];
  for (int step = 0; step < 4; ++step) {
    tile[threadIdx.x] = from[step * 64 + threadIdx.x];
    __syncthreads();
    to[step * 64 + threadIdx.x] = tile[63 - threadIdx.x];
    if (second_barrier) __syncthreads();
  }
}

TEST(a_missing_barrier_before_overwriting_changes_the_result) {
  std::vector<float> from(256), expected(256);
  std::iota(from.begin(), from.end(), 0.0f);
  for (int i = 0; i < 256; ++i) expected[i] = static_cast<float>(i / 64 * 64 + 63 - i % 64);
  for (const bool second_barrier : {true, false}) {
    const int correct = count_schedules([&] {
      std::vector<float> to(256);
      run(overwrite_before_read, 1, 64, 0, from.data(), to.data(), second_barrier);
      return to == expected;
    });
    check_equal(correct, second_barrier ? kNumSchedules : 0);
  }
}

}  // namespace simt_tests
