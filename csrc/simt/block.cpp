#include <simt/block.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

thread_local uint3 threadIdx;
thread_local uint3 blockIdx;
thread_local dim3 blockDim;
thread_local dim3 gridDim;

namespace simt {

thread_local Thread* this_thread = nullptr;

namespace {

template <typename Vector>
std::string text(const Vector& v) {
  return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
}

std::string text(const Location& where) {
  if (where.line == 0) return "";
  const char* name = std::strrchr(where.file, '/');
  return std::string(name == nullptr ? where.file : name + 1) + ":" + std::to_string(where.line);
}

std::string hex(uint32_t mask) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), "0x%08x", mask);
  return buffer;
}

}  // namespace

std::string Block::run(const Grid& grid, uint3 index, uint64_t seed) {
  grid_ = &grid;
  index_ = index;
  num_threads_ = grid.block_size.x * grid.block_size.y * grid.block_size.z;
  num_exited_ = 0;
  barrier_arrived_ = 0;
  barrier_true_ = 0;
  std::fill(std::begin(named_barriers_), std::end(named_barriers_), NamedBarrier{});
  for (std::vector<OpenCall>& calls : open_calls_) calls.clear();
  std::fill(std::begin(exited_lanes_), std::end(exited_lanes_), 0);
  if (num_threads_ % kWarpSize != 0) {
    exited_lanes_[num_threads_ / kWarpSize] = ~0u << num_threads_ % kWarpSize;
  }
  error_.clear();

  while (threads_.size() < num_threads_) threads_.push_back(std::make_unique<Thread>());
  for (unsigned i = 0; i < num_threads_; ++i) {
    Thread& thread = *threads_[i];
    const unsigned row = i / grid.block_size.x;
    thread.index = {i % grid.block_size.x, row % grid.block_size.y, row / grid.block_size.y};
    thread.linear = i;
    thread.block = this;
    thread.waits = Thread::Waits::kNot;
    thread.where = {};
    thread.copies.clear();
    thread.fiber.start(thread_main, &thread);
  }
  ready_.reset(num_threads_, grid.schedule.order, seed);

  shared_.open(grid.dynamic_bytes);
  blockIdx = index;
  blockDim = grid.block_size;
  gridDim = grid.size;
  make_current(ready_.take());
  Fiber::switch_to(scheduler_, this_thread->fiber);
  if (!shared_.close()) note("wrote past the end of dynamic shared memory");
  this_thread = nullptr;
  return error_;
}

void Block::thread_main(void* argument) {
  Thread* thread = static_cast<Thread*>(argument);
  thread->block->grid_->body();
  thread->block->exit_thread();
}

void Block::make_current(unsigned thread) {
  this_thread = threads_[thread].get();
  threadIdx = this_thread->index;
}

// Returns when the schedule picks this thread again, which after an error is never.
void Block::wait() {
  if (!error_.empty()) leave();
  if (ready_.empty()) fail(this_thread->where, "deadlock: " + describe_waiting());
  Thread* self = this_thread;
  make_current(ready_.take());
  if (this_thread != self) Fiber::switch_to(self->fiber, this_thread->fiber);
}

void Block::leave() {
  Fiber::switch_to(this_thread->fiber, scheduler_);
  __builtin_unreachable();
}

void Block::exit_thread() {
  Thread& self = *this_thread;
  if (barrier_arrived_ != 0) {
    fail(self.where,
         "divergent barrier: this thread exits while others wait; " + describe_waiting());
  }
  self.waits = Thread::Waits::kExited;
  exited_lanes_[self.warp()] |= 1u << self.lane();
  ++num_exited_;
  std::vector<OpenCall>& open_calls = open_calls_[self.warp()];
  for (size_t i = 0; i < open_calls.size();) {
    if (!complete_call(self.warp(), open_calls[i])) ++i;
  }
  if (num_exited_ == num_threads_) leave();
  wait();
}

int Block::barrier(Vote vote, int predicate, Location where) {
  Thread& self = *this_thread;
  self.where = where;
  if (num_exited_ != 0) {
    fail(where, "divergent barrier: " + std::to_string(num_exited_) +
                    " threads have exited and will not reach it");
  }
  if (barrier_arrived_ == 0) {
    barrier_vote_ = vote;
    barrier_first_ = self.linear;
  } else if (const Thread& first = *threads_[barrier_first_];
             vote != barrier_vote_ || !(where == first.where)) {
    fail(where, "divergent barrier: " + describe_waiting());
  }
  self.waits = Thread::Waits::kAtBarrier;
  ++barrier_arrived_;
  barrier_true_ += predicate != 0;
  if (barrier_arrived_ == num_threads_) {
    barrier_result_ = barrier_vote_ == Vote::kCount ? static_cast<int>(barrier_true_)
                      : barrier_vote_ == Vote::kAnd ? barrier_true_ == num_threads_
                                                    : barrier_true_ != 0;
    barrier_arrived_ = 0;
    barrier_true_ = 0;
    for (unsigned i = 0; i < num_threads_; ++i) {
      threads_[i]->waits = Thread::Waits::kNot;
      ready_.add(i / kWarpSize, 1u << i % kWarpSize);
    }
  }
  wait();
  return barrier_result_;
}

void Block::named_barrier(int id, int num_threads, Location where) {
  Thread& self = *this_thread;
  self.where = where;
  if (id < 1 || id >= kNamedBarriers || num_threads < 1 || num_threads % 32 != 0 ||
      num_threads > static_cast<int>(num_threads_)) {
    fail(where, "named barrier " + std::to_string(id) + " for " + std::to_string(num_threads) +
                    " threads: ids are 1 to 15, threads a multiple of 32 within the block");
  }
  NamedBarrier& barrier = named_barriers_[id];
  if (barrier.arrived != 0 && barrier.num_threads != num_threads) {
    fail(where, "named barrier " + std::to_string(id) + ": this thread expects " +
                    std::to_string(num_threads) + " threads, those who wait " +
                    std::to_string(barrier.num_threads));
  }
  barrier.num_threads = num_threads;
  self.waits = Thread::Waits::kAtNamedBarrier;
  self.barrier_id = id;
  if (++barrier.arrived == num_threads) {
    barrier.arrived = 0;
    for (unsigned i = 0; i < num_threads_; ++i) {
      Thread& other = *threads_[i];
      if (other.waits != Thread::Waits::kAtNamedBarrier || other.barrier_id != id) continue;
      other.waits = Thread::Waits::kNot;
      ready_.add(i / kWarpSize, 1u << i % kWarpSize);
    }
  }
  wait();
}

void Block::warp_call(WarpCall& call) {
  Thread& self = *this_thread;
  self.where = call.where;
  if ((call.mask >> self.lane() & 1) == 0) {
    fail(call.where, std::string(call.name) + ": the mask " + hex(call.mask) +
                         " lacks the calling lane " + std::to_string(self.lane()));
  }
  OpenCall& open = join_call(self, call);
  self.call = &call;
  self.waits = Thread::Waits::kInWarp;
  complete_call(self.warp(), open);
  wait();
}

// Finds the call that other lanes wait in, or opens it.
Block::OpenCall& Block::join_call(const Thread& self, const WarpCall& call) {
  std::vector<OpenCall>& open_calls = open_calls_[self.warp()];
  const uint32_t own_bit = 1u << self.lane();
  OpenCall* joined = nullptr;
  for (OpenCall& open : open_calls) {
    const WarpCall& theirs = *open.call;
    const bool same_name = call.name == theirs.name || std::strcmp(call.name, theirs.name) == 0;
    if (call.mask == theirs.mask && same_name && (!call.same_line || call.where == theirs.where)) {
      joined = &open;
    } else if ((call.mask & open.arrived) != 0 || (theirs.mask & own_bit) != 0) {
      fail(call.where, "lanes disagree: lane " + std::to_string(self.lane()) + " calls " +
                           call.name + " with mask " + hex(call.mask) + ", lane " +
                           std::to_string(__builtin_ctz(open.arrived)) + " waits in " +
                           theirs.name + " with mask " + hex(theirs.mask) + " at " +
                           text(theirs.where));
    }
  }
  if (joined == nullptr) joined = &open_calls.emplace_back(OpenCall{&call, 0, {}});
  joined->arrived |= own_bit;
  joined->arguments[self.lane()] = call.argument;
  return *joined;
}

// Performs and removes the call if no lane is missing.
bool Block::complete_call(unsigned warp, OpenCall& open) {
  const WarpCall& call = *open.call;
  if ((call.mask & ~open.arrived & ~exited_lanes_[warp]) != 0) return false;
  const uint32_t lanes = open.arrived;
  if (call.combine != nullptr) call.combine(lanes, open.arguments);
  open = open_calls_[warp].back();
  open_calls_[warp].pop_back();
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    thread(warp, __builtin_ctz(rest)).waits = Thread::Waits::kNot;
  }
  ready_.add(warp, lanes);
  return true;
}

std::string Block::describe_thread() const {
  const Thread& self = *this_thread;
  const Schedule& schedule = grid_->schedule;
  return "simt: " + grid_->kernel + " <<<" + text(grid_->size) + ", " + text(grid_->block_size) +
         ", " + std::to_string(grid_->dynamic_bytes) + ">>> block " + text(index_) + " thread " +
         text(self.index) + " [order " + order_name(schedule.order) + ", seed " +
         std::to_string(schedule.seed) + "]";
}

// "3 threads wait at f.cuh:12 (__syncthreads), first (0,0,0); ..."
std::string Block::describe_waiting() const {
  struct Group {
    std::string what;
    unsigned count;
    uint3 first;
  };
  std::vector<Group> groups;
  for (unsigned i = 0; i < num_threads_; ++i) {
    const Thread& thread = *threads_[i];
    std::string what;
    if (thread.waits == Thread::Waits::kAtBarrier) {
      what = "at the barrier " + text(thread.where);
    } else if (thread.waits == Thread::Waits::kAtNamedBarrier) {
      what =
          "at the named barrier " + std::to_string(thread.barrier_id) + " at " + text(thread.where);
    } else if (thread.waits == Thread::Waits::kInWarp) {
      what = std::string("in ") + thread.call->name + " with mask " + hex(thread.call->mask) +
             " at " + text(thread.where);
    } else {
      continue;
    }
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const Group& group) { return group.what == what; });
    if (same != groups.end()) {
      ++same->count;
    } else {
      groups.push_back({what, 1, thread.index});
    }
  }
  std::string description;
  for (const Group& group : groups) {
    if (!description.empty()) description += "; ";
    description += std::to_string(group.count) + " threads wait " + group.what + ", the first is " +
                   text(group.first);
  }
  return description + "; " + std::to_string(num_exited_) + " have exited";
}

void Block::note(const std::string& finding) {
  if (error_.empty()) error_ = describe_thread() + ": " + finding;
}

void Block::fail(Location where, const std::string& what) {
  note(where.line == 0 ? what : text(where) + ": " + what);
  leave();
}

}  // namespace simt
