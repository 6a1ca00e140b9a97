// Open-addressing index from a hash to a 32-bit id, and the hash it is used with.
//
// The index stores no keys: the caller passes a predicate that compares the real key, so a
// collision costs a comparison and never a wrong answer. Eight bytes per slot, linear probing,
// deletion by shifting back (no tombstones: the index does not age).
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace pagedattn {

// Folded 64 x 64 -> 128 bit multiplication (the mixing step of wyhash, W. Yi et al. 2023).
inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  __extension__ using uint128 = unsigned __int128;
  const uint128 product = static_cast<uint128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline constexpr std::uint64_t kMixA = 0x9e3779b97f4a7c15;
inline constexpr std::uint64_t kMixB = 0xd1b54a32d192ed03;

// Hash of the words behind `seed`. Two independent lanes keep the multiplier busy.
//
// A product with 0 forgets the other factor, so whoever chooses the words must not be able to make
// a factor 0: each one contains the secret or a state that depends on it. The two of one product
// must not both contain the secret itself, or words could be exchanged between them.
inline std::uint64_t hash_words(std::uint64_t secret, std::uint64_t seed, const std::int64_t* words,
                                std::int64_t size) {
  std::uint64_t a = mix(secret ^ seed, kMixA);
  std::uint64_t b = a ^ kMixB;
  std::int64_t i = 0;
  for (; i + 4 <= size; i += 4) {
    a = mix(a ^ static_cast<std::uint64_t>(words[i]),
            static_cast<std::uint64_t>(words[i + 1]) ^ secret);
    b = mix(b ^ static_cast<std::uint64_t>(words[i + 2]),
            static_cast<std::uint64_t>(words[i + 3]) ^ secret);
  }
  for (; i < size; ++i) a = mix(a ^ static_cast<std::uint64_t>(words[i]), secret);
  return mix(a ^ secret, b ^ kMixA);
}

inline std::uint64_t hash_bytes(std::uint64_t secret, const char* bytes, std::size_t size) {
  const auto load = [](const char* from, auto word) -> std::uint64_t {
    std::memcpy(&word, from, sizeof word);
    return word;
  };
  std::uint64_t h = secret ^ size;
  const std::uint64_t factor = secret ^ kMixA;
  for (; size >= 8; bytes += 8, size -= 8) h = mix(h ^ load(bytes, std::uint64_t()), factor);
  std::uint64_t rest = 0;
  if (size >= 4) {  // two loads that may overlap
    rest = load(bytes, std::uint32_t()) | load(bytes + size - 4, std::uint32_t()) << 32;
  } else {
    for (; size > 0; --size) rest = rest << 8 | static_cast<unsigned char>(*bytes++);
  }
  return mix(h ^ rest, factor ^ kMixB);
}

// One per table: keys that collide, which make lookups slow, cannot be prepared without knowing it.
// The hash is not cryptographic and its values must stay inside.
inline std::uint64_t random_secret() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

class HashIndex {
 public:
  static constexpr std::int32_t kNone = -1;

  // Sized so that `expected` ids fit without growing.
  explicit HashIndex(std::int64_t expected) { resize(expected); }

  std::int64_t size() const { return size_; }

  // First id stored under `hash` that `matches(id)` accepts, else kNone.
  template <typename Matches>
  std::int32_t find(std::uint64_t hash, Matches matches) const {
    const auto tag = static_cast<std::uint32_t>(hash);
    for (std::uint64_t i = tag & mask_; slots_[i].id != kNone; i = (i + 1) & mask_) {
      if (slots_[i].tag == tag && matches(slots_[i].id)) return slots_[i].id;
    }
    return kNone;
  }

  void insert(std::uint64_t hash, std::int32_t id) {
    if ((size_ + 1) * 4 > static_cast<std::int64_t>(slots_.size()) * 3) grow();
    place({static_cast<std::uint32_t>(hash), id});
    ++size_;
  }

  // `id` must be stored under `hash`.
  void erase(std::uint64_t hash, std::int32_t id) {
    std::uint64_t hole = static_cast<std::uint32_t>(hash) & mask_;
    while (slots_[hole].id != id) hole = (hole + 1) & mask_;
    // Move back every later entry of the run that may sit in the hole.
    for (std::uint64_t i = (hole + 1) & mask_; slots_[i].id != kNone; i = (i + 1) & mask_) {
      const std::uint64_t home = slots_[i].tag & mask_;
      if (((i - home) & mask_) >= ((i - hole) & mask_)) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole].id = kNone;
    --size_;
  }

 private:
  struct Slot {
    std::uint32_t tag;
    std::int32_t id;
  };

  void resize(std::int64_t expected) {
    std::uint64_t capacity = 16;
    while (capacity * 3 < static_cast<std::uint64_t>(expected) * 4) capacity *= 2;
    slots_.assign(capacity, {0, kNone});
    mask_ = capacity - 1;
  }

  void grow() {
    std::vector<Slot> old = std::move(slots_);
    resize(static_cast<std::int64_t>(old.size()));
    for (const Slot& slot : old) {
      if (slot.id != kNone) place(slot);
    }
  }

  void place(Slot slot) {
    std::uint64_t i = slot.tag & mask_;
    while (slots_[i].id != kNone) i = (i + 1) & mask_;
    slots_[i] = slot;
  }

  std::vector<Slot> slots_;
  std::uint64_t mask_ = 0;
  std::int64_t size_ = 0;
};

}  // namespace pagedattn
