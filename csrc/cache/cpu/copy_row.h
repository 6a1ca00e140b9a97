// Copies of bytes, past the CPU's caches for calls that move more than those keep: a store that
// streams does not first read the line that it replaces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "../../common/cpu/parallel.h"

namespace pagedattn {

// Whether a call that writes this many bytes should stream them. A decode step's tokens, which are
// read again at once, are far fewer.
constexpr bool worth_streaming(int64_t bytes_written) { return bytes_written >= 4 << 20; }

// What follows is static: the objects of each instruction set have their own.
#if defined(__SSE2__)
constexpr bool kCanStream = true;

static inline void stream_line(char* dst, const char* src) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), _mm512_loadu_si512(src));
#else
  for (int i = 0; i < 64; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i)));
  }
#endif
}

// Orders streamed stores before all that this thread does next.
static inline void finish_streaming() { _mm_sfence(); }
#else
constexpr bool kCanStream = false;
static inline void stream_line(char*, const char*) {}
static inline void finish_streaming() {}
#endif

// Streams rows of whole lines; others are stored as usual.
static inline void copy_row(char* dst, const char* src, int64_t bytes, bool stream) {
  constexpr int64_t kLine = 64;
  if (!kCanStream || !stream || (reinterpret_cast<uintptr_t>(dst) | bytes) % kLine != 0) {
    std::memcpy(dst, src, bytes);
    return;
  }
  for (int64_t i = 0; i < bytes; i += kLine) stream_line(dst + i, src + i);
}

// body(begin, end, stream) on ranges of `count` copies, of `bytes_each`, that are worth a thread:
// its waking takes as long as copying kBytesPerTask.
template <typename F>
static void parallel_copies(int64_t count, int64_t bytes_each, const F& body) {
  constexpr int64_t kBytesPerTask = 128 << 10;
  const bool stream = worth_streaming(count * bytes_each);
  const int64_t grain = std::max<int64_t>(1, kBytesPerTask / std::max<int64_t>(1, bytes_each));
  parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    body(begin, end, stream);
    if (stream) finish_streaming();
  });
}

}  // namespace pagedattn
