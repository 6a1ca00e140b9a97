// AddressSanitizer's manual interface; nothing in a build without it.
#pragma once

#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SIMT_ASAN 1
#endif

namespace simt {

#ifdef SIMT_ASAN
inline void asan_poison(const void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
inline void asan_unpoison(const void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
inline void asan_start_switch(void** fake_stack, const void* bottom, size_t size) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}
inline void asan_finish_switch(void* fake_stack) {
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}
#else
inline void asan_poison(const void*, size_t) {}
inline void asan_unpoison(const void*, size_t) {}
inline void asan_start_switch(void**, const void*, size_t) {}
inline void asan_finish_switch(void*) {}
#endif

}  // namespace simt
