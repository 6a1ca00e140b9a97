// Execution contexts with stacks of their own. Switching is a few register moves on x86-64
// and ucontext elsewhere.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(SIMT_USE_UCONTEXT)
#include <ucontext.h>
#define SIMT_FIBER_UCONTEXT 1
#endif

namespace simt {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // The next switch to this fiber calls entry(argument), which must never return. Whatever ran on
  // it before is forgotten, without unwinding.
  void start(void (*entry)(void*), void* argument);

  // Suspends `from`, the running fiber, and resumes `to`. A fiber that was never started stands for
  // the OS thread's own stack.
  static void switch_to(Fiber& from, Fiber& to);

 private:
  void allocate_stack();
  void begin_switch(Fiber& to);
  static void run(void* self);

  char* stack_ = nullptr;       // above its guard page
  void* fake_stack_ = nullptr;  // AddressSanitizer's
#ifdef SIMT_FIBER_UCONTEXT
  ucontext_t context_;
#else
  void* stack_pointer_ = nullptr;
#endif
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
};

}  // namespace simt
