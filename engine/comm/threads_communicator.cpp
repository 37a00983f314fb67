// Ranks as threads: every member publishes where its data lies, and each reads the others' memory directly. An
// all-reduce is a reduce-scatter (member i sums slice i of everyone, in rank order) whose result member i writes to
// everyone: 2 (n − 1) / n of the data crosses each member's edge, as in a ring, with two barriers and no copy aside.
// Messages lie in a mailbox for each pair of ranks. Every group and mailbox has a counter of its own to wait on, so
// that an event wakes only the threads that it concerns.
//
// An abort ends every wait, and the ranks that it releases free their memory. So whoever has met in a collective also
// ends it, and a rank leaves an exchange only when nobody copies from it any more.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/comm/host_communicator.h"
#include "engine/comm/sums.h"
#include "engine/core/check.h"
#include "engine/core/parallel.h"

namespace trainer {
namespace {

// A count of events, for threads that wait for the next one. A thread reads the count before it looks whether it has to
// wait at all; an event in between ends the wait. The lowest bit says that no wait may block any more, so the count
// goes in steps of two; it may wrap.
class Events {
 public:
  std::uint32_t count() const { return count_.load(std::memory_order_acquire); }
  void add() {
    count_.fetch_add(2, std::memory_order_acq_rel);
    count_.notify_all();
  }
  void end() {
    count_.fetch_or(kEnded, std::memory_order_acq_rel);
    count_.notify_all();
  }
  // Whether a count has gone on from an earlier one.
  static bool is_past(std::uint32_t count, std::uint32_t seen) { return (count | kEnded) != (seen | kEnded); }
  // Returns once the count differs from `seen`, at once after end(). Spins for at least `spins_for` before it sleeps.
  void wait_past(std::uint32_t seen, std::chrono::microseconds spins_for = {}) const {
    if ((seen & kEnded) != 0) return;
    const auto begin = std::chrono::steady_clock::now();
    do {
      for (int spin = 0; spin < 2000; ++spin)
        if (count() != seen) return;
    } while (std::chrono::steady_clock::now() - begin < spins_for);
    count_.wait(seen, std::memory_order_acquire);
  }

 private:
  static constexpr std::uint32_t kEnded = 1;
  std::atomic<std::uint32_t> count_{0};
};

// What one thread puts and another takes, in order.
template <typename T>
struct Mailbox {
  void put(T one) {
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(one));
    }
    arrived.add();
  }
  std::optional<T> try_take() {
    const std::lock_guard lock(mutex);
    if (queue.empty()) return std::nullopt;
    T one = std::move(queue.front());
    queue.pop_front();
    return one;
  }
  // How many there were.
  int clear() {
    const std::lock_guard lock(mutex);
    const int number = static_cast<int>(queue.size());
    queue.clear();
    return number;
  }

  std::mutex mutex;
  std::list<T> queue;  // which takes no memory while it is empty: there is a mailbox for each two ranks
  Events arrived;
};

// How much of what a rank sends waits for others to copy it. It outlives the rank's calls, which an abort may end.
struct Outbox {
  std::atomic<int> parcels = 0;
  Events taken;
};

struct Parcel {
  const void* data = nullptr;
  std::int64_t bytes = 0;
  Outbox* from = nullptr;
};

// A group's members, and where their data lies.
struct Members {
  explicit Members(std::size_t size) : inputs(size), outputs(size) {}
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::mutex mutex;         // guards `arrived` and the decision to give up
  std::size_t arrived = 0;  // at the barrier
  Events rounds;            // barriers that all have reached
};

// Released for good once someone aborts.
class World {
 public:
  explicit World(int size) : size_(size), ranks_(ranks()), parcels_(ranks() * ranks()), told_(ranks() * ranks()) {}

  int size() const { return size_; }

  void abort(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (aborted_.load(std::memory_order_relaxed)) return;
    reason_ = why;
    aborted_.store(true, std::memory_order_release);
    for (const auto& [ranks, members] : groups_) members->rounds.end();
    for (Mailbox<Parcel>& box : parcels_) box.arrived.end();
    for (Mailbox<control::Message>& box : told_) box.arrived.end();
    for (OfRank& rank : ranks_) {
      rank.given.arrived.end();
      rank.giving.taken.end();
      rank.sending.taken.end();
    }
  }

  std::shared_ptr<Members> group(const std::vector<int>& ranks) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Members>& members = groups_[ranks];
    if (!members) members = std::make_shared<Members>(ranks.size());
    if (aborted_.load(std::memory_order_relaxed)) members->rounds.end();
    return members;
  }

  // Returns when every member is here. Where someone has aborted first nobody goes on from here, and all throw.
  void meet(Members& members, bool awake) const {
    const std::uint32_t round = arrive(members, true);
    members.rounds.wait_past(round, spins_for(awake));
    if (!Events::is_past(members.rounds.count(), round)) give_up(members, round);
  }

  // Returns when every member that has met is here; none of them blocks in between. Then throws where someone has
  // aborted.
  void part(Members& members, bool awake) const {
    const std::uint32_t round = arrive(members, false);
    members.rounds.wait_past(round, spins_for(awake));
    while (!Events::is_past(members.rounds.count(), round)) std::this_thread::yield();  // an abort ended the wait
    go_on();
  }

  void tell(int from, int to, control::Message message) { told_[pair(from, to)].put(std::move(message)); }
  control::Message hear(int from, int to) { return next(told_[pair(from, to)]); }

  // Memory on its way: in programs, from a rank to another.
  void send(int from, int to, const void* data, std::int64_t bytes) {
    put(parcels_[pair(from, to)], of(from).sending, data, bytes);
  }
  void receive(int from, int to, void* data, std::int64_t bytes) { copy(parcels_[pair(from, to)], data, bytes); }
  void wait_until_sent(int from) { wait_until_empty(of(from).sending); }
  // After an abort: nobody takes what this rank has sent, and nobody copies it any more.
  void take_back(int from) {
    for (int to = 0; to < size_; ++to) of(from).sending.parcels -= parcels_[pair(from, to)].clear();
    wait_for_copies(of(from).sending);
  }

  // And outside of them, to rank 0.
  void give(int from, const void* data, std::int64_t bytes) {
    put(of(from).given, of(from).giving, data, bytes);
    try {
      wait_until_empty(of(from).giving);
    } catch (...) {
      of(from).giving.parcels -= of(from).given.clear();
      wait_for_copies(of(from).giving);
      throw;
    }
  }
  void fetch(int from, void* data, std::int64_t bytes) { copy(of(from).given, data, bytes); }

 private:
  struct OfRank {
    Outbox sending, giving;
    Mailbox<Parcel> given;
  };

  std::size_t ranks() const { return static_cast<std::size_t>(size_); }
  std::size_t pair(int from, int to) const {
    return static_cast<std::size_t>(from) * ranks() + static_cast<std::size_t>(to);
  }
  OfRank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  // The members of a group arrive 10 to 100 us apart. Waking a thread that sleeps takes as long, and more on virtual
  // machines. With more ranks than cores, a rank that spins would keep another one from running.
  std::chrono::microseconds spins_for(bool awake) const {
    return std::chrono::microseconds(awake && ranks() <= num_processors() ? 200 : 0);
  }

  // The count of the rounds before this one.
  std::uint32_t arrive(Members& members, bool may_throw) const {
    const std::lock_guard lock(members.mutex);
    if (may_throw) go_on();
    const std::uint32_t round = members.rounds.count();
    if (++members.arrived == members.inputs.size()) {
      members.arrived = 0;
      members.rounds.add();
    }
    return round;
  }

  // After an abort: takes the arrival back, unless all are here meanwhile.
  void give_up(Members& members, std::uint32_t round) const {
    const std::lock_guard lock(members.mutex);
    if (Events::is_past(members.rounds.count(), round)) return;
    --members.arrived;
    go_on();
  }

  // Throws where someone has aborted.
  void go_on() const {
    if (!aborted_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    throw AbortedError(reason_);
  }

  template <typename T>
  T next(Mailbox<T>& box) const {
    for (;;) {
      const std::uint32_t seen = box.arrived.count();
      go_on();
      if (std::optional<T> one = box.try_take()) return std::move(*one);
      box.arrived.wait_past(seen);
    }
  }

  void put(Mailbox<Parcel>& box, Outbox& from, const void* data, std::int64_t bytes) {
    from.parcels.fetch_add(1, std::memory_order_relaxed);
    box.put({data, bytes, &from});
  }

  void copy(Mailbox<Parcel>& box, void* data, std::int64_t bytes) {
    const Parcel parcel = next(box);
    const bool fits = parcel.bytes == bytes;
    if (fits) std::memcpy(data, parcel.data, static_cast<std::size_t>(bytes));
    if (parcel.from->parcels.fetch_sub(1, std::memory_order_acq_rel) == 1) parcel.from->taken.add();
    CHECK(fits, "a receive has the size of its send");
  }

  static void wait_for_copies(const Outbox& box) {
    while (box.parcels.load(std::memory_order_acquire) != 0) std::this_thread::yield();
  }

  void wait_until_empty(const Outbox& box) const {
    for (;;) {
      const std::uint32_t seen = box.taken.count();
      if (box.parcels.load(std::memory_order_acquire) == 0) return;
      go_on();
      box.taken.wait_past(seen);
    }
  }

  const int size_;
  std::vector<OfRank> ranks_;
  std::vector<Mailbox<Parcel>> parcels_;         // by pair()
  std::vector<Mailbox<control::Message>> told_;  // by pair(), on the control channel
  std::atomic<bool> aborted_ = false;
  mutable std::mutex mutex_;  // guards what follows
  std::string reason_;
  std::map<std::vector<int>, std::shared_ptr<Members>> groups_;
};

class ThreadChannel final : public ControlChannel {
 public:
  ThreadChannel(std::shared_ptr<World> world, int rank)
      : ControlChannel(rank, world->size()), world_(std::move(world)) {}

 protected:
  void send(int peer, control::Message message) override { world_->tell(rank(), peer, std::move(message)); }
  control::Message receive(int peer, const char*) override { return world_->hear(peer, rank()); }

  void send_part(const void* data, std::int64_t bytes) override { world_->give(rank(), data, bytes); }
  void receive_part(const Part& part) override { world_->fetch(part.peer, part.data, part.bytes); }

 private:
  std::shared_ptr<World> world_;
};

class ThreadCommunicator final : public HostCommunicator {
 public:
  ThreadCommunicator(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_->size(); }
  ControlChannel& control() override { return channel_; }

  std::unique_ptr<Group> group(const std::vector<int>& members) override {
    const auto mine = std::find(members.begin(), members.end(), rank_);
    CHECK(mine != members.end(), "a rank belongs to the groups it asks for");
    return std::make_unique<ThreadGroup>(world_->group(members), static_cast<std::size_t>(mine - members.begin()),
                                         members.size());
  }

  void all_reduce(Group& group, DType dtype, void* data, std::int64_t elements) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, data, data);
    const auto [first, last] =
        slice_of(elements, static_cast<std::int64_t>(own.index), static_cast<std::int64_t>(own.size));
    sum_in_rank_order(dtype, own.members->inputs, first, last, own.members->outputs, first);
    part(own);
    count_sent(2 * elements * size_of(dtype), own.size);
  }

  void reduce_scatter(Group& group, DType dtype, const void* input, void* output, std::int64_t elements) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, input, output);
    const auto [first, last] =
        slice_of(elements, static_cast<std::int64_t>(own.index), static_cast<std::int64_t>(own.size));
    sum_in_rank_order(dtype, own.members->inputs, first, last, {&output, 1}, 0);
    part(own);
    count_sent(elements * size_of(dtype), own.size);
  }

  void all_gather(Group& group, const void* input, void* output, std::int64_t bytes) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, input, output);
    for (std::size_t member = 0; member < own.size; ++member) {
      std::byte* target = static_cast<std::byte*>(output) + static_cast<std::int64_t>(member) * bytes;
      if (target != own.members->inputs[member])
        std::memcpy(target, own.members->inputs[member], static_cast<std::size_t>(bytes));
    }
    part(own);
    count_sent(bytes * static_cast<std::int64_t>(own.size), own.size);
  }

  void all_to_all(Group& group, const void* input, void* output, std::int64_t bytes) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, input, output);
    for (std::size_t member = 0; member < own.size; ++member)
      std::memcpy(
          static_cast<std::byte*>(output) + static_cast<std::int64_t>(member) * bytes,
          static_cast<const std::byte*>(own.members->inputs[member]) + static_cast<std::int64_t>(own.index) * bytes,
          static_cast<std::size_t>(bytes));
    part(own);
    count_sent(bytes * static_cast<std::int64_t>(own.size), own.size);
  }

  void shift(Group& group, const void* input, void* output, std::int64_t bytes) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, input, output);
    std::memcpy(output, own.members->inputs[(own.index + own.size - 1) % own.size], static_cast<std::size_t>(bytes));
    part(own);
    bytes_sent_ += bytes;
  }

  void broadcast(Group& group, void* data, std::int64_t bytes) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, data, data);
    if (own.index != 0) std::memcpy(data, own.members->inputs[0], static_cast<std::size_t>(bytes));
    part(own);
    if (own.index + 1 < own.size) bytes_sent_ += bytes;  // a pipelined ring: all but the last pass it on
  }

  void exchange(std::span<const Part> sends, std::span<const Part> receives) override {
    for (const Part& part : sends) {
      world_->send(rank_, part.peer, part.data, part.bytes);
      bytes_sent_ += part.bytes;
    }
    try {
      for (const Part& part : receives) world_->receive(part.peer, rank_, part.data, part.bytes);
      world_->wait_until_sent(rank_);
    } catch (...) {
      world_->take_back(rank_);
      throw;
    }
  }

  void abort(const std::string& reason) override { world_->abort(reason); }

 private:
  struct ThreadGroup final : Group {
    ThreadGroup(std::shared_ptr<Members> all, std::size_t i, std::size_t n)
        : members(std::move(all)), index(i), size(n) {}
    bool is_awake() const { return awake_; }
    std::shared_ptr<Members> members;
    std::size_t index, size;
  };

  void meet(ThreadGroup& group, const void* input, void* output) {
    group.members->inputs[group.index] = input;
    group.members->outputs[group.index] = output;
    world_->meet(*group.members, group.is_awake());
  }
  void part(const ThreadGroup& group) { world_->part(*group.members, group.is_awake()); }

  void count_sent(std::int64_t bytes, std::size_t size) {
    const auto n = static_cast<std::int64_t>(size);
    bytes_sent_ += bytes * (n - 1) / n;
  }

  std::shared_ptr<World> world_;
  int rank_;
  ThreadChannel channel_{world_, rank_};
};

}  // namespace

std::vector<std::unique_ptr<HostCommunicator>> thread_communicators(int world_size) {
  const auto world = std::make_shared<World>(world_size);
  std::vector<std::unique_ptr<HostCommunicator>> communicators;
  for (int rank = 0; rank < world_size; ++rank)
    communicators.push_back(std::make_unique<ThreadCommunicator>(world, rank));
  return communicators;
}

}  // namespace trainer
