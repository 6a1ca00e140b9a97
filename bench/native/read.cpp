// Reads memory and does nothing else, on ATen's thread pool: the time that attention is measured
// against. Values are only xor-ed together, so that the compiler keeps the loads.
#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace {

using Vector __attribute__((vector_size(64))) = uint64_t;
constexpr int64_t kLine = 64;
constexpr int64_t kPrefetchDistance = 4096;  // bytes
constexpr int64_t kChunk = 1 << 16;          // bytes; threads share whole chunks

struct Reading {
  const char* data;
  int64_t num_bytes;
  const int64_t* offsets;  // null: one run
  int64_t num_runs, run_bytes;
  std::atomic<uint64_t> sum{0};
};

inline const Vector& line(const char* data) { return *reinterpret_cast<const Vector*>(data); }

// num_bytes is a multiple of 256. Fetches as many bytes from `ahead` into the caches on the way.
uint64_t read_run(const char* data, int64_t num_bytes, const char* ahead) {
  Vector sums[4] = {};
  for (int64_t i = 0; i < num_bytes; i += 4 * kLine) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) {
      __builtin_prefetch(ahead + i + j * kLine);
      sums[j] ^= line(data + i + j * kLine);
    }
  }
  const Vector sum = (sums[0] ^ sums[1]) ^ (sums[2] ^ sums[3]);
  uint64_t total = 0;
  for (int i = 0; i < 8; ++i) total ^= sum[i];
  return total;
}

void read_chunks(int64_t begin, int64_t end, void* context) {
  auto& reading = *static_cast<Reading*>(context);
  const int64_t first = begin * kChunk, last = std::min(end * kChunk, reading.num_bytes);
  const char* data = reading.data + first;
  reading.sum ^= read_run(data, last - first, data + kPrefetchDistance);
}

void read_runs(int64_t begin, int64_t end, void* context) {
  auto& reading = *static_cast<Reading*>(context);
  uint64_t sum = 0;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t next = i + 1 < end ? i + 1 : i;
    sum ^= read_run(reading.data + reading.offsets[i], reading.run_bytes,
                    reading.data + reading.offsets[next]);
  }
  reading.sum ^= sum;
}

}  // namespace

extern "C" uint64_t read_linear(const char* data, int64_t num_bytes) {
  Reading reading{data, num_bytes, nullptr, 0, 0, {}};
  torch_parallel_for(0, (num_bytes + kChunk - 1) / kChunk, 1, read_chunks, &reading);
  return reading.sum;
}

// Runs of run_bytes at each of the offsets, in their order.
extern "C" uint64_t read_scattered(const char* data, const int64_t* offsets, int64_t num_runs,
                                   int64_t run_bytes) {
  Reading reading{data, 0, offsets, num_runs, run_bytes, {}};
  torch_parallel_for(0, num_runs, 1, read_runs, &reading);
  return reading.sum;
}
