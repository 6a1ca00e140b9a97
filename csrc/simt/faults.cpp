#include "faults.h"

#include <signal.h>
#include <simt/block.h>
#include <simt/sanitizer.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace simt {
namespace {

constexpr size_t kSignalStackBytes = 64 << 10;

std::string hex(const void* address) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%" PRIxPTR, reinterpret_cast<uintptr_t>(address));
  return text;
}

#ifdef SIMT_ASAN

// The report itself has gone to stderr; its heading goes into the launch's error.
void on_asan_report(const char* report) {
  if (this_thread == nullptr) return;
  const char* heading = std::strstr(report, "AddressSanitizer");
  const char* end = heading == nullptr ? nullptr : std::strchr(heading, '\n');
  this_thread->block->note(end == nullptr ? std::string("AddressSanitizer reported an error")
                                          : std::string(heading, end));
}

void install() { __asan_set_error_report_callback(on_asan_report); }

#else

struct sigaction previous_segv, previous_bus, previous_fpe;

// A fault in a kernel is synchronous, so the handler may abandon the fiber like any other error.
void on_fault(int signal, siginfo_t* info, void* context) {
  if (this_thread != nullptr) {
    const std::string what =
        signal == SIGFPE ? std::string("integer division by zero")
                         : "illegal memory access at " + hex(info->si_addr) + ", or stack overflow";
    this_thread->block->fail({}, what);
  }
  const struct sigaction& previous = signal == SIGSEGV  ? previous_segv
                                     : signal == SIGBUS ? previous_bus
                                                        : previous_fpe;
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    return previous.sa_handler(signal);
  }
  sigaction(signal, &previous, nullptr);  // the fault happens again, unhandled
}

void install() {
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous_segv);
  sigaction(SIGBUS, &action, &previous_bus);
  sigaction(SIGFPE, &action, &previous_fpe);
}

#endif

}  // namespace

FaultGuard::FaultGuard() : signal_stack_(new char[kSignalStackBytes]) {
  static std::once_flag once;
  std::call_once(once, install);
  stack_t stack{};
  stack.ss_sp = signal_stack_.get();
  stack.ss_size = kSignalStackBytes;
  sigaltstack(&stack, nullptr);
}

FaultGuard::~FaultGuard() {
  stack_t stack{};
  stack.ss_flags = SS_DISABLE;
  sigaltstack(&stack, nullptr);
}

}  // namespace simt

// What -fsanitize=alignment,bounds calls; the library does not link libubsan, whose handlers would
// not know the thread. Layouts as in libubsan's ubsan_handlers.h.
extern "C" {

struct UbsanLocation {
  const char* file;
  uint32_t line;
  uint32_t column;
};

struct UbsanTypeMismatch {
  UbsanLocation where;
  const void* type;
  unsigned char log_alignment;
  unsigned char kind;
};

struct UbsanOutOfBounds {
  UbsanLocation where;
  const void* array_type;
  const void* index_type;
};

[[gnu::visibility("hidden")]] void __ubsan_handle_type_mismatch_v1(const UbsanTypeMismatch* data,
                                                                   uintptr_t pointer) {
  if (simt::this_thread == nullptr) return;
  simt::this_thread->block->fail(
      {data->where.file, static_cast<int>(data->where.line)},
      "misaligned access to " + simt::hex(reinterpret_cast<const void*>(pointer)) +
          ", which is no multiple of " + std::to_string(1 << data->log_alignment));
}

[[gnu::visibility("hidden")]] void __ubsan_handle_out_of_bounds(const UbsanOutOfBounds* data,
                                                                uintptr_t index) {
  if (simt::this_thread == nullptr) return;
  simt::this_thread->block->fail(
      {data->where.file, static_cast<int>(data->where.line)},
      "array index " + std::to_string(static_cast<int64_t>(index)) + " is out of bounds");
}

}  // extern "C"
