#include <simt/fiber.h>
#include <simt/sanitizer.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

namespace simt {
namespace {

#ifdef SIMT_ASAN
constexpr size_t kStackBytes = 1 << 20;
#else
constexpr size_t kStackBytes = 256 << 10;
#endif

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

void Fiber::allocate_stack() {
  const size_t guard = page_bytes();
  void* memory = mmap(nullptr, guard + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, guard, PROT_NONE);
  stack_ = static_cast<char*>(memory) + guard;
}

Fiber::~Fiber() {
  if (stack_ == nullptr) return;
  asan_unpoison(stack_, kStackBytes);
  munmap(stack_ - page_bytes(), page_bytes() + kStackBytes);
}

// Tells AddressSanitizer which stack comes next.
void Fiber::begin_switch([[maybe_unused]] Fiber& to) {
#ifdef SIMT_ASAN
  const void* bottom = to.stack_;
  size_t bytes = kStackBytes;
  if (bottom == nullptr) {
    pthread_attr_t attributes;
    void* stack = nullptr;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &stack, &bytes);
    pthread_attr_destroy(&attributes);
    bottom = stack;
  }
  asan_start_switch(&fake_stack_, bottom, bytes);
#endif
}

void Fiber::run(void* self) {
  Fiber* fiber = static_cast<Fiber*>(self);
  asan_finish_switch(nullptr);
  fiber->entry_(fiber->argument_);
  __builtin_trap();
}

#ifdef SIMT_FIBER_UCONTEXT

namespace {
// makecontext passes ints only.
void enter(unsigned low, unsigned high, unsigned run_low, unsigned run_high) {
  const auto join = [](unsigned l, unsigned h) {
    return static_cast<uintptr_t>(l) | static_cast<uintptr_t>(h) << 32;
  };
  reinterpret_cast<void (*)(void*)>(join(run_low, run_high))(
      reinterpret_cast<void*>(join(low, high)));
}
}  // namespace

void Fiber::start(void (*entry)(void*), void* argument) {
  if (stack_ == nullptr) allocate_stack();
  asan_unpoison(stack_, kStackBytes);
  entry_ = entry;
  argument_ = argument;
  fake_stack_ = nullptr;
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  const uintptr_t self = reinterpret_cast<uintptr_t>(this);
  const uintptr_t target = reinterpret_cast<uintptr_t>(&Fiber::run);
  makecontext(&context_, reinterpret_cast<void (*)()>(enter), 4, static_cast<unsigned>(self),
              static_cast<unsigned>(static_cast<uint64_t>(self) >> 32),
              static_cast<unsigned>(target),
              static_cast<unsigned>(static_cast<uint64_t>(target) >> 32));
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
  from.begin_switch(to);
  swapcontext(&from.context_, &to.context_);
  asan_finish_switch(from.fake_stack_);
}

#else

// simt_switch_stack(void** saved, void* next): pushes the callee-saved registers, stores the stack
// pointer to *saved, and takes up `next`, which points to registers pushed the same way.
// simt_start_fiber: the return address of a fresh stack; calls r13 with r12 as argument.
asm(R"(
.text
.p2align 4
.type simt_switch_stack, @function
.hidden simt_switch_stack
.globl simt_switch_stack
simt_switch_stack:
  .cfi_startproc
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .cfi_endproc
.size simt_switch_stack, . - simt_switch_stack
.type simt_start_fiber, @function
.hidden simt_start_fiber
.globl simt_start_fiber
simt_start_fiber:
  .cfi_startproc
  .cfi_undefined rip
  movq %r12, %rdi
  callq *%r13
  ud2
  .cfi_endproc
.size simt_start_fiber, . - simt_start_fiber
)");
extern "C" void simt_switch_stack(void** saved, void* next);
extern "C" void simt_start_fiber();

void Fiber::start(void (*entry)(void*), void* argument) {
  if (stack_ == nullptr) allocate_stack();
  asan_unpoison(stack_, kStackBytes);
  entry_ = entry;
  argument_ = argument;
  fake_stack_ = nullptr;
  // r15, r14, r13, r12, rbx, rbp, and the return address, below which the stack is then aligned to
  // 16 bytes, as simt_start_fiber's call needs it.
  void** top = reinterpret_cast<void**>(stack_ + kStackBytes) - 9;
  top[0] = top[1] = nullptr;
  top[2] = reinterpret_cast<void*>(&Fiber::run);
  top[3] = this;
  top[4] = top[5] = nullptr;
  top[6] = reinterpret_cast<void*>(&simt_start_fiber);
  stack_pointer_ = top;
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
  from.begin_switch(to);
  simt_switch_stack(&from.stack_pointer_, to.stack_pointer_);
  asan_finish_switch(from.fake_stack_);
}

#endif

}  // namespace simt
