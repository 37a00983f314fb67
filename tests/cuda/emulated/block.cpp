// Fibers with a switch of their own: a shuffle is 32 of them, and ucontext asks the system at each. A fiber that gives
// way switches to the next one whose wait is over. When no wait is over all run once more, since what they wait for may
// have become impossible, and then the block is stuck.
#include "tests/cuda/emulated/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {  // of the sanitizer's runtime library, which has no header for them
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace trainer::emulated {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr std::size_t kStackBytes = 512 * 1024;
#else
constexpr std::size_t kStackBytes = 128 * 1024;
#endif

// A sanitizer is told of each switch where it is made: from the scheduler to a fiber and back.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kByScheduler = true;
#else
constexpr bool kByScheduler = false;
#endif

// To the thread sanitizer a fiber is a thread, and a switch between fibers orders nothing. What orders threads on a GPU
// is told where it happens: a fiber that arrives at a meeting calls `before`, one that leaves it calls `after`. The
// sanitizer ignores what the block itself records about its threads.

#if defined(__SANITIZE_THREAD__)
void before(void* meeting) { __tsan_release(meeting); }
void after(void* meeting) { __tsan_acquire(meeting); }
struct Unwatched {
  Unwatched() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unwatched() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};
#else
void before(void*) {}
void after(void*) {}
struct Unwatched {
  Unwatched() {}  // not trivial: an object that nobody reads is no mistake
};
#endif

}  // namespace

#if defined(__x86_64__)
extern "C" void trainer_emulated_switch(void** save, void* to);
// Saves what a call must keep, and the stack pointer; takes up the other stack the same way.
asm(R"(
.text
.globl trainer_emulated_switch
.type trainer_emulated_switch, @function
trainer_emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size trainer_emulated_switch, .-trainer_emulated_switch
)");
#else
#error "the emulated GPU needs a switch of fibers for this processor"
#endif

struct Block::Fiber {
  Fiber() {
    stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) throw std::bad_alloc();
#if defined(__SANITIZE_THREAD__)
    thread_fiber = __tsan_create_fiber(0);
#endif
  }
  ~Fiber() {
    munmap(stack, kStackBytes);
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(thread_fiber);
#endif
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void start() {
    const Unwatched unwatched;
#if defined(__SANITIZE_ADDRESS__)
    // Frames that never returned have left their guards: the outermost of one that ended, any of one that was given up.
    const std::size_t used = ended ? 4096 : kStackBytes;
    __asan_unpoison_memory_region(static_cast<std::byte*>(stack) + kStackBytes - used, used);
#endif
    void** top = reinterpret_cast<void**>(static_cast<std::byte*>(stack) + kStackBytes);
    *--top = nullptr;  // the stack of a function is 16-byte aligned before its return address
    *--top = reinterpret_cast<void*>(&Block::Fiber::entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    pointer = top;
    started.clear();
    committed.clear();
    ended = false;
    generation = nullptr;
  }
  // What it did comes before what happens now. If it waits in a meeting it is unwatched, and its frames never return:
  // to the sanitizer, what runs on its stack next is another thread.
  void give_up() {
#if defined(__SANITIZE_THREAD__)
    void* const here = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(thread_fiber, __tsan_switch_to_fiber_no_sync);
    if (generation != nullptr) {
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
    before(this);
    __tsan_switch_to_fiber(here, __tsan_switch_to_fiber_no_sync);
    after(this);
    __tsan_destroy_fiber(thread_fiber);
    thread_fiber = __tsan_create_fiber(0);
#endif
  }

  // Never returns. The address sanitizer must not take that for an end of all frames, and the thread sanitizer must not
  // write down a frame that nothing takes off again.
  [[gnu::no_sanitize("address", "thread")]] static void entry() { Block::enter(here()); }
  static Block* here() {
    const Unwatched unwatched;
    return &Block::current();
  }

  bool waits() const { return generation != nullptr && *generation == seen; }

  void* stack = nullptr;
  void* pointer = nullptr;
  void* sanitizer_stack = nullptr;
  void* thread_fiber = nullptr;
  Index index;
  unsigned linear = 0;
  bool ended = true;
  const std::uint64_t* generation = nullptr;  // it waits until this is no longer `seen`; null: it does not wait
  std::uint64_t seen = 0;
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  std::vector<Copy> started;
  std::vector<std::vector<Copy>> committed;  // the oldest first
};

Block::Block() = default;
Block::~Block() = default;

void Block::refuse_host() { throw Misuse("device code runs outside of a kernel"); }

bool Block::fixed_shared() {
  if (current().shared_bytes_ > 48 * 1024)
    throw Misuse(
        "a kernel with shared memory of a fixed size is launched with more than 48 KiB of dynamic shared memory");
  return true;
}

unsigned Block::lane() const { return running_->linear % kLanes; }

Block::Fiber& Block::running() {
  const Unwatched unwatched;
  return *running_;
}

void Block::copy_later(void* to, const void* from, std::size_t bytes) {
  running().started.push_back({to, from, bytes});
}

void Block::commit_copies() {
  Fiber& fiber = running();
  fiber.committed.push_back(std::exchange(fiber.started, {}));
}

void Block::wait_for_copies(std::size_t pending) {
  std::vector<std::vector<Fiber::Copy>>& groups = running().committed;
  if (groups.size() <= pending) return;
  const auto end = groups.end() - static_cast<std::ptrdiff_t>(pending);
  for (auto group = groups.begin(); group != end; ++group)
    for (const Fiber::Copy& copy : *group)
      copy.from != nullptr ? std::memcpy(copy.to, copy.from, copy.bytes) : std::memset(copy.to, 0, copy.bytes);
  groups.erase(groups.begin(), end);
}

void Block::make_fibers(std::size_t count) {
  while (fibers_.size() < count) fibers_.push_back(std::make_unique<Fiber>());
}

void Block::run(Index at, Index block_threads, Index grid_blocks, std::size_t shared_bytes, std::uint64_t order,
                const std::function<void()>& body) {
  block = at;
  threads = block_threads;
  blocks = grid_blocks;
  count_ = static_cast<std::size_t>(threads.x) * threads.y * threads.z;
  alive_ = count_;
  body_ = &body;
  failure_ = nullptr;
  barrier_arrived_ = 0;
  barrier_sum_ = 0;
  make_fibers(count_);
  meetings_.assign((count_ + kLanes - 1) / kLanes, {});
  present_.assign(meetings_.size(), 0);
  for (std::size_t i = 0; i < count_; ++i) present_[i / kLanes] |= 1u << (i % kLanes);
  // Of the exact size, so that the address sanitizer sees a byte too many; NaN, so that what nobody wrote shows.
  shared_memory_.reset(new std::byte[shared_bytes + 128]);
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(shared_memory_.get());
  shared_ = shared_memory_.get() + (128 - address % 128) % 128;
  std::memset(shared_, 0xFF, shared_bytes);
  shared_bytes_ = shared_bytes;

  order_.clear();
  for (std::size_t i = 0; i < count_; ++i) {
    Fiber& fiber = *fibers_[i];
    const unsigned linear = static_cast<unsigned>(i);
    fiber.index = {linear % threads.x, linear / threads.x % threads.y, linear / threads.x / threads.y};
    fiber.linear = linear;
    fiber.start();
    order_.push_back(&fiber);
  }
  Block* const outer = running_here;
  running_here = this;
  wakes_all_ = false;
  before(&begin_);
  for (std::uint64_t number = 0; alive_ > 0 && !failure_; ++number) {
    const std::uint64_t progress_before = progress_;
    turn(order, number);
    const bool moved = progress_ != progress_before || failure_;
    if (!moved && wakes_all_) break;
    wakes_all_ = !moved;
  }
  after(&end_);
  for (Fiber* fiber : order_)
    if (!fiber->ended) fiber->give_up();
  running_here = outer;
  if (alive_ > 0 && !failure_) stuck();
  if (failure_) std::rethrow_exception(failure_);
}

void Block::turn(std::uint64_t order, std::uint64_t number) {
  std::erase_if(order_, [](const Fiber* fiber) { return fiber->ended; });
  if (order == 1 && number == 0) std::reverse(order_.begin(), order_.end());
  if (order > 1) {
    std::minstd_rand generator(static_cast<std::uint32_t>(order * 2654435761u + number * 40503u + block.x * 97u + 1));
    std::shuffle(order_.begin(), order_.end(), generator);
  }
  at_ = 0;
  while (Fiber* fiber = next()) resume(*fiber);
}

// The fiber whose turn it is; null: the turn is over.
Block::Fiber* Block::next() {
  while (at_ < order_.size() && !failure_) {
    Fiber& fiber = *order_[at_++];
    if (!fiber.ended && (wakes_all_ || !fiber.waits())) return &fiber;
  }
  return nullptr;
}

void Block::resume(Fiber& fiber) {
  {
    const Unwatched unwatched;
    running_ = &fiber;
    thread = fiber.index;
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&sanitizer_stack_, fiber.stack, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  scheduler_fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber.thread_fiber, __tsan_switch_to_fiber_no_sync);
#endif
  trainer_emulated_switch(&scheduler_, fiber.pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sanitizer_stack_, nullptr, nullptr);
#endif
}

[[gnu::no_sanitize("thread")]] void Block::yield() {
  Fiber& fiber = *running_;
  if (!kByScheduler) {
    Fiber* const other = next();
    if (other != nullptr) {
      running_ = other;
      thread = other->index;
    }
    return trainer_emulated_switch(&fiber.pointer, other != nullptr ? other->pointer : scheduler_);
  }
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fiber.ended ? nullptr : &fiber.sanitizer_stack, scheduler_bottom_, scheduler_size_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(scheduler_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
  trainer_emulated_switch(&fiber.pointer, scheduler_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.sanitizer_stack, &scheduler_bottom_, &scheduler_size_);
#endif
}

[[gnu::no_sanitize("thread")]] void Block::enter(void* pointer) {
  Block& self = *static_cast<Block*>(pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self.scheduler_bottom_, &self.scheduler_size_);
#endif
  after(&self.begin_);
  std::exception_ptr failure;
  try {
    (*self.body_)();
  } catch (...) {
    failure = std::current_exception();
  }
  before(&self.end_);
  self.end_running(std::move(failure));
  for (;;) self.yield();
}

void Block::end_running(std::exception_ptr failure) {
  const Unwatched unwatched;
  if (failure) failure_ = std::move(failure);
  running_->ended = true;
  present_[running_->linear / kLanes] &= ~(1u << (running_->linear % kLanes));
  --alive_;
  ++progress_;
}

// Gives way until `generation` is no longer `seen`, or all are to look again.
void Block::wait_past(const std::uint64_t& generation, std::uint64_t seen) {
  Fiber& fiber = *running_;
  fiber.generation = &generation;
  fiber.seen = seen;
  yield();
  fiber.generation = nullptr;
}

int Block::barrier(int value) {
  char& meeting = next_barrier();
  before(&meeting);
  const int sum = meet_all(value);
  after(&meeting);
  return sum;
}

// Two meetings take turns: a thread that has gone on to the next barrier must not count as one that arrives at this
// one.
char& Block::next_barrier() {
  const Unwatched unwatched;
  return barrier_meetings_[barrier_generation_ % 2];
}

int Block::meet_all(int value) {
  const Unwatched unwatched;
  const std::uint64_t generation = barrier_generation_;
  barrier_sum_ += value;
  ++barrier_arrived_;
  ++progress_;
  // Threads that end meanwhile are no longer waited for.
  while (barrier_generation_ == generation) {
    if (barrier_arrived_ == alive_) {
      barrier_result_ = barrier_sum_;
      barrier_sum_ = 0;
      barrier_arrived_ = 0;
      ++barrier_generation_;
      ++progress_;
      break;
    }
    wait_past(barrier_generation_, generation);
  }
  return barrier_result_;
}

Block::Meeting& Block::meeting(std::uint32_t mask) {
  std::vector<Meeting>& here = meetings_[running_->linear / kLanes];
  for (Meeting& one : here)
    if (one.mask == mask) return one;
  here.reserve(kLanes);  // references stay good
  if (here.size() == kLanes) throw Misuse("a warp meets under more than 32 different masks");
  here.emplace_back().mask = mask;
  return here.back();
}

void Block::check_lanes(std::uint32_t mask) const {
  if (((mask >> (running_->linear % kLanes)) & 1u) == 0)
    throw Misuse("a lane takes part in a warp's exchange whose mask does not name it");
  const std::uint32_t absent = mask & ~present_[running_->linear / kLanes];
  if (absent != 0)
    throw Misuse("the mask of a warp's exchange names lane " + std::to_string(std::countr_zero(absent)) +
                 ", which has ended or was never there");
}

const std::byte* Block::exchange(std::uint32_t mask, const void* value, std::size_t bytes) {
  const Unwatched unwatched;
  check_lanes(mask);
  Meeting& here = meeting(mask);
  const std::uint64_t generation = here.generation;
  void* const memory = &here.given[generation % 2];
  if (bytes == 0) before(memory);
  std::array<std::byte, kExchanged* kLanes>& given = here.given[generation % 2];
  std::memcpy(given.data() + running_->linear % kLanes * kExchanged, value, bytes);
  here.arrived |= 1u << (running_->linear % kLanes);
  ++progress_;
  if (here.arrived == mask) {
    here.arrived = 0;
    ++here.generation;
  } else {
    while (here.generation == generation) {
      check_lanes(mask);
      wait_past(here.generation, generation);
    }
  }
  if (bytes == 0) after(memory);
  return given.data();
}

void Block::stuck() {
  throw Misuse("threads of block " + std::to_string(block.x) + ", " + std::to_string(block.y) + ", " +
               std::to_string(block.z) + " wait for each other in different places: " +
               std::to_string(barrier_arrived_) + " of " + std::to_string(alive_) + " are at a barrier");
}

}  // namespace trainer::emulated
