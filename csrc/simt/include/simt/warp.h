// Barriers, shuffles and votes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "block.h"

namespace simt {

// Lets the lanes of `mask` meet; the last one calls combine(lanes, arguments), where arguments[i]
// is the Argument that lane i brought.
template <typename Argument, void (*combine)(uint32_t lanes, Argument* const* arguments)>
void meet(const char* name, uint32_t mask, Argument& mine, Location where, bool same_line = false) {
  WarpCall call;
  call.name = name;
  call.same_line = same_line;
  call.mask = mask;
  call.where = where;
  call.argument = &mine;
  call.combine = [](uint32_t lanes, void* const* arguments) {
    Argument* typed[kWarpSize];
    for (unsigned i = 0; i < kWarpSize; ++i) typed[i] = static_cast<Argument*>(arguments[i]);
    combine(lanes, typed);
  };
  this_thread->block->warp_call(call);
}

template <typename Visit>
void for_each_lane(uint32_t lanes, Visit&& visit) {
  for (; lanes != 0; lanes &= lanes - 1) visit(static_cast<unsigned>(__builtin_ctz(lanes)));
}

struct Shuffle {
  uint64_t value = 0;
  unsigned from = 0;
};

inline void combine_shuffle(uint32_t lanes, Shuffle* const* shuffles) {
  uint64_t values[kWarpSize] = {};
  for_each_lane(lanes, [&](unsigned lane) { values[lane] = shuffles[lane]->value; });
  for_each_lane(lanes, [&](unsigned lane) {
    const unsigned from = shuffles[lane]->from;
    if ((lanes >> from & 1) == 0) {
      this_thread->block->fail(this_thread->where, "shuffle: lane " + std::to_string(lane) +
                                                       " reads lane " + std::to_string(from) +
                                                       ", which does not take part");
    }
    shuffles[lane]->value = values[from];
  });
}

template <typename T>
T shuffle(const char* name, uint32_t mask, T value, unsigned from, Location where) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  Shuffle mine;
  std::memcpy(&mine.value, &value, sizeof(T));
  mine.from = from;
  meet<Shuffle, combine_shuffle>(name, mask, mine, where);
  std::memcpy(static_cast<void*>(&value), &mine.value, sizeof(T));
  return value;
}

// The segment of `width` lanes that the calling lane belongs to.
struct Segment {
  unsigned lane;
  unsigned first;
  unsigned last;

  Segment(int width, Location where) : lane(this_thread->lane()) {
    if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
      this_thread->block->fail(
          where, "shuffle: width " + std::to_string(width) + " is no power of two up to 32");
    }
    first = lane & ~static_cast<unsigned>(width - 1);
    last = first + static_cast<unsigned>(width) - 1;
  }
};

struct Ballot {
  uint64_t value = 0;
  uint32_t result = 0;
};

// result: the lanes whose value is not zero.
inline void combine_ballot(uint32_t lanes, Ballot* const* ballots) {
  uint32_t result = 0;
  for_each_lane(lanes, [&](unsigned lane) {
    if (ballots[lane]->value != 0) result |= 1u << lane;
  });
  for_each_lane(lanes, [&](unsigned lane) { ballots[lane]->result = result; });
}

// result: the lanes whose value is the lane's own.
inline void combine_match(uint32_t lanes, Ballot* const* ballots) {
  for_each_lane(lanes, [&](unsigned lane) {
    ballots[lane]->result = 0;
    for_each_lane(lanes, [&](unsigned other) {
      if (ballots[other]->value == ballots[lane]->value) ballots[lane]->result |= 1u << other;
    });
  });
}

template <typename T>
struct Reduction {
  T value;
};

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct Xor {
  template <typename T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};

template <typename T, typename Op>
void combine_reduction(uint32_t lanes, Reduction<T>* const* reductions) {
  T total = reductions[__builtin_ctz(lanes)]->value;
  for_each_lane(lanes & (lanes - 1),
                [&](unsigned lane) { total = Op()(total, reductions[lane]->value); });
  for_each_lane(lanes, [&](unsigned lane) { reductions[lane]->value = total; });
}

template <typename Op, typename T>
T reduce(const char* name, uint32_t mask, T value, Location where) {
  Reduction<T> mine{value};
  meet<Reduction<T>, combine_reduction<T, Op>>(name, mask, mine, where);
  return mine.value;
}

inline void combine_nothing(uint32_t, char* const*) {}

}  // namespace simt

inline void __syncthreads(simt::Location where = simt::Location::current()) {
  simt::this_thread->block->barrier(simt::Vote::kNone, 0, where);
}
inline int __syncthreads_count(int predicate, simt::Location where = simt::Location::current()) {
  return simt::this_thread->block->barrier(simt::Vote::kCount, predicate, where);
}
inline int __syncthreads_and(int predicate, simt::Location where = simt::Location::current()) {
  return simt::this_thread->block->barrier(simt::Vote::kAnd, predicate, where);
}
inline int __syncthreads_or(int predicate, simt::Location where = simt::Location::current()) {
  return simt::this_thread->block->barrier(simt::Vote::kOr, predicate, where);
}

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       simt::Location where = simt::Location::current()) {
  char nothing = 0;
  simt::meet<char, simt::combine_nothing>("__syncwarp", mask, nothing, where);
}

// Of the lanes that happen to run together CUDA promises the caller only; kernels that count on
// more are to be noticed.
inline unsigned __activemask() { return 1u << simt::this_thread->lane(); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32,
              simt::Location where = simt::Location::current()) {
  const simt::Segment segment(width, where);
  const unsigned offset = static_cast<unsigned>(from) & static_cast<unsigned>(width - 1);
  return simt::shuffle("__shfl_sync", mask, value, segment.first + offset, where);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 simt::Location where = simt::Location::current()) {
  const simt::Segment segment(width, where);
  const bool inside = segment.lane - segment.first >= delta;
  return simt::shuffle("__shfl_up_sync", mask, value, inside ? segment.lane - delta : segment.lane,
                       where);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   simt::Location where = simt::Location::current()) {
  const simt::Segment segment(width, where);
  const bool inside = segment.last - segment.lane >= delta;
  return simt::shuffle("__shfl_down_sync", mask, value,
                       inside ? segment.lane + delta : segment.lane, where);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  simt::Location where = simt::Location::current()) {
  const simt::Segment segment(width, where);
  const unsigned from = segment.lane ^ static_cast<unsigned>(lane_mask);
  return simt::shuffle("__shfl_xor_sync", mask, value, from <= segment.last ? from : segment.lane,
                       where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              simt::Location where = simt::Location::current()) {
  simt::Ballot mine;
  mine.value = predicate != 0;
  simt::meet<simt::Ballot, simt::combine_ballot>("__ballot_sync", mask, mine, where);
  return mine.result;
}

inline int __any_sync(unsigned mask, int predicate,
                      simt::Location where = simt::Location::current()) {
  return simt::reduce<simt::Or>("__any_sync", mask, predicate != 0 ? 1 : 0, where);
}

inline int __all_sync(unsigned mask, int predicate,
                      simt::Location where = simt::Location::current()) {
  return simt::reduce<simt::And>("__all_sync", mask, predicate != 0 ? 1 : 0, where);
}

template <typename T>
unsigned __match_any_sync(unsigned mask, T value,
                          simt::Location where = simt::Location::current()) {
  static_assert(sizeof(T) <= 8);
  simt::Ballot mine;
  std::memcpy(&mine.value, &value, sizeof(T));
  simt::meet<simt::Ballot, simt::combine_match>("__match_any_sync", mask, mine, where);
  return mine.result;
}

template <typename T>
T __reduce_add_sync(unsigned mask, T value, simt::Location where = simt::Location::current()) {
  return simt::reduce<simt::Add>("__reduce_add_sync", mask, value, where);
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value, simt::Location where = simt::Location::current()) {
  return simt::reduce<simt::Min>("__reduce_min_sync", mask, value, where);
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value, simt::Location where = simt::Location::current()) {
  return simt::reduce<simt::Max>("__reduce_max_sync", mask, value, where);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value,
                                  simt::Location where = simt::Location::current()) {
  return simt::reduce<simt::And>("__reduce_and_sync", mask, value, where);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value,
                                 simt::Location where = simt::Location::current()) {
  return simt::reduce<simt::Or>("__reduce_or_sync", mask, value, where);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value,
                                  simt::Location where = simt::Location::current()) {
  return simt::reduce<simt::Xor>("__reduce_xor_sync", mask, value, where);
}
