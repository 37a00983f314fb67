// Ranks as processes that mpirun or srun started. A collective is sends and receives between each two of its members,
// over one MPI communicator: pairs match in order, since every rank issues what it shares with another in the same
// order. A sum is made by the member that owns the slice, from everyone's slices in rank order; so its bits are those
// of ranks as threads, whatever MPI's own reductions would do. Each element crosses each member's edge as often as in a
// ring, in one hop.
//
// Every wait polls, so that the loss of a rank (process_channel.h) ends it. Messages are cut into pieces that a count
// of 32 bits holds.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>

#include "engine/comm/host_communicator.h"
#include "engine/comm/patience.h"
#include "engine/comm/process_channel.h"
#include "engine/comm/sums.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/launch/rendezvous.h"

namespace trainer {
namespace {

constexpr std::int64_t kPiece = std::int64_t{1} << 28;    // bytes of one message at most
constexpr std::int64_t kScratch = std::int64_t{8} << 20;  // bytes in which slices of others arrive to be summed
constexpr std::int64_t kSmall = 4096;                     // bytes below which one round of messages is better than two
constexpr std::int64_t kSmallBroadcast = std::int64_t{1} << 16;
constexpr int kCollectiveTag = 1, kExchangeTag = 2;

std::string text_of(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(error, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check(int error, const char* call) {
  if (error != MPI_SUCCESS) throw IoError(std::string("MPI: ") + call + ": " + text_of(error));
}

// MPI from its beginning to its end. An end that not all ranks reach would hang: then the process just ends.
class Mpi {
 public:
  Mpi() {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED)
      throw IoError("MPI gives no MPI_THREAD_SERIALIZED: the communication of a rank needs a thread of its own");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
    check(MPI_Comm_size(world, &size), "MPI_Comm_size");
  }
  void finalize() { MPI_Finalize(); }

  // Rank 0's text, on every rank. The only call that nothing can end: it is before the ranks hear each other.
  std::string broadcast(std::string text) const {
    int bytes = static_cast<int>(text.size());
    check(MPI_Bcast(&bytes, 1, MPI_INT, 0, world), "MPI_Bcast");
    text.resize(static_cast<std::size_t>(bytes));
    check(MPI_Bcast(text.data(), bytes, MPI_BYTE, 0, world), "MPI_Bcast");
    return text;
  }

  MPI_Comm world = MPI_COMM_NULL;
  int rank = 0, size = 1;
};

// Messages in flight, and what each receive must bring.
class Messages {
 public:
  void send(MPI_Comm comm, int peer, int tag, const void* data, std::int64_t bytes) {
    for_pieces(bytes, [&](std::int64_t at, int count) {
      check(MPI_Isend(static_cast<const std::byte*>(data) + at, count, MPI_BYTE, peer, tag, comm, next(-1)),
            "MPI_Isend");
    });
  }
  void receive(MPI_Comm comm, int peer, int tag, void* data, std::int64_t bytes) {
    for_pieces(bytes, [&](std::int64_t at, int count) {
      check(MPI_Irecv(static_cast<std::byte*>(data) + at, count, MPI_BYTE, peer, tag, comm, next(count)), "MPI_Irecv");
    });
  }

  // True once all have completed; then there are none.
  bool test() {
    if (requests_.empty()) return true;
    statuses_.resize(requests_.size());
    int done = 0;
    const int error = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
    if (error == MPI_ERR_IN_STATUS)
      for (const MPI_Status& status : statuses_)
        check(status.MPI_ERROR == MPI_ERR_PENDING ? MPI_SUCCESS : status.MPI_ERROR, "a message");
    check(error, "MPI_Testall");
    if (done == 0) return false;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (expected_[i] < 0) continue;
      int count = 0;
      MPI_Get_count(&statuses_[i], MPI_BYTE, &count);
      CHECK(count == expected_[i], "a receive has the size of its send");
    }
    requests_.clear();
    expected_.clear();
    return true;
  }

 private:
  template <typename Each>
  static void for_pieces(std::int64_t bytes, Each&& each) {
    for (std::int64_t at = 0; at < bytes; at += kPiece) each(at, static_cast<int>(std::min(kPiece, bytes - at)));
  }

  MPI_Request* next(int expected) {
    requests_.push_back(MPI_REQUEST_NULL);
    expected_.push_back(expected);
    return &requests_.back();
  }

  std::vector<MPI_Request> requests_;
  std::vector<int> expected_;  // bytes; -1: no receive
  std::vector<MPI_Status> statuses_;
};

class MpiCommunicator final : public HostCommunicator {
 public:
  explicit MpiCommunicator(OnLoss on_loss)
      : exceptions_(std::uncaught_exceptions()),
        channel_(mpi_.rank, mpi_.size,
                 meet_by(mpi_.rank, mpi_.size, [this](const std::string& text) { return mpi_.broadcast(text); }),
                 std::move(on_loss), [this] { return doing(); }) {}

  ~MpiCommunicator() override {
    // A rank that leaves by an exception no longer meets the others.
    if (std::uncaught_exceptions() > exceptions_) abort("rank " + std::to_string(rank()) + " failed");
    if (!channel_.aborted()) mpi_.finalize();
    channel_.end();
  }

  int rank() const override { return mpi_.rank; }
  int world_size() const override { return mpi_.size; }
  ControlChannel& control() override { return channel_; }

  std::unique_ptr<Group> group(const std::vector<int>& members) override {
    const auto mine = std::find(members.begin(), members.end(), rank());
    CHECK(mine != members.end(), "a rank belongs to the groups it asks for");
    return std::make_unique<MpiGroup>(members, mine - members.begin());
  }

  void all_reduce(Group& group, DType dtype, void* data, std::int64_t elements) override {
    const auto& own = static_cast<MpiGroup&>(group);
    const std::int64_t size = size_of(dtype);
    count_sent(2 * elements * size, own.size());
    if (own.size() == 1) return;
    if (elements * size <= kSmall) return sum_everything(own, dtype, data, elements);
    sum_slices(own, dtype, data, at(data, slice_of(elements, own.index, own.size()).first * size), elements);
    gather_slices(own, data, slice_of(elements, 0, own.size()).second * size, elements * size);
    wait(messages_[0], "all_reduce");
  }

  void reduce_scatter(Group& group, DType dtype, const void* input, void* output, std::int64_t elements) override {
    const auto& own = static_cast<MpiGroup&>(group);
    count_sent(elements * size_of(dtype), own.size());
    sum_slices(own, dtype, input, output, elements);
  }

  void all_gather(Group& group, const void* input, void* output, std::int64_t bytes) override {
    const auto& own = static_cast<MpiGroup&>(group);
    count_sent(bytes * own.size(), own.size());
    void* const mine = at(output, own.index * bytes);
    if (mine != input) std::memcpy(mine, input, static_cast<std::size_t>(bytes));
    gather_slices(own, output, bytes, bytes * own.size());
    wait(messages_[0], "all_gather");
  }

  void all_to_all(Group& group, const void* input, void* output, std::int64_t bytes) override {
    const auto& own = static_cast<MpiGroup&>(group);
    count_sent(bytes * own.size(), own.size());
    for_others(own, [&](std::int64_t member, int peer) {
      messages_[0].receive(mpi_.world, peer, kCollectiveTag, at(output, member * bytes), bytes);
    });
    for_others(own, [&](std::int64_t member, int peer) {
      messages_[0].send(mpi_.world, peer, kCollectiveTag, at(input, member * bytes), bytes);
    });
    std::memcpy(at(output, own.index * bytes), at(input, own.index * bytes), static_cast<std::size_t>(bytes));
    wait(messages_[0], "all_to_all");
  }

  void shift(Group& group, const void* input, void* output, std::int64_t bytes) override {
    const auto& own = static_cast<MpiGroup&>(group);
    const auto member = [&](std::int64_t step) {
      return own.members[static_cast<std::size_t>((own.index + own.size() + step) % own.size())];
    };
    messages_[0].receive(mpi_.world, member(-1), kCollectiveTag, output, bytes);
    messages_[0].send(mpi_.world, member(1), kCollectiveTag, input, bytes);
    bytes_sent_ += bytes;
    wait(messages_[0], "shift");
  }

  // Large data is scattered by the first member and gathered by all, so that no edge carries it more than twice.
  void broadcast(Group& group, void* data, std::int64_t bytes) override {
    const auto& own = static_cast<MpiGroup&>(group);
    if (own.index + 1 < own.size()) bytes_sent_ += bytes;  // as a pipelined ring: all but the last pass it on
    const std::int64_t slice = bytes <= kSmallBroadcast ? bytes : (bytes + own.size() - 1) / own.size();
    const auto part = [&](std::int64_t member) {
      const std::int64_t begin = bytes <= kSmallBroadcast ? 0 : std::min(bytes, slice * member);
      return std::pair(begin, std::min(bytes, begin + slice) - begin);
    };
    if (own.index == 0)
      for_others(own, [&](std::int64_t member, int peer) {
        messages_[0].send(mpi_.world, peer, kCollectiveTag, at(data, part(member).first), part(member).second);
      });
    else
      messages_[0].receive(mpi_.world, own.members[0], kCollectiveTag, at(data, part(own.index).first),
                           part(own.index).second);
    wait(messages_[0], "broadcast");
    if (bytes <= kSmallBroadcast) return;
    gather_slices(own, data, slice, bytes);
    wait(messages_[0], "broadcast");
  }

  void exchange(std::span<const Part> sends, std::span<const Part> receives) override {
    for (const Part& part : receives) messages_[0].receive(mpi_.world, part.peer, kExchangeTag, part.data, part.bytes);
    for (const Part& part : sends) {
      messages_[0].send(mpi_.world, part.peer, kExchangeTag, part.data, part.bytes);
      bytes_sent_ += part.bytes;
    }
    wait(messages_[0], "exchange");
  }

  void abort(const std::string& reason) override { channel_.abort(reason); }

 private:
  struct MpiGroup final : Group {
    MpiGroup(std::vector<int> ranks, std::int64_t i) : members(std::move(ranks)), index(i) {}
    std::int64_t size() const { return static_cast<std::int64_t>(members.size()); }
    std::vector<int> members;
    std::int64_t index;
  };

  static void* at(void* data, std::int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }
  static const void* at(const void* data, std::int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; }

  // each(member, rank), beginning after this member, so that not all begin with the first.
  template <typename Each>
  static void for_others(const MpiGroup& group, Each&& each) {
    for (std::int64_t step = 1; step < group.size(); ++step) {
      const std::int64_t member = (group.index + step) % group.size();
      each(member, group.members[static_cast<std::size_t>(member)]);
    }
  }

  // ---- Parts of collectives ----

  // Small data goes to everyone whole, and everyone sums.
  void sum_everything(const MpiGroup& own, DType dtype, void* data, std::int64_t elements) {
    const std::int64_t bytes = elements * size_of(dtype);
    scratch_.resize(static_cast<std::size_t>(std::max<std::int64_t>(kScratch, bytes * own.size())));
    inputs_.assign(own.members.size(), data);
    for_others(own, [&](std::int64_t member, int peer) {
      void* const place = scratch_.data() + member * bytes;
      inputs_[static_cast<std::size_t>(member)] = place;
      messages_[0].receive(mpi_.world, peer, kCollectiveTag, place, bytes);
      messages_[0].send(mpi_.world, peer, kCollectiveTag, data, bytes);
    });
    wait(messages_[0], "all_reduce");
    sum_in_rank_order(dtype, inputs_, 0, elements, {&data, 1}, 0);
  }

  // `output` gets the sum of everyone's slice of this member's: chunk after chunk, the next one under way while one is
  // summed.
  void sum_slices(const MpiGroup& own, DType dtype, const void* input, void* output, std::int64_t elements) {
    const std::int64_t size = size_of(dtype), n = own.size();
    const std::int64_t chunk = std::max<std::int64_t>(1, kScratch / (2 * n * size)),
                       longest = slice_of(elements, 0, n).second;
    const std::int64_t first = slice_of(elements, own.index, n).first;
    scratch_.resize(static_cast<std::size_t>(std::max<std::int64_t>(kScratch, 2 * n * size)));
    const auto place = [&](std::int64_t round, std::int64_t member) {
      return scratch_.data() + (round % 2 * n + member) * chunk * size;
    };
    const auto part = [&](std::int64_t round, std::int64_t member) {  // of a member's slice: begin and count
      const auto [begin, end] = slice_of(elements, member, n);
      const std::int64_t from = std::min(end, begin + round * chunk);
      return std::pair(from, std::min(chunk, end - from));
    };
    const auto begin_round = [&](std::int64_t round) {
      Messages& messages = messages_[static_cast<std::size_t>(round % 2)];
      const std::int64_t mine = part(round, own.index).second;
      for_others(own, [&](std::int64_t member, int peer) {
        messages.receive(mpi_.world, peer, kCollectiveTag, place(round, member), mine * size);
      });
      for_others(own, [&](std::int64_t member, int peer) {
        const auto [from, count] = part(round, member);
        messages.send(mpi_.world, peer, kCollectiveTag, at(input, from * size), count * size);
      });
    };
    const std::int64_t rounds = (longest + chunk - 1) / chunk;
    for (std::int64_t round = 0; round <= rounds; ++round) {
      if (round < rounds) begin_round(round);
      if (round == 0) continue;
      wait(messages_[static_cast<std::size_t>((round - 1) % 2)], "a sum over ranks");
      const auto [from, count] = part(round - 1, own.index);
      inputs_.assign(own.members.size(), at(input, from * size));
      for_others(own, [&, past = round - 1](std::int64_t member, int) {
        inputs_[static_cast<std::size_t>(member)] = place(past, member);
      });
      void* const target = at(output, (from - first) * size);
      sum_in_rank_order(dtype, inputs_, 0, count, {&target, 1}, 0);
    }
  }

  // Begins that every member gets every other's slice of `bytes` bytes of `data`, which has `total` (the last slices
  // may be shorter).
  void gather_slices(const MpiGroup& own, void* data, std::int64_t bytes, std::int64_t total) {
    const auto length = [&](std::int64_t member) { return std::clamp<std::int64_t>(total - member * bytes, 0, bytes); };
    for_others(own, [&](std::int64_t member, int peer) {
      messages_[0].receive(mpi_.world, peer, kCollectiveTag, at(data, member * bytes), length(member));
    });
    for_others(own, [&](std::int64_t, int peer) {
      messages_[0].send(mpi_.world, peer, kCollectiveTag, at(data, own.index * bytes), length(own.index));
    });
  }

  void count_sent(std::int64_t bytes, std::int64_t n) { bytes_sent_ += bytes * (n - 1) / n; }

  // ---- Waiting ----

  void wait(Messages& messages, const char* operation) {
    const ProcessChannel::Wait waiting(channel_, operation);
    for (const Patience patience; !test(messages); patience.wait()) channel_.check();
  }

  bool test(Messages& messages) {
    try {
      return messages.test();
    } catch (const IoError&) {
      channel_.throw_loss_if_told();
      throw;
    }
  }

  const int exceptions_;
  Mpi mpi_;
  std::array<Messages, 2> messages_;
  std::vector<std::byte> scratch_;
  std::vector<const void*> inputs_;
  ProcessChannel channel_;
};

}  // namespace

bool has_mpi() { return true; }

std::unique_ptr<HostCommunicator> mpi_communicator(OnLoss on_loss) {
  return std::make_unique<MpiCommunicator>(std::move(on_loss));
}

}  // namespace trainer
