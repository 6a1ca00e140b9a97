// Turns what the processor or a sanitizer reports about a kernel's memory accesses into findings
// that name kernel, block and thread.
#pragma once

#include <memory>

namespace simt {

// Held by an OS thread while it runs blocks: a bad address or a division by zero in a kernel ends
// its launch, not the process.
class FaultGuard {
 public:
  FaultGuard();
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

 private:
  std::unique_ptr<char[]> signal_stack_;
};

}  // namespace simt
