#include <simt/block.h>
#include <simt/sanitizer.h>
#include <simt/shared_window.h>

#include <link.h>

#include <algorithm>
#include <cstring>

namespace pagedattn {

// What `extern __shared__` in dynamic_shared() refers to.
alignas(
    128) thread_local unsigned char dynamic_shared_memory[simt::kMaxSharedBytes + 1024 /* guard */];

}  // namespace pagedattn

namespace simt {
namespace {

struct Segment {
  const void* code;  // an address in the library that is looked for
  char* begin;
  size_t bytes;
};

// The calling OS thread's copy of a library's thread-local segment.
int find_library(dl_phdr_info* info, size_t, void* argument) {
  Segment* segment = static_cast<Segment*>(argument);
  const auto code = reinterpret_cast<uintptr_t>(segment->code);
  bool contains_code = false;
  size_t tls_bytes = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & header = info->dlpi_phdr[i];
    const uintptr_t start = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD && code >= start && code < start + header.p_memsz) {
      contains_code = true;
    }
    if (header.p_type == PT_TLS) tls_bytes = header.p_memsz;
  }
  if (!contains_code) return 0;
  segment->begin = static_cast<char*>(info->dlpi_tls_data);
  segment->bytes = tls_bytes;
  return 1;
}

constexpr unsigned char kPoison = 0xff;  // NaN in every float format

}  // namespace

void SharedWindow::attach() {
  dynamic_ = reinterpret_cast<char*>(pagedattn::dynamic_shared_memory);
  Segment segment{reinterpret_cast<const void*>(&find_library), nullptr, 0};
  dl_iterate_phdr(find_library, &segment);
  begin_ = segment.begin;
  end_ = begin_ + segment.bytes;
  origin_ = begin_ - reinterpret_cast<uintptr_t>(begin_) % kAlignment;
}

void SharedWindow::open(size_t dynamic_bytes) {
  dynamic_bytes_ = dynamic_bytes;
  num_in_flight_ = 0;
  in_flight_.assign((end_ - origin_) / kGranule + 1, false);
  Thread* running = this_thread;  // lives in the segment itself
  char* dynamic_end = dynamic_ + sizeof(pagedattn::dynamic_shared_memory);
  std::memset(begin_, kPoison, dynamic_ - begin_);
  std::memset(dynamic_, kPoison, dynamic_bytes + kGuardBytes);
  std::memset(dynamic_end, kPoison, end_ - dynamic_end);
  this_thread = running;
  asan_poison(dynamic_ + dynamic_bytes, dynamic_end - dynamic_ - dynamic_bytes);
}

bool SharedWindow::close() {
  asan_unpoison(begin_, end_ - begin_);
  const char* guard = dynamic_ + dynamic_bytes_;
  return std::all_of(guard, guard + kGuardBytes,
                     [](char byte) { return static_cast<unsigned char>(byte) == kPoison; });
}

uint32_t SharedWindow::address_of(const void* pointer) const {
  const char* p = static_cast<const char*>(pointer);
  if (p < begin_ || p >= end_) return 0;
  return kBase + static_cast<uint32_t>(p - origin_);
}

std::string SharedWindow::objection(uint32_t address, size_t bytes, size_t alignment) const {
  const char* p = pointer_to(address);
  if (address < kBase || p < begin_ || p + bytes > end_) return "no address in shared memory";
  if (address % alignment != 0) {
    return "misaligned: shared address " + std::to_string(address) + " is no multiple of " +
           std::to_string(alignment);
  }
  const char* dynamic_end = dynamic_ + sizeof(pagedattn::dynamic_shared_memory);
  if (p < dynamic_end && p + bytes > dynamic_ + dynamic_bytes_ && p + bytes > dynamic_) {
    return "out of bounds: bytes " + std::to_string(p - dynamic_) + " to " +
           std::to_string(p - dynamic_ + bytes) + " of " + std::to_string(dynamic_bytes_) +
           " bytes of dynamic shared memory";
  }
  return {};
}

bool SharedWindow::in_flight(uint32_t address, size_t bytes) const {
  if (num_in_flight_ == 0) return false;
  const size_t first = (address - kBase) / kGranule;
  const size_t last = (address - kBase + bytes - 1) / kGranule;
  for (size_t i = first; i <= last; ++i) {
    if (in_flight_[i]) return true;
  }
  return false;
}

void SharedWindow::begin_copy(uint32_t address, size_t bytes) {
  for (size_t i = 0; i < bytes / kGranule; ++i) in_flight_[(address - kBase) / kGranule + i] = true;
  num_in_flight_ += bytes / kGranule;
  std::memset(pointer_to(address), kPoison, bytes);
  asan_poison(pointer_to(address), bytes);
}

void SharedWindow::end_copy(uint32_t address, size_t bytes) {
  for (size_t i = 0; i < bytes / kGranule; ++i) {
    in_flight_[(address - kBase) / kGranule + i] = false;
  }
  num_in_flight_ -= bytes / kGranule;
  asan_unpoison(pointer_to(address), bytes);
}

}  // namespace simt
