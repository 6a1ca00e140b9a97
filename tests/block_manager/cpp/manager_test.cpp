// The manager from C++: a few calls by hand, then long random traffic with its invariants checked.
// Meant to run under AddressSanitizer and UndefinedBehaviorSanitizer.
#include <random>
#include <string>
#include <vector>

#include "../../expect.h"
#include "block_manager.h"

namespace pagedattn::test {
namespace {

TokenSpan span(const std::vector<Token>& tokens) {
  return {tokens.data(), static_cast<std::int64_t>(tokens.size())};
}

BlockManagerConfig config(std::int64_t num_blocks, std::int64_t block_size) {
  BlockManagerConfig config;
  config.num_blocks = num_blocks;
  config.block_size = block_size;
  return config;
}

void allocate_share_and_free() {
  BlockManager manager(config(4, 2));
  const Allocation first = manager.allocate("a", span({1, 2, 3}), std::nullopt);
  const Allocation second = manager.allocate("b", span({1, 2, 4}), std::nullopt);
  EXPECT(first.num_cached_tokens == 0);
  EXPECT(second.num_cached_tokens == 2);
  EXPECT(manager.ref_count(first.block_ids[0]) == 2);
  EXPECT_THROWS(manager.allocate("c", span({9, 9, 9, 9}), std::nullopt), OutOfBlocks);
  EXPECT_THROWS(manager.allocate("a", span({9}), std::nullopt), std::invalid_argument);
  EXPECT_THROWS(manager.allocate("c", span({}), std::nullopt), std::invalid_argument);
  EXPECT_THROWS(manager.free("c", std::nullopt), UnknownRequest);
  EXPECT_THROWS(manager.ref_count(4), std::out_of_range);
  manager.free("a", std::nullopt);
  manager.free("b", std::nullopt);
  EXPECT(manager.num_free_blocks() == 4);
  EXPECT(manager.stats().num_hittable_free == 1);
}

void append_without_slots() {
  BlockManager manager(config(4, 2));
  manager.allocate("a", span({1}), std::nullopt);
  EXPECT(!manager.append("a", span({2, 3}), {}));
  EXPECT(manager.num_tokens("a") == 3);
}

// Every call with random arguments; what it throws must be one of the documented errors.
class Traffic {
 public:
  Traffic(std::uint32_t seed, const BlockManagerConfig& config) : rng_(seed), manager_(config) {}

  void step() {
    try {
      call();
    } catch (const OutOfBlocks&) {
    } catch (const UnknownRequest&) {
    } catch (const std::invalid_argument&) {
    }
    manager_.check_invariants();
  }

  // Frees everything and expects an empty pool.
  void finish(std::int64_t capacity) {
    for (int i = 0; i < kNumNames; ++i) {
      const std::string name = "r" + std::to_string(i);
      if (manager_.has_request(name)) manager_.free(name, std::nullopt);
    }
    manager_.check_invariants();
    EXPECT(manager_.num_free_blocks() + manager_.stats().num_pinned >= capacity);
    EXPECT(manager_.num_host_free_blocks() == manager_.config().num_host_blocks);
  }

 private:
  static constexpr int kNumNames = 6;

  int pick(int n) { return static_cast<int>(rng_() % n); }
  std::string name() { return "r" + std::to_string(pick(kNumNames)); }
  CacheSalt salt() { return pick(4) == 0 ? CacheSalt("salt") : std::nullopt; }

  // Few different blocks, so that prefixes meet.
  std::vector<Token> tokens(int max_blocks) {
    const std::int64_t size = manager_.config().block_size;
    std::vector<Token> tokens;
    for (int b = pick(max_blocks + 1); b > 0; --b) tokens.insert(tokens.end(), size, pick(2));
    if (!tokens.empty()) tokens.resize(tokens.size() - pick(static_cast<int>(size)));
    return tokens;
  }

  void call() {
    switch (pick(14)) {
      case 0:
      case 1:
      case 2:
        manager_.allocate(name(), span(tokens(5)), salt());
        break;
      case 3:
      case 4: {
        const std::vector<Token> added = tokens(2);
        std::vector<std::int64_t> slots(added.size());
        manager_.append(name(), span(added),
                        {slots.data(), static_cast<std::int64_t>(slots.size())});
        break;
      }
      case 5:
        append_batch();
        break;
      case 6:
        manager_.fork(name(), name());
        break;
      case 7:
        manager_.truncate(name(), pick(20));
        break;
      case 8:
      case 9:
        manager_.free(name(), pick(3) == 0 ? std::optional<std::int64_t>(pick(20)) : std::nullopt);
        break;
      case 10:
        manager_.pin_prefix(span(tokens(3)), salt());
        break;
      case 11:
        manager_.unpin_prefix(span(tokens(3)), salt());
        break;
      case 12:
        if (pick(2)) {
          manager_.swap_out(name());
        } else {
          manager_.swap_in(name());
        }
        break;
      default:
        manager_.lookup(span(tokens(5)), salt());
        manager_.take_events();
        manager_.reset_prefix_cache();
    }
  }

  void append_batch() {
    const std::string names[2] = {"r" + std::to_string(pick(3)), "r" + std::to_string(3 + pick(3))};
    const std::string_view ids[2] = {names[0], names[1]};
    const std::int64_t counts[2] = {pick(3), pick(3)};
    const std::vector<Token> added(counts[0] + counts[1], pick(2));
    std::vector<std::int64_t> slots(added.size() + 1);
    std::vector<std::int32_t> tables(3 * 8);
    std::vector<std::int32_t> lens(3);
    TokenBatch batch{{ids, 2}, span(added)};
    batch.counts = Span<const std::int64_t>{counts, 2};
    BatchBuffers out;
    out.slot_mapping = Span<std::int64_t>{slots.data(), static_cast<std::int64_t>(slots.size())};
    out.block_tables = Int32Rows{tables.data(), 3, 7, 8};
    out.seq_lens = Span<std::int32_t>{lens.data(), 3};
    manager_.append_batch(batch, out);
    EXPECT(slots.back() == kSkippedSlot);
    EXPECT(lens.back() == 0);
  }

  std::mt19937 rng_;
  BlockManager manager_;
};

void random_traffic() {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    static constexpr std::int64_t kSizes[] = {1, 2, 8, 16};
    BlockManagerConfig config;
    config.num_blocks = 2 + seed % 11;
    config.block_size = kSizes[seed % 4];
    config.enable_prefix_caching = seed % 5 != 4;
    config.num_host_blocks = seed % 7;
    config.record_events = seed % 2;
    if (seed % 3 == 2) config.window = seed % 13;
    Traffic traffic(seed, config);
    for (int i = 0; i < 1500; ++i) traffic.step();
    traffic.finish(config.num_blocks - (config.window ? 1 : 0));
  }
}

}  // namespace
}  // namespace pagedattn::test

int main() {
  using namespace pagedattn::test;
  allocate_share_and_free();
  append_without_slots();
  random_traffic();
  return num_failures > 0;
}
