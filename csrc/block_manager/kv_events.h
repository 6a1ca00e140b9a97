// What happened to the prefix cache, for routers that send a request where its prefix is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block_pool.h"
#include "types.h"

namespace pagedattn {

struct KvEvent {
  enum class Kind { kStored, kRemoved, kCleared };

  Kind kind = Kind::kCleared;
  // Unique among the prefixes known at a time; one manager's events must be applied in order.
  PrefixId prefix = kNoPrefix;
  // Stored only:
  PrefixId parent = kNoPrefix;  // kNoPrefix: the block starts a prompt
  BlockId block = kNoBlock;
  std::vector<Token> tokens;              // the block's own tokens
  std::optional<std::string> cache_salt;  // of a block that starts a prompt
};

class KvEventLog {
 public:
  explicit KvEventLog(bool enabled) : enabled_(enabled) {}

  bool enabled() const { return enabled_; }
  // The event to fill in.
  KvEvent& add(KvEvent::Kind kind) {
    KvEvent& event = events_.emplace_back();
    event.kind = kind;
    return event;
  }
  std::vector<KvEvent> take() { return std::exchange(events_, {}); }

 private:
  bool enabled_;
  std::vector<KvEvent> events_;
};

}  // namespace pagedattn
