// Ranks as threads: every member publishes where its data lies, and each reads the others' memory directly. An all-reduce
// is a reduce-scatter (member i sums slice i of everyone, in rank order) whose result member i writes to everyone: 2 (n − 1) / n
// of the data crosses each member's edge, as in a ring, with two barriers and no copy aside.
#include <algorithm>
#include <array>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "engine/core/check.h"
#include "engine/run/communicator.h"

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

  const int world_size;
  std::mutex mutex;
  std::condition_variable changed;
  bool aborted = false;
  std::string reason;
  std::map<std::vector<int>, std::shared_ptr<Shared>> groups;
  std::map<std::pair<int, int>, std::deque<Message>> messages;  // from, to
};

float to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // a NaN stays one
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// Elements summed at a time: the partial sums stay in the first cache.
constexpr std::int64_t kChunk = 2048;

template <typename T>
void sum_chunk(std::span<const void* const> inputs, std::int64_t first, std::int64_t count, T* sum) {
  std::memcpy(sum, static_cast<const T*>(inputs[0]) + first, static_cast<std::size_t>(count) * sizeof(T));
  for (std::size_t member = 1; member < inputs.size(); ++member) {
    const T* other = static_cast<const T*>(inputs[member]) + first;
    for (std::int64_t i = 0; i < count; ++i) sum[i] += other[i];
  }
}

template <>
void sum_chunk<std::uint16_t>(std::span<const void* const> inputs, std::int64_t first, std::int64_t count, std::uint16_t* sum) {
  std::array<float, kChunk> wide{};
  for (const void* input : inputs) {
    const std::uint16_t* other = static_cast<const std::uint16_t*>(input) + first;
    for (std::int64_t i = 0; i < count; ++i) wide[static_cast<std::size_t>(i)] += to_float(other[i]);
  }
  for (std::int64_t i = 0; i < count; ++i) sum[i] = to_bf16(wide[static_cast<std::size_t>(i)]);
}

// Sums elements [first, last) of the inputs and hands each chunk to store(sum, first element, count).
template <typename T, typename Store>
void sum_range(std::span<const void* const> inputs, std::int64_t first, std::int64_t last, Store&& store) {
  std::array<T, kChunk> sum;
  for (; first < last; first += kChunk) {
    const std::int64_t count = std::min(kChunk, last - first);
    sum_chunk<T>(inputs, first, count, sum.data());
    store(sum.data(), first, count);
  }
}

template <typename Visit>
void with_type(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::f32: return visit(float{});
    case DType::f64: return visit(double{});
    case DType::bf16: return visit(std::uint16_t{});
    default: CHECK(false, "no sum over ranks in " + std::string(name_of(dtype)));
  }
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {
    std::vector<int> everyone;
    for (int member = 0; member < world_->world_size; ++member) everyone.push_back(member);
    everyone_ = group(everyone);
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_->world_size; }

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
    with_type(dtype, [&](auto type) {
      using T = decltype(type);
      const auto [first, last] = slice(own, elements);
      sum_range<T>(own.shared->inputs, first, last, [&](const T* sum, std::int64_t at, std::int64_t count) {
        for (void* output : own.shared->outputs) std::memcpy(static_cast<T*>(output) + at, sum, static_cast<std::size_t>(count) * sizeof(T));
      });
    });
    world_->arrive(*own.shared);
    count_sent(2 * elements * size_of(dtype), own.size);
  }

  void reduce_scatter(Group& group, DType dtype, const void* input, void* output, std::int64_t elements) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, input, output);
    with_type(dtype, [&](auto type) {
      using T = decltype(type);
      const auto [first, last] = slice(own, elements);
      sum_range<T>(own.shared->inputs, first, last, [&, begin = first](const T* sum, std::int64_t at, std::int64_t count) {
        std::memcpy(static_cast<T*>(output) + (at - begin), sum, static_cast<std::size_t>(count) * sizeof(T));
      });
    });
    world_->arrive(*own.shared);
    count_sent(elements * size_of(dtype), own.size);
  }

  void all_gather(Group& group, const void* input, void* output, std::int64_t bytes) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, input, output);
    for (std::size_t member = 0; member < own.size; ++member) {
      std::byte* target = static_cast<std::byte*>(output) + static_cast<std::int64_t>(member) * bytes;
      if (target != own.shared->inputs[member]) std::memcpy(target, own.shared->inputs[member], static_cast<std::size_t>(bytes));
    }
    world_->arrive(*own.shared);
    count_sent(bytes * static_cast<std::int64_t>(own.size), own.size);
  }

  void all_to_all(Group& group, const void* input, void* output, std::int64_t bytes) override {
    auto& own = static_cast<ThreadGroup&>(group);
    meet(own, input, output);
    for (std::size_t member = 0; member < own.size; ++member)
      std::memcpy(static_cast<std::byte*>(output) + static_cast<std::int64_t>(member) * bytes,
                  static_cast<const std::byte*>(own.shared->inputs[member]) + static_cast<std::int64_t>(own.index) * bytes, static_cast<std::size_t>(bytes));
    world_->arrive(*own.shared);
    count_sent(bytes * static_cast<std::int64_t>(own.size), own.size);
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
    for (const Part& part : receives) {
      auto& queue = world_->messages[{part.peer, rank_}];
      world_->wait(lock, [&] { return !queue.empty(); });
      const World::Message message = queue.front();
      queue.pop_front();
      CHECK(message.bytes == part.bytes, "a receive has the size of its send");
      lock.unlock();
      std::memcpy(part.data, message.data, static_cast<std::size_t>(part.bytes));
      lock.lock();
      *message.taken = true;
      world_->changed.notify_all();
    }
    world_->wait(lock, [&] { return std::all_of(taken.get(), taken.get() + sends.size(), [](bool one) { return one; }); });
  }

  void barrier() override { world_->arrive(*static_cast<ThreadGroup&>(*everyone_).shared); }
  void abort(const std::string& reason) override { world_->abort(reason); }

 private:
  struct ThreadGroup final : Group {
    ThreadGroup(std::shared_ptr<World::Shared> state, std::size_t i, std::size_t n) : shared(std::move(state)), index(i), size(n) {}
    std::shared_ptr<World::Shared> shared;
    std::size_t index, size;
  };

  void meet(ThreadGroup& group, const void* input, void* output) {
    group.shared->inputs[group.index] = input;
    group.shared->outputs[group.index] = output;
    world_->arrive(*group.shared);
  }

  // Equal slices where they divide (reduce_scatter always does); else the last is shorter.
  static std::pair<std::int64_t, std::int64_t> slice(const ThreadGroup& group, std::int64_t elements) {
    const auto n = static_cast<std::int64_t>(group.size), i = static_cast<std::int64_t>(group.index);
    if (elements % n == 0) return {elements / n * i, elements / n * (i + 1)};
    const std::int64_t step = (elements + n - 1) / n;
    return {std::min(elements, step * i), std::min(elements, step * (i + 1))};
  }

  void count_sent(std::int64_t bytes, std::size_t size) {
    const auto n = static_cast<std::int64_t>(size);
    bytes_sent_ += bytes * (n - 1) / n;
  }

  std::shared_ptr<World> world_;
  int rank_;
  std::unique_ptr<Group> everyone_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> thread_communicators(int world_size) {
  const auto world = std::make_shared<World>(world_size);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < world_size; ++rank) communicators.push_back(std::make_unique<ThreadCommunicator>(world, rank));
  return communicators;
}

}  // namespace trainer
