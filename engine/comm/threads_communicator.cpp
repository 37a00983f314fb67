// Ranks as threads: every member publishes where its data lies, and each reads the others' memory directly. An
// all-reduce is a reduce-scatter (member i sums slice i of everyone, in rank order) whose result member i writes to
// everyone: 2 (n − 1) / n of the data crosses each member's edge, as in a ring, with two barriers and no copy aside.
// Messages of the control channel lie in a queue for each pair of ranks.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "engine/comm/host_communicator.h"
#include "engine/comm/sums.h"
#include "engine/core/check.h"

namespace trainer {
namespace {

// Released for good once someone aborts.
struct World {
  explicit World(int size) : world_size(size) {}

  void abort(const std::string& why) {
    const std::lock_guard lock(mutex);
    if (!aborted) reason = why;
    aborted = true;
    changed.notify_all();
  }

  // Waits under `lock` until `done`, or throws.
  template <typename Done>
  void wait(std::unique_lock<std::mutex>& lock, Done&& done) {
    changed.wait(lock, [&] { return aborted || done(); });
    if (aborted) throw AbortedError(reason);
  }

  struct Shared {  // of one group
    explicit Shared(std::size_t size) : inputs(size), outputs(size) {}
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    std::size_t arrived = 0;
    std::uint64_t round = 0;
  };

  void arrive(Shared& shared) {
    std::unique_lock lock(mutex);
    if (aborted) throw AbortedError(reason);
    const std::uint64_t round = shared.round;
    if (++shared.arrived == shared.inputs.size()) {
      shared.arrived = 0;
      ++shared.round;
      changed.notify_all();
      return;
    }
    wait(lock, [&] { return shared.round != round; });
  }

  struct Message {
    const void* data;
    std::int64_t bytes;
    bool* taken;
  };
  using Messages = std::deque<Message>;

  // Under `lock`, which it gives back while it copies.
  void take(std::unique_lock<std::mutex>& lock, Messages& queue, void* data, std::int64_t bytes) {
    wait(lock, [&] { return !queue.empty(); });
    const Message message = queue.front();
    queue.pop_front();
    CHECK(message.bytes == bytes, "a receive has the size of its send");
    lock.unlock();
    std::memcpy(data, message.data, static_cast<std::size_t>(bytes));
    lock.lock();
    *message.taken = true;
    changed.notify_all();
  }

  const int world_size;
  std::mutex mutex;
  std::condition_variable changed;
  bool aborted = false;
  std::string reason;
  std::map<std::vector<int>, std::shared_ptr<Shared>> groups;
  std::map<std::pair<int, int>, Messages> messages;  // from, to
  // On the control channel.
  std::map<std::pair<int, int>, std::deque<control::Message>> told;  // from, to
  std::map<int, Messages> given;                                     // from, to rank 0
};

class ThreadChannel final : public ControlChannel {
 public:
  ThreadChannel(std::shared_ptr<World> world, int rank)
      : ControlChannel(rank, world->world_size), world_(std::move(world)) {}

 protected:
  void send(int peer, control::Message message) override {
    const std::lock_guard lock(world_->mutex);
    world_->told[{rank(), peer}].push_back(std::move(message));
    world_->changed.notify_all();
  }

  control::Message receive(int peer, const char*) override {
    std::unique_lock lock(world_->mutex);
    std::deque<control::Message>& told = world_->told[{peer, rank()}];
    world_->wait(lock, [&] { return !told.empty(); });
    control::Message message = std::move(told.front());
    told.pop_front();
    return message;
  }

  void send_part(const void* data, std::int64_t bytes) override {
    bool taken = false;
    std::unique_lock lock(world_->mutex);
    world_->given[rank()].push_back({data, bytes, &taken});
    world_->changed.notify_all();
    world_->wait(lock, [&] { return taken; });
  }

  void receive_part(const Part& part) override {
    std::unique_lock lock(world_->mutex);
    world_->take(lock, world_->given[part.peer], part.data, part.bytes);
  }

 private:
  std::shared_ptr<World> world_;
};

class ThreadCommunicator final : public HostCommunicator {
 public:
  ThreadCommunicator(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_->world_size; }
  ControlChannel& control() override { return channel_; }

  std::unique_ptr<Group> group(const std::vector<int>& members) override {
    const auto mine = std::find(members.begin(), members.end(), rank_);
    CHECK(mine != members.end(), "a rank belongs to the groups it asks for");
    const std::lock_guard lock(world_->mutex);
    auto& shared = world_->groups[members];
    if (!shared) shared = std::make_shared<World::Shared>(members.size());
    return std::make_unique<ThreadGroup>(shared, static_cast<std::size_t>(mine - members.begin()), members.size());
  }

  void all_reduce(Group& group, DType dtype, void* data, std::int64_t elements) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, data, data);
    const auto [first, last] =
        slice_of(elements, static_cast<std::int64_t>(own.index), static_cast<std::int64_t>(own.size));
    sum_in_rank_order(dtype, own.shared->inputs, first, last, own.shared->outputs, first);
    world_->arrive(*own.shared);
    count_sent(2 * elements * size_of(dtype), own.size);
  }

  void reduce_scatter(Group& group, DType dtype, const void* input, void* output, std::int64_t elements) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, input, output);
    const auto [first, last] =
        slice_of(elements, static_cast<std::int64_t>(own.index), static_cast<std::int64_t>(own.size));
    sum_in_rank_order(dtype, own.shared->inputs, first, last, {&output, 1}, 0);
    world_->arrive(*own.shared);
    count_sent(elements * size_of(dtype), own.size);
  }

  void all_gather(Group& group, const void* input, void* output, std::int64_t bytes) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, input, output);
    for (std::size_t member = 0; member < own.size; ++member) {
      std::byte* target = static_cast<std::byte*>(output) + static_cast<std::int64_t>(member) * bytes;
      if (target != own.shared->inputs[member])
        std::memcpy(target, own.shared->inputs[member], static_cast<std::size_t>(bytes));
    }
    world_->arrive(*own.shared);
    count_sent(bytes * static_cast<std::int64_t>(own.size), own.size);
  }

  void all_to_all(Group& group, const void* input, void* output, std::int64_t bytes) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, input, output);
    for (std::size_t member = 0; member < own.size; ++member)
      std::memcpy(
          static_cast<std::byte*>(output) + static_cast<std::int64_t>(member) * bytes,
          static_cast<const std::byte*>(own.shared->inputs[member]) + static_cast<std::int64_t>(own.index) * bytes,
          static_cast<std::size_t>(bytes));
    world_->arrive(*own.shared);
    count_sent(bytes * static_cast<std::int64_t>(own.size), own.size);
  }

  void shift(Group& group, const void* input, void* output, std::int64_t bytes) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, input, output);
    std::memcpy(output, own.shared->inputs[(own.index + own.size - 1) % own.size], static_cast<std::size_t>(bytes));
    world_->arrive(*own.shared);
    bytes_sent_ += bytes;
  }

  void broadcast(Group& group, void* data, std::int64_t bytes) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, data, data);
    if (own.index != 0) std::memcpy(data, own.shared->inputs[0], static_cast<std::size_t>(bytes));
    world_->arrive(*own.shared);
    if (own.index + 1 < own.size) bytes_sent_ += bytes;  // a pipelined ring: all but the last pass it on
  }

  void exchange(std::span<const Part> sends, std::span<const Part> receives) override {
    const std::unique_ptr<bool[]> taken(new bool[sends.size()]());
    std::unique_lock lock(world_->mutex);
    for (std::size_t i = 0; i < sends.size(); ++i) {
      world_->messages[{rank_, sends[i].peer}].push_back({sends[i].data, sends[i].bytes, &taken[i]});
      bytes_sent_ += sends[i].bytes;
    }
    world_->changed.notify_all();
    for (const Part& part : receives) world_->take(lock, world_->messages[{part.peer, rank_}], part.data, part.bytes);
    world_->wait(lock,
                 [&] { return std::all_of(taken.get(), taken.get() + sends.size(), [](bool one) { return one; }); });
  }

  void abort(const std::string& reason) override { world_->abort(reason); }

 private:
  struct ThreadGroup final : Group {
    ThreadGroup(std::shared_ptr<World::Shared> state, std::size_t i, std::size_t n)
        : shared(std::move(state)), index(i), size(n) {}
    std::shared_ptr<World::Shared> shared;
    std::size_t index, size;
  };

  void meet(ThreadGroup& group, const void* input, void* output) {
    group.shared->inputs[group.index] = input;
    group.shared->outputs[group.index] = output;
    world_->arrive(*group.shared);
  }

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
