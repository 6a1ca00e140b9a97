#include "sequence.h"

namespace pagedattn {

Sequence* SequenceMap::find(std::string_view request_id) {
  const std::int32_t slot = index_.find(
      hash(request_id), [&](std::int32_t i) { return slots_[i]->request_id == request_id; });
  return slot == HashIndex::kNone ? nullptr : slots_[slot].get();
}

Sequence& SequenceMap::insert(std::string_view request_id) {
  std::int32_t slot;
  if (unused_.empty()) {
    slot = static_cast<std::int32_t>(slots_.size());
    slots_.push_back(std::make_unique<Sequence>());
  } else {
    slot = unused_.back();
    unused_.pop_back();
  }
  Sequence& sequence = *slots_[slot];
  sequence.request_id = request_id;
  sequence.slot = slot;
  index_.insert(hash(request_id), slot);
  return sequence;
}

void SequenceMap::erase(Sequence& sequence) {
  const std::int32_t slot = sequence.slot;
  index_.erase(hash(sequence.request_id), slot);
  unused_.push_back(slot);
  sequence = Sequence();
}

}  // namespace pagedattn
