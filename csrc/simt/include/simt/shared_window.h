// The shared memory of the block that the calling OS thread runs.
//
// Under g++ `__shared__` is `thread_local`, and all threads of a block run on one OS thread, so
// that a block's shared memory is that OS thread's copy of this library's thread-local segment:
//
//   | static __shared__ variables ... | dynamic_shared_memory: requested bytes | guard | ... |
//     begin                                                                            end
//
// An address in it has a 32-bit form, a distance from about `begin`, as what
// __cvta_generic_to_shared() gives on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simt {

// What a block may use on an sm_90 device, and what it may use without asking.
constexpr size_t kMaxSharedBytes = 227 * 1024;
constexpr size_t kDefaultSharedBytes = 48 * 1024;

class SharedWindow {
 public:
  // Finds the calling OS thread's segment; the window is of use on that thread only.
  void attach();
  // Before a block: everything is NaN, and what lies past the requested bytes is a guard.
  void open(size_t dynamic_bytes);
  // After a block. Returns false if the guard was written to.
  bool close();

  // 32-bit addresses.
  uint32_t address_of(const void* pointer) const;
  char* pointer_to(uint32_t address) const { return origin_ + (address - kBase); }

  // Why [address, address + bytes) must not be touched, or nothing.
  std::string objection(uint32_t address, size_t bytes, size_t alignment) const;
  // Whether a cp.async that has not been waited for will write any of these bytes.
  bool in_flight(uint32_t address, size_t bytes) const;

  // The bytes turn to NaN until the copy lands.
  void begin_copy(uint32_t address, size_t bytes);
  void end_copy(uint32_t address, size_t bytes);

 private:
  static constexpr uint32_t kBase = 1024;  // so that 0 is no address
  static constexpr size_t kAlignment = 128;
  static constexpr size_t kGuardBytes = 1024;
  static constexpr size_t kGranule = 4;

  char* origin_ = nullptr;  // begin, rounded down to kAlignment
  char* begin_ = nullptr;
  char* end_ = nullptr;
  char* dynamic_ = nullptr;
  size_t dynamic_bytes_ = 0;
  std::vector<bool> in_flight_;  // per granule
  size_t num_in_flight_ = 0;
};

}  // namespace simt
