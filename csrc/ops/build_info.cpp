// What this library was built with, for `pagedattn info`. Read from Python through ctypes.
#include <exception>
#include <string>

#include "../kernels.h"

#define PAGEDATTN_STRINGIZE(...) #__VA_ARGS__
#define PAGEDATTN_TO_STRING(...) PAGEDATTN_STRINGIZE(__VA_ARGS__)

extern "C" {

// Comma-separated GPU architectures of the CUDA half; empty: built without it.
__attribute__((visibility("default"))) const char* pagedattn_cuda_archs() {
#ifdef PAGEDATTN_WITH_CUDA
  return PAGEDATTN_TO_STRING(PAGEDATTN_CUDA_ARCHS);
#else
  return "";
#endif
}

// The CUDA toolkit that compiled the CUDA half, e.g. "13.0"; empty: built without it.
__attribute__((visibility("default"))) const char* pagedattn_cuda_version() {
#ifdef PAGEDATTN_WITH_CUDA
  return PAGEDATTN_TO_STRING(PAGEDATTN_CUDA_VERSION);
#else
  return "";
#endif
}

// The instruction set of this process's CPU kernels; "error: ..." where PAGEDATTN_CPU_ISA asks for
// one that cannot be had, since no exception may leave a C function.
__attribute__((visibility("default"))) const char* pagedattn_cpu_isa() {
  try {
    return pagedattn::cpu_isa_name();
  } catch (const std::exception& error) {
    static std::string message;
    message = std::string("error: ") + error.what();
    return message.c_str();
  }
}

}  // extern "C"
