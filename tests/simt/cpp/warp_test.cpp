// Shuffles, votes and matches, and the errors of lanes that do not agree.
#include "check.h"

namespace simt_tests {

constexpr unsigned kAll = 0xffffffffu;

__global__ void shuffles(int* to) {
  const int lane = threadIdx.x;
  int* row = to + lane * 6;
  row[0] = __shfl_sync(kAll, lane, 5);
  row[1] = __shfl_sync(kAll, lane, 3, 8);
  row[2] = __shfl_up_sync(kAll, lane, 2, 16);
  row[3] = __shfl_down_sync(kAll, lane, 2, 16);
  row[4] = __shfl_xor_sync(kAll, lane, 9);
  row[5] = static_cast<int>(__shfl_xor_sync(kAll, lane * 1e10, 1) / 1e10);
}

TEST(shuffles_move_values_between_lanes) {
  under_all_schedules([] {
    std::vector<int> to(32 * 6);
    run(shuffles, 1, 32, 0, to.data());
    for (int lane = 0; lane < 32; ++lane) {
      const int* row = &to[lane * 6];
      check_equal(row[0], 5);
      check_equal(row[1], lane / 8 * 8 + 3);
      check_equal(row[2], lane % 16 < 2 ? lane : lane - 2);
      check_equal(row[3], lane % 16 >= 14 ? lane : lane + 2);
      check_equal(row[4], lane ^ 9);
      check_equal(row[5], lane ^ 1);
    }
  });
}

__global__ void votes(unsigned* to) {
  const unsigned lane = threadIdx.x;
  unsigned* row = to + lane * 7;
  row[0] = __ballot_sync(kAll, lane % 3 == 0);
  row[1] = __any_sync(kAll, lane == 31) + 2 * __all_sync(kAll, lane < 32);
  row[2] = __any_sync(kAll, lane == 32) + 2 * __all_sync(kAll, lane < 31);
  row[3] = __match_any_sync(kAll, lane / 4);
  row[4] = __reduce_add_sync(kAll, lane);
  row[5] = __reduce_max_sync(kAll, lane) * 100 + __reduce_min_sync(kAll, lane + 1);
  row[6] = __reduce_or_sync(kAll, lane) ^ __reduce_and_sync(kAll, lane | 64) ^
           __reduce_xor_sync(kAll, lane);
}

TEST(votes_and_reductions_cover_the_mask) {
  under_all_schedules([] {
    std::vector<unsigned> to(32 * 7);
    run(votes, 1, 32, 0, to.data());
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned* row = &to[lane * 7];
      check_equal(row[0], 0x49249249u);
      check_equal(row[1], 3u);
      check_equal(row[2], 0u);
      check_equal(row[3], 0xfu << lane / 4 * 4);
      check_equal(row[4], 496u);
      check_equal(row[5], 3101u);
      check_equal(row[6], 31u ^ 64u ^ 0u);
    }
  });
}

__global__ void halves(int* to) {
  const int lane = threadIdx.x % 32;
  const unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  int sum = lane;
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(mask, sum, step);
  to[threadIdx.x] = sum;
}

TEST(masks_that_do_not_overlap_are_independent) {
  under_all_schedules([] {
    std::vector<int> to(64);
    run(halves, 1, 64, 0, to.data());
    for (int i = 0; i < 64; ++i) check_equal(to[i], i % 32 < 16 ? 120 : 376);
  });
}

__global__ void exited_lanes_drop_out(unsigned* to) {
  if (threadIdx.x % 2 == 1) return;
  to[threadIdx.x] = __ballot_sync(kAll, 1);
}

TEST(exited_lanes_are_not_waited_for) {
  under_all_schedules([] {
    std::vector<unsigned> to(40);
    run(exited_lanes_drop_out, 1, 40, 0, to.data());
    for (int i = 0; i < 32; i += 2) check_equal(to[i], 0x55555555u);
    check_equal(to[32], 0x55u);
  });
}

__global__ void opportunistic_count(int* count, int* previous) {
  const unsigned mask = __activemask();
  const int leader = __ffs(static_cast<int>(mask)) - 1;
  int old = 0;
  if (static_cast<int>(threadIdx.x % 32) == leader) old = atomicAdd(count, __popc(mask));
  previous[threadIdx.x] = __shfl_sync(mask, old, leader);
}

TEST(activemask_names_no_lane_that_is_elsewhere) {
  under_all_schedules([] {
    int count = 0;
    std::vector<int> previous(64);
    run(opportunistic_count, 1, 64, 0, &count, previous.data());
    check_equal(count, 64);
  });
}

// Planted bugs: masks.
__global__ void mask_without_self(int* to) { to[threadIdx.x] = __shfl_sync(0xffffu, 1, 0); }

__global__ void mask_too_wide(int* to) {
  if (threadIdx.x < 16) to[threadIdx.x] = __shfl_sync(kAll, 1, 0);
  __syncthreads();
}

__global__ void masks_differ(int* to) {
  to[threadIdx.x] = __shfl_sync(threadIdx.x < 16 ? kAll : 0xffff0000u, 1, threadIdx.x);
  __syncwarp();
}

__global__ void source_outside_mask(int* to) {
  if (threadIdx.x < 16) to[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}

__global__ void operations_differ(int* to) {
  to[threadIdx.x] = threadIdx.x < 16 ? __shfl_xor_sync(kAll, 1, 1) : __shfl_sync(kAll, 1, 0);
}

__global__ void width_is_wrong(int* to) { to[threadIdx.x] = __shfl_sync(kAll, 1, 0, 12); }

TEST(wrong_shuffle_masks_are_found) {
  under_all_schedules([] {
    int to[32];
    check_contains(finding(mask_without_self, 1, 32, 0, to), "lacks the calling lane");
    check_contains(finding(mask_too_wide, 1, 32, 0, to), "deadlock");
    check_contains(finding(masks_differ, 1, 32, 0, to), "lanes disagree");
    check_contains(finding(source_outside_mask, 1, 32, 0, to), "reads lane 20");
    check_contains(finding(operations_differ, 1, 32, 0, to), "lanes disagree");
    check_contains(finding(width_is_wrong, 1, 32, 0, to), "width 12");
  });
}

__global__ void all_atomics(int* ints, float* sum, unsigned* bits) {
  const int i = static_cast<int>(threadIdx.x);
  atomicAdd(&ints[0], i);
  atomicSub(&ints[1], i);
  atomicMax(&ints[2], i);
  atomicMin(&ints[3], -i);
  if (atomicCAS(&ints[4], 0, 7) == 0) atomicExch(&ints[5], i + 1);
  atomicAdd(sum, 0.5f);
  atomicOr(&bits[0], 1u << i % 32);
  atomicAnd(&bits[1], ~(1u << i % 32));
  atomicXor(&bits[2], 1u << i % 32);
  atomicInc(&bits[3], 9);
}

TEST(atomics_of_all_blocks_add_up) {
  under_all_schedules([] {
    int ints[6] = {};
    float sum = 0.0f;
    unsigned bits[4] = {0, ~0u, 0, 0};
    run(all_atomics, 8, 64, 0, ints, &sum, bits);
    check_equal(ints[0], 8 * 63 * 32);
    check_equal(ints[1], -8 * 63 * 32);
    check_equal(ints[2], 63);
    check_equal(ints[3], -63);
    check_equal(ints[4], 7);
    check(ints[5] > 0, "one thread saw 0");
    check_equal(sum, 256.0f);
    check_equal(bits[0], ~0u);
    check_equal(bits[1], 0u);
    check_equal(bits[2], 0u);
    check_equal(bits[3], 512u % 10);
  });
}

}  // namespace simt_tests
