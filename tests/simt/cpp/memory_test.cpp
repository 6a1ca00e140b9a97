// Poison, bounds and alignment. AddressSanitizer knows more than the processor, but lets no access
// to unmapped memory be survived.
#include <simt/sanitizer.h>
#include <sys/mman.h>

#include <cmath>

#include "../../../csrc/common/cuda/shared_memory.cuh"
#include "check.h"

namespace simt_tests {

using pagedattn::dynamic_shared;

__global__ void read_unwritten(float* to, bool write) {
  __shared__ float fixed[4];
  float* dynamic = dynamic_shared<float>();
  to[0] = fixed[threadIdx.x];
  to[1] = dynamic[threadIdx.x + 255];
  if (write) fixed[0] = dynamic[255] = 1.0f;
}

TEST(shared_memory_is_nan_in_every_block) {
  under_all_schedules([] {
    float to[2] = {};
    run(read_unwritten, 20, 1, 1024, to, true);
    check(std::isnan(to[0]), "static");
    check(std::isnan(to[1]), "dynamic");
  });
}

__global__ void past_the_end_of_dynamic(int index) { dynamic_shared<float>()[index] = 1.0f; }

TEST(writes_past_dynamic_shared_memory_are_found) {
  check_equal(finding(past_the_end_of_dynamic, 1, 1, 256, 63), "");
  for (int index : {64, 65, 300}) {
    const std::string found = finding(past_the_end_of_dynamic, 1, 1, 256, index);
#ifdef SIMT_ASAN
    check_contains(found, "use-after-poison");
#else
    check_contains(found, "wrote past the end of dynamic shared memory");
#endif
    check_contains(found, "past_the_end_of_dynamic");
  }
}

__global__ void index_static(int i, int j, float* to) {
  __shared__ float tile[4][8];
  tile[i][j] = 1.0f;
  *to = tile[i][j];
}

TEST(indices_of_static_shared_memory_are_checked) {
  float to = 0;
  check_equal(finding(index_static, 1, 1, 0, 3, 7, &to), "");
  check_contains(finding(index_static, 1, 1, 0, 0, 8, &to), "array index 8");
  check_contains(finding(index_static, 1, 1, 0, 4, 0, &to), "array index 4");
  check_contains(finding(index_static, 1, 1, 0, -1, 0, &to), "memory_test.cpp:");
}

__global__ void index_local(int i, float* to) {
  float values[4] = {1, 2, 3, 4};
  to[0] = values[i];
}

TEST(indices_of_local_arrays_are_checked) {
  float to = 0;
  check_contains(finding(index_local, 1, 1, 0, 4, &to), "array index 4");
}

__global__ void copy_vector(const char* from, char* to) {
  *reinterpret_cast<uint4*>(to) = __ldg(reinterpret_cast<const uint4*>(from));
}

TEST(misaligned_vectors_are_found) {
  alignas(16) char from[32] = {};
  alignas(16) char to[32] = {};
  check_equal(finding(copy_vector, 1, 1, 0, from, to), "");
  check_contains(finding(copy_vector, 1, 1, 0, from + 8, to), "misaligned access");
  check_contains(finding(copy_vector, 1, 1, 0, from, to + 4), "memory_test.cpp:");
}

__global__ void set_some(float* to, int count) {
  float values[4];
  for (int i = 0; i < count; ++i) values[i] = 1.0f;
  for (int i = 0; i < 4; ++i) to[i] = values[i];
}

TEST(uninitialized_arrays_are_far_from_any_right_value) {
  float to[4] = {};
  run(set_some, 1, 1, 0, to, 3);
  check_equal(to[2], 1.0f);
  check(!(std::fabs(to[3]) < 1e30f), std::to_string(to[3]));
}

#ifndef SIMT_ASAN

__global__ void load_from(const int* from, int* to) { to[threadIdx.x] = from[threadIdx.x]; }

TEST(illegal_addresses_end_the_launch_only) {
  char* two_pages = static_cast<char*>(
      mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(two_pages + 4096, 4096, PROT_NONE);
  const int* last = reinterpret_cast<const int*>(two_pages + 4096) - 32;
  int to[64] = {};
  under_all_schedules([&] {
    check_equal(finding(load_from, 1, 32, 0, last, to), "");
    const std::string found = finding(load_from, 4, 33, 0, last, to);
    check_contains(found, "illegal memory access");
    check_contains(found, "thread (32,0,0)");
    check_contains(found, "load_from");
  });
  munmap(two_pages, 8192);
}

__global__ void divide(int by, int* to) { *to = 7 / by; }

TEST(integer_division_by_zero_is_found) {
  int to = 0;
  check_contains(finding(divide, 1, 1, 0, 0, &to), "division by zero");
}

__attribute__((noinline)) int recurse(volatile char* above, int depth) {
  volatile char frame[4096];
  frame[0] = above[0];
  return depth == 0 ? frame[0] : recurse(frame, depth - 1) + frame[0];
}

__global__ void overflow_the_stack(int* to) {
  char start = 0;
  *to = recurse(&start, 1000);
}

TEST(stack_overflow_is_found) {
  int to = 0;
  check_contains(finding(overflow_the_stack, 1, 1, 0, &to), "stack overflow");
}

#else

__global__ void store_at(float* to, int index) { to[index] = 1.0f; }
__global__ void load_at(const float* from, int index, float* to) { *to = from[index]; }

TEST(global_memory_out_of_bounds_is_found) {
  std::vector<float> tensor(64);
  float to = 0.0f;
  check_equal(finding(store_at, 1, 1, 0, tensor.data(), 63), "");
  const std::string found = finding(store_at, 1, 1, 0, tensor.data(), 64);
  check_contains(found, "heap-buffer-overflow");
  check_contains(found, "store_at");
  check_contains(finding(load_at, 1, 1, 0, tensor.data(), -1, &to), "heap-buffer-overflow");
  check_contains(finding(load_at, 1, 1, 0, tensor.data(), 64, &to), "heap-buffer-overflow");
}

__global__ void load_freed(const float* from, float* to) { *to = *from; }

TEST(freed_memory_is_found) {
  float to = 0.0f;
  float* freed = new float[4];
  delete[] freed;
  check_contains(finding(load_freed, 1, 1, 0, freed, &to), "heap-use-after-free");
}

__global__ void load_past_dynamic(float* to, int index) { *to = dynamic_shared<float>()[index]; }

TEST(reads_past_dynamic_shared_memory_are_found) {
  float to = 0.0f;
  check_equal(finding(load_past_dynamic, 1, 1, 256, &to, 63), "");
  check_contains(finding(load_past_dynamic, 1, 1, 256, &to, 64), "use-after-poison");
  check_contains(finding(load_past_dynamic, 1, 1, 256, &to, 5000), "use-after-poison");
}

#endif

}  // namespace simt_tests
