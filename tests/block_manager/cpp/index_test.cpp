// The hash index and the prefix tree, above all when hashes collide.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "../../expect.h"
#include "hash_index.h"
#include "prefix_index.h"

namespace pagedattn::test {
namespace {

// Random inserts, finds and erases against a std::map, with `num_hashes` different hashes.
void index_agrees_with_a_map(int num_hashes) {
  std::mt19937 rng(num_hashes);
  HashIndex index(0);
  std::map<std::int32_t, std::uint64_t> expected;
  for (int step = 0; step < 20000; ++step) {
    const auto id = static_cast<std::int32_t>(rng() % 300);
    const auto known = expected.find(id);
    if (known == expected.end()) {
      const std::uint64_t hash = (rng() % num_hashes) * 0x123456789abcdefull;
      index.insert(hash, id);
      expected[id] = hash;
    } else {
      EXPECT(index.find(known->second, [&](std::int32_t other) { return other == id; }) == id);
      if (rng() % 2) {
        index.erase(known->second, id);
        expected.erase(known);
      }
    }
    EXPECT(index.size() == static_cast<std::int64_t>(expected.size()));
  }
  for (const auto& [id, hash] : expected) {
    const auto same = [id = id](std::int32_t other) { return other == id; };
    EXPECT(index.find(hash, same) == id);
    index.erase(hash, id);
    EXPECT(index.find(hash, same) == HashIndex::kNone);
  }
}

void erase_moves_entries_back_over_the_end_of_the_table() {
  HashIndex index(0);                                            // 16 slots
  for (std::int32_t id = 0; id < 6; ++id) index.insert(14, id);  // slots 14, 15, 0, 1, 2, 3
  index.insert(0, 6);
  index.erase(14, 0);
  for (std::int32_t id = 1; id < 6; ++id) {
    EXPECT(index.find(14, [&](std::int32_t other) { return other == id; }) == id);
  }
  EXPECT(index.find(0, [](std::int32_t other) { return other == 6; }) == 6);
}

// A secret of 0 makes the hashes of all blocks of up to three tokens equal.
void equal_hashes_do_not_make_prefixes_equal() {
  PrefixIndex index(2, 10, 0);
  const PrefixId root = index.find_or_create_root(std::nullopt);
  const Token tokens[4][2] = {{1, 2}, {1, 3}, {2, 2}, {1, 2 + (Token{1} << 32)}};
  std::set<PrefixId> ids;
  for (const auto& block : tokens) {
    EXPECT(index.find_child(root, block) == kNoPrefix);
    const PrefixId id = index.find_or_create_child(root, block);
    index.acquire(id);
    ids.insert(id);
    EXPECT(index.find_child(root, block) == id);
    // Same tokens under another parent: another prefix.
    EXPECT(index.find_child(id, block) == kNoPrefix);
  }
  EXPECT(ids.size() == 4);
}

void a_prefix_lives_while_something_refers_to_it() {
  PrefixIndex index(1, 10);
  const PrefixId root = index.find_or_create_root("salt");
  index.acquire(root);
  const Token a = 1;
  const Token b = 2;
  const PrefixId parent = index.find_or_create_child(root, &a);
  index.acquire(parent);
  const PrefixId child = index.find_or_create_child(parent, &b);
  index.acquire(child);
  index.release(root);
  index.release(parent);
  EXPECT(index.find_child(parent, &b) == child);
  EXPECT(index.num_nodes() == 4);  // the root without salt lives for ever
  index.release(child);
  EXPECT(index.num_nodes() == 1);
  EXPECT(index.find_root("salt") == kNoPrefix);
}

// Children come and go in any order; whichever is the first child, all others stay found.
void children_agree_with_a_map(int num_tokens) {
  std::mt19937 rng(num_tokens);
  PrefixIndex index(2, 4);  // grows far beyond what it reserves
  const PrefixId root = index.find_or_create_root(std::nullopt);
  std::map<std::vector<Token>, PrefixId> children;
  for (int step = 0; step < 20000; ++step) {
    const Token high = rng() % 4 == 0 ? Token{1} << 40 : 0;
    const std::vector<Token> tokens{static_cast<Token>(rng() % num_tokens) + high,
                                    static_cast<Token>(rng() % num_tokens) - 2};
    const auto known = children.find(tokens);
    if (known == children.end()) {
      EXPECT(index.find_child(root, tokens.data()) == kNoPrefix);
      const PrefixId id = index.find_or_create_child(root, tokens.data());
      index.acquire(id);
      children[tokens] = id;
    } else {
      EXPECT(index.find_or_create_child(root, tokens.data()) == known->second);
      EXPECT(index.block_tokens(known->second) == tokens);
      if (rng() % 2) {
        index.release(known->second);
        children.erase(known);
      }
    }
  }
  EXPECT(index.num_nodes() == static_cast<std::int64_t>(children.size()) + 1);
}

void roots_are_found_by_their_salt() {
  PrefixIndex index(1, 10);
  const PrefixId none = index.find_or_create_root(std::nullopt);
  const PrefixId empty = index.find_or_create_root("");
  const PrefixId salted = index.find_or_create_root("x");
  EXPECT(none != empty && empty != salted && none != salted);
  EXPECT(index.find_root("x") == salted);
  EXPECT(index.find_root("y") == kNoPrefix);
  EXPECT(index.root_salt(salted) == CacheSalt("x"));
  EXPECT(!index.root_salt(none));
}

// Tokens that would make a factor 0 in every product, were the factor known.
void known_constants_as_tokens_do_not_collide() {
  const std::uint64_t secret = random_secret();
  for (const std::uint64_t constant : {std::uint64_t{0}, kMixA, kMixB, kMixA ^ kMixB}) {
    const auto word = static_cast<std::int64_t>(constant);
    for (const std::int64_t size : {1, 4, 8, 16}) {
      std::set<std::uint64_t> hashes;
      for (std::int64_t changed = 0; changed < 1000; ++changed) {
        std::vector<std::int64_t> words(size, word);
        for (std::int64_t i = 0; i < size; i += 2) words[i] = changed;
        hashes.insert(hash_words(secret, 0, words.data(), size));
      }
      EXPECT(hashes.size() == 1000);
    }
  }
}

// The factors of a product commute; tokens must not.
void tokens_in_another_order_do_not_collide() {
  const std::uint64_t secret = random_secret();
  std::vector<std::int64_t> words{1, 2, 3, 4, 5, 6, 7, 8};
  std::set<std::uint64_t> hashes;
  do {
    hashes.insert(hash_words(secret, 0, words.data(), 8));
  } while (std::next_permutation(words.begin(), words.end()));
  EXPECT(hashes.size() == 40320);
}

void hashes_differ_between_blocks_and_secrets() {
  std::set<std::uint64_t> hashes;
  for (std::int64_t size = 1; size <= 9; ++size) {
    for (std::int64_t changed = 0; changed < size; ++changed) {
      std::vector<std::int64_t> words(size, 5);
      words[changed] = 6;
      for (const std::uint64_t secret : {0x0123456789abcdefull, 0x6c62272e07bb0142ull}) {
        hashes.insert(hash_words(secret, 0x9216d5d98979fb1b, words.data(), size));
        hashes.insert(hash_words(secret, 0xd1310ba698dfb5ac, words.data(), size));
      }
    }
  }
  EXPECT(hashes.size() == 180);
  std::set<std::uint64_t> byte_hashes;
  const std::string text = "abcdefghijklmnopqrst";
  for (std::size_t size = 0; size <= text.size(); ++size) {
    byte_hashes.insert(hash_bytes(1, text.data(), size));
  }
  EXPECT(byte_hashes.size() == text.size() + 1);
}

}  // namespace
}  // namespace pagedattn::test

int main() {
  using namespace pagedattn::test;
  index_agrees_with_a_map(1000000);
  index_agrees_with_a_map(3);
  erase_moves_entries_back_over_the_end_of_the_table();
  equal_hashes_do_not_make_prefixes_equal();
  a_prefix_lives_while_something_refers_to_it();
  children_agree_with_a_map(3);
  children_agree_with_a_map(30);
  roots_are_found_by_their_salt();
  hashes_differ_between_blocks_and_secrets();
  known_constants_as_tokens_do_not_collide();
  tokens_in_another_order_do_not_collide();
  return num_failures > 0;
}
