// What a device refuses to launch, and how a finding is reported.
#include "check.h"

namespace simt_tests {

__global__ void nothing() {}

template <typename T, int kN>
__global__ void templated(T* to) {
  to[kN] = T(1);
  __trap();
}

struct Large {
  char bytes[32765];
};
__global__ void large_parameter(Large) {}

TEST(bad_launches_are_refused) {
  check_equal(finding(nothing, 1, 1024, 0), "");
  check_contains(finding(nothing, 1, 1025, 0), "1025 x 1 x 1 threads exceeds 1024");
  check_contains(finding(nothing, 1, dim3(32, 33), 0), "exceeds 1024");
  check_contains(finding(nothing, 1, dim3(1, 1, 65), 0), "exceeds 1024");
  check_contains(finding(nothing, 1, dim3(0, 1, 1), 0), "the block is empty");
  check_contains(finding(nothing, dim3(1, 0, 1), 1, 0), "the grid is empty");
  check_contains(finding(nothing, dim3(1, 65536, 1), 1, 0), "1 x 65536 x 1 blocks");
  check_contains(finding(nothing, dim3(1, 1, 65536), 1, 0), "1 x 1 x 65536 blocks");
  check_contains(finding(large_parameter, 1, 1, 0, Large{}), "32765 bytes of parameters");
}

__global__ void much_shared() {}

TEST(much_dynamic_shared_memory_must_be_asked_for) {
  constexpr int kMost = 227 * 1024;
  check_equal(finding(much_shared, 1, 32, 48 * 1024), "");
  check_contains(finding(much_shared, 1, 32, 48 * 1024 + 1), "cudaFuncSetAttribute");
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  check_equal(cudaFuncSetAttribute(much_shared, kAttribute, kMost), cudaSuccess);
  check_equal(finding(much_shared, 1, 32, kMost), "");
  check_contains(finding(much_shared, 1, 32, kMost + 1), "exceed");
  check(cudaFuncSetAttribute(much_shared, kAttribute, kMost + 1) != cudaSuccess, "over the limit");
  cudaGetLastError();
}

TEST(a_finding_names_kernel_launch_block_thread_line_and_schedule) {
  float to[4] = {};
  use_schedule("bursts", 5);
  const std::string found = finding(templated<float, 3>, dim3(1, 1), dim3(1, 1), 128, to);
  use_schedule("forward", 0);
  check_contains(found,
                 "simt: simt_tests::templated<float, 3> <<<(1,1,1), (1,1,1), 128>>> "
                 "block (0,0,0) thread (0,0,0) [order bursts, seed 5]: launch_test.cpp:");
  check_contains(found, "__trap");
}

TEST(the_last_error_is_told_once) {
  cudaLaunchConfig_t config{};
  config.gridDim = 1;
  config.blockDim = 2000;
  check_equal(cudaLaunchKernelEx(&config, nothing), cudaErrorInvalidConfiguration);
  check_equal(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
  check_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
  check_equal(cudaGetLastError(), cudaSuccess);
  config.blockDim = 32;
  check_equal(cudaLaunchKernelEx(&config, nothing), cudaSuccess);
}

}  // namespace simt_tests
