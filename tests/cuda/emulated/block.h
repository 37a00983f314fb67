// Block: the threads of a CUDA block as fibers of one host thread. They run one at a time, in an order that the test
// chooses, each until it waits for others: at a barrier, in a shuffle. So a kernel that lacks a barrier gives different
// results in different orders, one that reads shared memory nobody wrote reads NaN, and threads that wait for different
// things are an error instead of a hang. Under the thread sanitizer each fiber is a thread of its own, which barriers
// and __syncwarp alone order with others: one order of threads suffices for a report of a missing barrier.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace trainer::emulated {

/// What a real GPU would have answered with an error, a hang or garbage.
struct Misuse : std::logic_error {
  using std::logic_error::logic_error;
};

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

inline constexpr unsigned kLanes = 32;
inline constexpr std::size_t kExchanged = 64;  // bytes that a lane can give to its warp at once

class Block {
 public:
  /// The block that the calling fiber belongs to. Throws Misuse outside of a kernel.
  static Block& current() {
    if (running_here == nullptr) refuse_host();
    return *running_here;
  }

  Index thread, block;    ///< of the fiber that runs
  Index threads, blocks;  ///< blockDim, gridDim
  std::byte* shared() { return shared_; }
  /// Of the kernel that the calling fiber runs, where it has shared memory of a fixed size: beside more than 48 KiB
  /// whose size the launch gives, the two would have to be added up, and no kernel here does that.
  static bool fixed_shared();

  /// Runs `body` in every thread of a block. `order`: a seed; 0 is ascending, 1 descending, others shuffle anew at
  /// every turn.
  void run(Index at, Index threads, Index blocks, std::size_t shared_bytes, std::uint64_t order,
           const std::function<void()>& body);

  /// __syncthreads, with the sum of `value` over all threads that have not ended.
  int barrier(int value);

  /// Every lane of `mask` gives `bytes` bytes and gets everyone's: lane i's begin at i · kExchanged. Valid until its
  /// next exchange. With 0 bytes it is __syncwarp, which orders accesses to memory; a shuffle orders none.
  const std::byte* exchange(std::uint32_t mask, const void* value, std::size_t bytes);
  unsigned lane() const;

  /// Copies of the thread that calls, made when it waits for them, so that who reads before finds what was there.
  /// Without `from` they are zeros. Those that were started are committed as a group, and all groups but the newest
  /// `pending` are waited for.
  void copy_later(void* to, const void* from, std::size_t bytes);
  void commit_copies();
  void wait_for_copies(std::size_t pending);

  Block();
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

 private:
  inline static constinit thread_local Block* running_here = nullptr;
  [[noreturn]] static void refuse_host();

  struct Fiber;
  struct Meeting {
    std::uint32_t mask = 0, arrived = 0;
    std::uint64_t generation = 0;
    std::array<std::array<std::byte, kExchanged * kLanes>, 2> given;
  };

  void make_fibers(std::size_t count);
  void turn(std::uint64_t order, std::uint64_t number);
  void resume(Fiber& fiber);
  Fiber* next();
  Fiber& running();
  void yield();
  void wait_past(const std::uint64_t& generation, std::uint64_t seen);
  Meeting& meeting(std::uint32_t mask);
  void check_lanes(std::uint32_t mask) const;
  static void enter(void* block);
  void end_running(std::exception_ptr failure);
  char& next_barrier();
  int meet_all(int value);
  [[noreturn]] void stuck();

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> order_;  // of the turn
  std::size_t at_ = 0;         // whose turn it is
  bool wakes_all_ = false;     // of the turn: those that wait as well
  const std::function<void()>* body_ = nullptr;
  Fiber* running_ = nullptr;
  void* scheduler_ = nullptr;  // saved stack pointer
  std::size_t count_ = 0, alive_ = 0;
  std::uint64_t progress_ = 0;
  std::exception_ptr failure_;
  std::unique_ptr<std::byte[]> shared_memory_;
  std::byte* shared_ = nullptr;
  std::size_t shared_bytes_ = 0;

  int barrier_sum_ = 0, barrier_result_ = 0;
  std::size_t barrier_arrived_ = 0;
  std::uint64_t barrier_generation_ = 0;
  std::vector<std::vector<Meeting>> meetings_;  // by warp
  std::vector<std::uint32_t> present_;          // by warp: its lanes that have not ended
  void* sanitizer_stack_ = nullptr;             // of the scheduler
  const void* scheduler_bottom_ = nullptr;
  std::size_t scheduler_size_ = 0;
  void* scheduler_fiber_ = nullptr;
  // What the thread sanitizer knows meetings by: of the host with the threads, and of the threads at a barrier.
  char begin_ = 0, end_ = 0, barrier_meetings_[2]{};
};

}  // namespace trainer::emulated
