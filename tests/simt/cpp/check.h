// A test is a function that throws when what it checks does not hold.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

struct RegisterTest {
  RegisterTest(const char* name, void (*run)()) { all_tests().push_back({name, run}); }
};

#define TEST(name)                                        \
  static void name();                                     \
  static const RegisterTest register_##name(#name, name); \
  static void name()

inline void check(bool holds, const std::string& what,
                  simt::Location where = simt::Location::current()) {
  if (holds) return;
  throw std::runtime_error(std::string(where.file) + ":" + std::to_string(where.line) + ": " +
                           what);
}

template <typename A, typename B>
void check_equal(const A& actual, const B& expected,
                 simt::Location where = simt::Location::current()) {
  if (actual == expected) return;
  std::ostringstream text;
  text << actual << " is not " << expected;
  check(false, text.str(), where);
}

// The finding of a launch, empty where there is none.
template <typename... Params, typename... Args>
std::string finding(void (*kernel)(Params...), dim3 grid, dim3 block, size_t dynamic_bytes,
                    Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = dynamic_bytes;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  cudaGetLastError();
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

template <typename... Params, typename... Args>
void run(void (*kernel)(Params...), dim3 grid, dim3 block, size_t dynamic_bytes, Args&&... args) {
  const std::string found =
      finding(kernel, grid, block, dynamic_bytes, std::forward<Args>(args)...);
  if (!found.empty()) throw std::runtime_error(found);
}

inline void check_contains(const std::string& text, const std::string& part,
                           simt::Location where = simt::Location::current()) {
  check(text.find(part) != std::string::npos, "'" + text + "' lacks '" + part + "'", where);
}

inline void use_schedule(const char* order, int seed) {
  setenv("PAGEDATTN_SIMT_ORDER", order, 1);
  setenv("PAGEDATTN_SIMT_SEED", std::to_string(seed).c_str(), 1);
}

// Calls test() under every order and several seeds; returns how often it returned true.
inline int count_schedules(const std::function<bool()>& test) {
  int count = 0;
  for (const char* order : {"forward", "reverse"}) {
    use_schedule(order, 0);
    count += test();
  }
  for (const char* order : {"lanes", "bursts"}) {
    for (int seed = 0; seed < 8; ++seed) {
      use_schedule(order, seed);
      count += test();
    }
  }
  use_schedule("forward", 0);
  return count;
}
inline constexpr int kNumSchedules = 18;

inline void under_all_schedules(const std::function<void()>& test) {
  count_schedules([&] {
    test();
    return true;
  });
}
