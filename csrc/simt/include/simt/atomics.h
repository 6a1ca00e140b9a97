// Atomics, between the threads of a block and between blocks on different OS threads.
#pragma once

#include <cstring>

namespace simt {

template <typename T, typename Update>
T atomic_update(T* address, Update&& update) {
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  T updated = update(old);
  while (!__atomic_compare_exchange(address, &old, &updated, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
    updated = update(old);
  }
  return old;
}

}  // namespace simt

template <typename T>
T atomicAdd(T* address, T value) {
  return simt::atomic_update(address, [&](T old) { return old + value; });
}
template <typename T>
T atomicSub(T* address, T value) {
  return simt::atomic_update(address, [&](T old) { return old - value; });
}
template <typename T>
T atomicMin(T* address, T value) {
  return simt::atomic_update(address, [&](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicMax(T* address, T value) {
  return simt::atomic_update(address, [&](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicAnd(T* address, T value) {
  return simt::atomic_update(address, [&](T old) { return old & value; });
}
template <typename T>
T atomicOr(T* address, T value) {
  return simt::atomic_update(address, [&](T old) { return old | value; });
}
template <typename T>
T atomicXor(T* address, T value) {
  return simt::atomic_update(address, [&](T old) { return old ^ value; });
}
template <typename T>
T atomicExch(T* address, T value) {
  return simt::atomic_update(address, [&](T) { return value; });
}
template <typename T>
T atomicCAS(T* address, T expected, T value) {
  return simt::atomic_update(address, [&](T old) { return old == expected ? value : old; });
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return simt::atomic_update(address, [&](unsigned old) { return old >= limit ? 0 : old + 1; });
}

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() {}
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
