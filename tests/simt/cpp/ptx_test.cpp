// The twins of the PTX wrappers against plain definitions, and what they refuse.
#include "../../../csrc/common/cuda/ptx.cuh"

#include <cmath>
#include <numeric>

#include "../../../csrc/common/cuda/shared_memory.cuh"
#include "check.h"

namespace simt_tests {

namespace ptx = pagedattn::ptx;
using pagedattn::dynamic_shared;

template <typename T>
__device__ uint32_t pack(T low, T high) {
  uint16_t bits[2];
  memcpy(&bits[0], &low, 2);
  memcpy(&bits[1], &high, 2);
  return static_cast<uint32_t>(bits[1]) << 16 | bits[0];
}

template <typename T>
__global__ void multiply(const T* a, const T* b, float* d, bool swapped) {
  const int group = threadIdx.x / 4;
  const int pair = 2 * (threadIdx.x % 4);
  const auto a_pair = [&](int row, int column) {
    return pack(a[row * 16 + column], a[row * 16 + column + 1]);
  };
  const auto b_pair = [&](int row) { return pack(b[row * 8 + group], b[(row + 1) * 8 + group]); };
  uint32_t a_fragment[4] = {a_pair(group, pair), a_pair(group + 8, pair), a_pair(group, pair + 8),
                            a_pair(group + 8, pair + 8)};
  const uint32_t b_fragment[2] = {b_pair(pair), b_pair(pair + 8)};
  if (swapped) {
    const uint32_t first = a_fragment[1];
    a_fragment[1] = a_fragment[2];
    a_fragment[2] = first;
  }
  float sums[4] = {0.5f, 0.5f, 0.5f, 0.5f};
  ptx::mma_m16n8k16<T>(sums, a_fragment, b_fragment, sums);
  d[group * 8 + pair] = sums[0];
  d[group * 8 + pair + 1] = sums[1];
  d[(group + 8) * 8 + pair] = sums[2];
  d[(group + 8) * 8 + pair + 1] = sums[3];
}

template <typename T>
bool product_is_right(bool swapped) {
  std::vector<T> a(256), b(128);
  for (int i = 0; i < 256; ++i) a[i] = T(static_cast<float>((i * 37 % 61) - 30) / 8);
  for (int i = 0; i < 128; ++i) b[i] = T(static_cast<float>((i * 53 % 59) - 29) / 4);
  std::vector<float> d(128);
  run(multiply<T>, 1, 32, 0, a.data(), b.data(), d.data(), swapped);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      double sum = 0.5;
      for (int k = 0; k < 16; ++k) {
        sum += static_cast<double>(float(a[m * 16 + k])) * float(b[k * 8 + n]);
      }
      if (d[m * 8 + n] != static_cast<float>(sum)) return false;
    }
  }
  return true;
}

TEST(mma_multiplies_matrices) {
  check_equal(count_schedules([] { return product_is_right<__half>(false); }), kNumSchedules);
  check_equal(count_schedules([] { return product_is_right<__nv_bfloat16>(false); }),
              kNumSchedules);
}

TEST(a_swapped_fragment_changes_the_product) {
  check_equal(count_schedules([] { return product_is_right<__half>(true); }), 0);
}

TEST(all_halves_convert_as_the_toolkit_does) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    __half_raw raw;
    raw.x = static_cast<unsigned short>(bits);
    const float expected = __half2float(__half(raw));
    const float actual = simt::half_bits_to_float(bits);
    check(std::isnan(expected)
              ? std::isnan(actual)
              : simt::bit_cast<uint32_t>(actual) == simt::bit_cast<uint32_t>(expected),
          "half " + std::to_string(bits));
  }
}

// Rows of 8 elements at a stride of 24 elements, an odd number of 16-byte units.
constexpr int kRowStride = 24;

__global__ void load_matrices(const uint16_t* from, uint32_t* to) {
  uint16_t* shared = dynamic_shared<uint16_t>();
  const int lane = threadIdx.x;
  for (int i = lane; i < 32 * kRowStride; i += 32) shared[i] = from[i];
  __syncwarp();
  const uint32_t address = ptx::shared_address(shared + lane * kRowStride);
  uint32_t straight[4], transposed[4];
  ptx::ldmatrix_x4(straight, address);
  ptx::ldmatrix_x4_trans(transposed, address);
  for (int i = 0; i < 4; ++i) {
    to[(lane * 4 + i) * 3] = straight[i];
    to[(lane * 4 + i) * 3 + 1] = transposed[i];
    to[(lane * 4 + i) * 3 + 2] = ptx::movmatrix_trans(straight[i]);
  }
}

TEST(ldmatrix_and_movmatrix_distribute_elements) {
  std::vector<uint16_t> from(32 * kRowStride);
  std::iota(from.begin(), from.end(), 0);
  under_all_schedules([&] {
    std::vector<uint32_t> to(32 * 4 * 3);
    run(load_matrices, 1, 32, from.size() * 2, from.data(), to.data());
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const auto element = [&](int row, int column) {
          return uint32_t{from[(8 * i + row) * kRowStride + column]};
        };
        const int major = lane / 4;
        const int minor = 2 * (lane % 4);
        const uint32_t* got = &to[(lane * 4 + i) * 3];
        check_equal(got[0], element(major, minor + 1) << 16 | element(major, minor));
        check_equal(got[1], element(minor + 1, major) << 16 | element(minor, major));
        check_equal(got[2], got[1]);
      }
    }
  });
}

__global__ void load_matrix_at(int offset, int stride) {
  const char* shared = dynamic_shared<char>();
  uint32_t r[4];
  ptx::ldmatrix_x4(r, ptx::shared_address(shared) + offset + threadIdx.x * stride);
}

TEST(ldmatrix_checks_its_addresses) {
  check_equal(finding(load_matrix_at, 1, 32, 512, 0, 16), "");
  check_contains(finding(load_matrix_at, 1, 32, 512, 8, 16), "misaligned");
  check_contains(finding(load_matrix_at, 1, 32, 512, 16, 16), "out of bounds");
  check_contains(finding(load_matrix_at, 1, 32, 512, 0, 1 << 20), "no address in shared memory");
  check_contains(finding(load_matrix_at, 1, 31, 512, 0, 16), "lanes of the warp have exited");
}

__global__ void diverging_mma(float* to) {
  float d[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  if (threadIdx.x < 16) {
    ptx::mma_m16n8k16<__half>(d, a, b, d);
  } else {
    ptx::mma_m16n8k16<__half>(d, a, b, d);
  }
  to[threadIdx.x] = d[0];
}

TEST(aligned_instructions_must_not_diverge) {
  float to[32];
  under_all_schedules(
      [&] { check_contains(finding(diverging_mma, 1, 32, 0, to), "lanes disagree"); });
}

enum class Wait { kRight, kOneGroupShort, kNone };

// Two stages of 16 bytes per thread; each thread reads what its neighbour copied.
__global__ void pipeline(const float4* from, float* to, int steps, Wait wait) {
  float4* shared = dynamic_shared<float4>();
  const int thread = threadIdx.x;
  const int size = blockDim.x;
  const auto copy = [&](int step) {
    if (step < steps) {
      ptx::cp_async_16(ptx::shared_address(shared + step % 2 * size + thread),
                       from + step * size + thread);
    }
    ptx::cp_async_commit();
  };
  copy(0);
  for (int step = 0; step < steps; ++step) {
    copy(step + 1);
    if (wait == Wait::kRight) ptx::cp_async_wait<1>();
    if (wait == Wait::kOneGroupShort) ptx::cp_async_wait<2>();
    __syncthreads();
    const float4 value = shared[step % 2 * size + (thread + 1) % size];
    to[step * size + thread] = value.x + value.y + value.z + value.w;
    __syncthreads();
  }
}

int count_right_pipelines(Wait wait) {
  constexpr int kSize = 64, kSteps = 5;
  std::vector<float4> from(kSize * kSteps);
  for (int i = 0; i < kSize * kSteps; ++i) from[i] = make_float4(float(i), 1, 2, 3);
  return count_schedules([&] {
    std::vector<float> to(kSize * kSteps, -1.0f);
    const std::string found =
        finding(pipeline, 1, kSize, 2 * kSize * 16, from.data(), to.data(), kSteps, wait);
    if (!found.empty()) return false;
    for (int i = 0; i < kSize * kSteps; ++i) {
      const int source = i / kSize * kSize + (i + 1) % kSize;
      if (to[i] != float(source) + 6) return false;
    }
    return true;
  });
}

TEST(cp_async_lands_at_its_wait) {
  check_equal(count_right_pipelines(Wait::kRight), kNumSchedules);
}

TEST(a_missing_cp_async_wait_is_found) {
  check_equal(count_right_pipelines(Wait::kOneGroupShort), 0);
  check_equal(count_right_pipelines(Wait::kNone), 0);
}

__global__ void read_in_flight(const float4* from) {
  float4* shared = dynamic_shared<float4>();
  const uint32_t address = ptx::shared_address(shared + threadIdx.x);
  ptx::cp_async_16(address, from + threadIdx.x);
  ptx::cp_async_commit();
  uint32_t r[4];
  ptx::ldmatrix_x4(r, address);
}

TEST(ldmatrix_of_a_copy_in_flight_is_found) {
  std::vector<float4> from(32);
  check_contains(finding(read_in_flight, 1, 32, 512, from.data()), "was not waited for");
}

__global__ void copy_partly(const char* from, char* to, int from_bytes) {
  char* shared = dynamic_shared<char>();
  ptx::cp_async_16(ptx::shared_address(shared), from, from_bytes);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  for (int i = 0; i < 16; ++i) to[i] = shared[i];
}

TEST(cp_async_fills_up_with_zeros) {
  alignas(16) char from[16];
  std::fill(from, from + 16, 'x');
  for (int bytes : {0, 4, 10, 16}) {
    char to[16];
    run(copy_partly, 1, 1, 16, from, to, bytes);
    for (int i = 0; i < 16; ++i) check_equal(to[i], i < bytes ? 'x' : '\0');
  }
  char to[16];
  check_contains(finding(copy_partly, 1, 1, 16, from, to, 17), "source size 17");
}

__global__ void copy_from_to(const char* from, int to) {
  ptx::cp_async_16(ptx::shared_address(dynamic_shared<char>()) + to, from);
  ptx::cp_async_16(ptx::shared_address(dynamic_shared<char>()) + to, from);
}

TEST(cp_async_checks_its_addresses) {
  alignas(16) char from[32] = {};
  check_contains(finding(copy_from_to, 1, 1, 64, from, 0), "the destination of another cp.async");
  check_contains(finding(copy_from_to, 1, 1, 64, from + 8, 0), "misaligned: the source");
  check_contains(finding(copy_from_to, 1, 1, 64, from, 8), "misaligned");
  check_contains(finding(copy_from_to, 1, 1, 64, from, 64), "out of bounds");
}

__global__ void powers(const float* from, float* to) {
  to[threadIdx.x] = ptx::exp2_approx(from[threadIdx.x]);
}

TEST(exp2_flushes_subnormal_results) {
  const float from[5] = {3.0f, -126.0f, -126.5f, -INFINITY, -0.5f};
  float to[5];
  run(powers, 1, 5, 0, from, to);
  check_equal(to[0], 8.0f);
  check_equal(to[1], 0x1p-126f);
  check_equal(to[2], 0.0f);
  check_equal(to[3], 0.0f);
  check(std::fabs(to[4] - std::sqrt(0.5f)) < 1e-6f, "2^-0.5");
}

}  // namespace simt_tests
