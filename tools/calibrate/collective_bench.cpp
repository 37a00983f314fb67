// How the plans of the benchmark are made by hand, and how times per collective follow from their runs.
#include "tools/calibrate/collective_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/core/check.h"
#include "engine/plan/plan.h"
#include "engine/plan/strategy.h"
#include "engine/run/executor.h"
#include "engine/train/ranks.h"
#include "tools/calibrate/median.h"

namespace trainer::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSmall = 64;  // bytes: what the kernels between collectives touch

// A plan by hand. Buffers lie one after another.
class Maker {
 public:
  Maker(int ranks, bool stages) {
    plan_.mesh.set(stages ? Axis::pipeline : Axis::shard, ranks);
    plan_.roles.resize(stages ? static_cast<std::size_t>(ranks) : 1);
    for (Role& role : plan_.roles) {
      role.names = {"data"};
      role.programs.push_back({ProgramKind::step, {}});
    }
  }

  Role& role(std::size_t index = 0) { return plan_.roles[index]; }
  int shards() const { return plan_.mesh.size(Axis::shard); }

  static BufferId buffer(Role& role, std::int64_t bytes) {
    role.buffers.push_back({.bytes = bytes, .offset = role.total_bytes});
    role.total_bytes += aligned(bytes);
    role.persistent_bytes = role.total_bytes;
    return static_cast<BufferId>(role.buffers.size() - 1);
  }
  static std::int32_t signature(Role& role, Signature one) {
    role.signatures.push_back(std::move(one));
    return static_cast<std::int32_t>(role.signatures.size() - 1);
  }
  static void add(Role& role, Stream stream, Instruction instruction) {
    role.programs.back().instructions.push_back({stream, std::move(instruction), {-1, -1, -1}});
  }
  /// What is added from here on belongs to another program.
  static void next_program(Role& role) { role.programs.push_back({ProgramKind::step, {}}); }

  Plan take() {
    for (Role& role : plan_.roles) derive_order(role, plan_.mesh);
    return std::move(plan_);
  }

 private:
  Plan plan_;
};

Collective collective_of(const std::string& name, BufferId data, std::int64_t bytes, int ranks) {
  const Region whole{data, 0, bytes}, slice = own_slice(whole, kSliceAxes, ranks);
  Collective out;
  out.axes = Axes::of(Axis::shard);
  if (name == "all_reduce")
    out.kind = CollectiveKind::all_reduce, out.input = {whole}, out.output = {whole};
  else if (name == "reduce_scatter")
    out.kind = CollectiveKind::reduce_scatter, out.input = {whole}, out.output = {slice};
  else if (name == "all_gather")
    out.kind = CollectiveKind::all_gather, out.input = {slice}, out.output = {whole};
  else
    CHECK(name == "all_to_all", "a collective that is measured");
  if (name == "all_to_all")
    out.kind = CollectiveKind::all_to_all, out.input = {whole}, out.output = {{data + 1, 0, bytes}};
  return out;
}

constexpr int kRounds = 5;  // that count, after one that does not

// In a step each collective has buffers of its own, which kernels wrote long before, so that they come from memory.
// Turns take buffers one after another, and rounds programs that have buffers of their own: of up to this many bytes
// over all ranks.
constexpr std::int64_t kBytesInTurn = std::int64_t{512} << 20;

struct Turns {
  std::int64_t buffers;  // that turns take one after another
  int programs;          // of so many turns each
};
Turns turns_of(int ranks, std::int64_t bytes, int turns) {
  const std::int64_t most = std::max<std::int64_t>(1, kBytesInTurn / (ranks * bytes));
  const auto programs = static_cast<int>(std::clamp<std::int64_t>((most + turns - 1) / turns, 1, kRounds + 1));
  return {std::min<std::int64_t>(most, std::int64_t{programs} * turns), programs};
}

// Programs of `turns` of a collective, each between kernels that write a little of what it reads and of what it wrote:
// without a hand-over the next would begin at once.
Plan collectives(const std::string& name, int ranks, std::int64_t bytes, int turns) {
  Maker maker(ranks, false);
  Role& role = maker.role();
  const std::int64_t buffers_of_one = name == "all_to_all" ? 2 : 1;
  const Turns of = turns_of(ranks, buffers_of_one * bytes, turns);
  for (std::int64_t i = 0; i < buffers_of_one * of.buffers; ++i) Maker::buffer(role, bytes);
  const std::int32_t zero = Maker::signature(role, {Op::zero, {}, {{DType::f32, {kSmall / 4}}}});
  std::int64_t taken = 0;
  for (int program = 0; program < of.programs; ++program) {
    if (program > 0) Maker::next_program(role);
    for (int turn = 0; turn < turns; ++turn, ++taken) {
      const auto data = static_cast<BufferId>(taken % of.buffers * buffers_of_one);
      const auto result = static_cast<BufferId>(data + buffers_of_one - 1);
      Maker::add(role, Stream::compute, Launch{zero, 0, {Write{{data, 0, kSmall}}}, {}, {}});
      Maker::add(role, Stream::communication, collective_of(name, data, bytes, ranks));
      Maker::add(role, Stream::compute, Launch{zero, 0, {Write{{result, 0, kSmall}}}, {}, {}});
    }
  }
  return maker.take();
}

// A message from each stage to the next, `turns` times, with a kernel before and after.
Plan sends(int ranks, std::int64_t bytes, int turns) {
  Maker maker(ranks, true);
  const Turns of = turns_of(ranks, 2 * bytes, turns);
  for (int stage = 0; stage < ranks; ++stage) {
    Role& role = maker.role(static_cast<std::size_t>(stage));
    const std::int32_t zero = Maker::signature(role, {Op::zero, {}, {{DType::f32, {kSmall / 4}}}});
    for (std::int64_t i = 0; i < 2 * of.buffers; ++i) Maker::buffer(role, bytes);
    std::int64_t taken = 0;
    for (int program = 0; program < of.programs; ++program) {
      if (program > 0) Maker::next_program(role);
      for (int turn = 0; turn < turns; ++turn, ++taken) {
        const auto out = static_cast<BufferId>(taken % of.buffers * 2), in = static_cast<BufferId>(out + 1);
        if (stage > 0) {
          Exchange receive;
          receive.receives.push_back({Axis::pipeline, -1, {{in, 0, bytes}}});
          Maker::add(role, Stream::communication, receive);
          Maker::add(role, Stream::compute, Launch{zero, 0, {Write{{in, 0, kSmall}}}, {}, {}});
        }
        if (stage + 1 < ranks) {
          Exchange send;
          send.sends.push_back({Axis::pipeline, 1, {{out, 0, bytes}}});
          Maker::add(role, Stream::compute, Launch{zero, 0, {Write{{out, 0, kSmall}}}, {}, {}});
          Maker::add(role, Stream::communication, send);
          Maker::add(role, Stream::compute, Launch{zero, 0, {Write{{out, 0, kSmall}}}, {}, {}});
        }
      }
    }
  }
  return maker.take();
}

// Products on one stream and all-reduces on the other, neither of which waits for the other.
Plan beside(int ranks, std::int64_t bytes, int products, int reductions) {
  Maker maker(ranks, false);
  Role& role = maker.role();
  constexpr std::int64_t kRows = 256, kDim = 512;
  const TensorDesc x{DType::f32, {kRows, kDim}}, w{DType::f32, {kDim, kDim}};
  const BufferId data = Maker::buffer(role, bytes), in = Maker::buffer(role, x.bytes()),
                 weight = Maker::buffer(role, w.bytes()), out = Maker::buffer(role, x.bytes()),
                 workspace = Maker::buffer(role, std::int64_t{16} << 20);
  const std::int32_t linear = Maker::signature(role, {Op::linear, {{"bias", false}}, {x, w, x}});
  for (int i = 0; i < std::max(products, reductions); ++i) {
    if (i < reductions) Maker::add(role, Stream::communication, collective_of("all_reduce", data, bytes, ranks));
    if (i < products)
      Maker::add(role, Stream::compute,
                 Launch{linear,
                        0,
                        {Read{{in, 0, x.bytes()}}, Read{{weight, 0, w.bytes()}}, Write{{out, 0, x.bytes()}}},
                        {{workspace, 0, std::int64_t{16} << 20}},
                        {}});
  }
  return maker.take();
}

// Microseconds of each round; rounds take the programs in turn. Memory is written before: pages that were never written
// are all one page of zeros.
std::vector<double> times_of(const Plan& plan, int threads, int rounds) {
  const int ranks = plan.mesh.world_size();
  std::vector<double> times;
  run_ranks(ranks, [&](Communicator& communicator) {
    const auto executor = cpu_device(threads)->load(plan, communicator.rank(), communicator);
    const Role& role = executor->role();
    for (std::size_t i = 0; i < role.buffers.size(); ++i) {
      const std::vector<float> data(static_cast<std::size_t>(role.buffers[i].bytes / 4),
                                    1e-3F * static_cast<float>(i + 1));
      executor->write({static_cast<BufferId>(i), 0, role.buffers[i].bytes}, data.data());
    }
    for (int round = 0; round <= rounds; ++round) {
      communicator.control().barrier();
      const Clock::time_point start = Clock::now();
      executor->run(static_cast<std::int32_t>(static_cast<std::size_t>(round) % role.programs.size()));
      communicator.control().barrier();
      if (communicator.rank() == 0 && round > 0)
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
  });
  return times;
}

// `make(turns)` gives a plan; turns so many that all rounds take about the budget.
template <typename Make>
cost::Figure time_of_one(Make&& make, int threads, double budget_ms) {
  constexpr int kFew = 4;
  const double one = times_of(make(kFew), threads, 1).front() / kFew;
  const int turns = static_cast<int>(std::clamp(budget_ms * 1000 / kRounds / std::max(one, 0.1), 2.0, 200.0));
  std::vector<double> times = times_of(make(turns), threads, kRounds);
  for (double& time : times) time /= turns;
  return median_of(std::move(times));
}

}  // namespace

cost::Figure collective_time(const std::string& collective, int ranks, int threads, std::int64_t bytes,
                             double budget_ms) {
  if (collective == "send") return time_of_one([&](int turns) { return sends(2, bytes, turns); }, threads, budget_ms);
  return time_of_one([&](int turns) { return collectives(collective, ranks, bytes, turns); }, threads, budget_ms);
}

cost::Figure launch_time() {
  return time_of_one(
      [](int turns) {
        Maker maker(1, false);
        const BufferId data = Maker::buffer(maker.role(), kSmall);
        const std::int32_t zero = Maker::signature(maker.role(), {Op::zero, {}, {{DType::f32, {1}}}});
        for (int i = 0; i < 100 * turns; ++i)
          Maker::add(maker.role(), Stream::compute, Launch{zero, 0, {Write{{data, 0, 4}}}, {}, {}});
        return maker.take();
      },
      1, 5);
}

double overlap_slowdown(int ranks, int threads, double budget_ms) {
  constexpr std::int64_t kBytes = std::int64_t{4} << 20;
  const auto once = [&](int products, int reductions) {
    return median_of(times_of(beside(ranks, kBytes, products, reductions), threads, kRounds)).value;
  };
  const int reductions = std::max(2, static_cast<int>(budget_ms * 1000 / 30 / std::max(1.0, once(0, 4) / 4)));
  const double communication = once(0, reductions);
  const int products = std::max(2, static_cast<int>(2 * communication / (once(10, 0) / 10)));
  const double computing = once(products, 0), both = once(products, reductions);
  // While communication runs, kernels get 1/s of what they would: both = computing + communication · (1 − 1/s).
  const double lost = std::clamp((both - computing) / communication, 0.0, 1 - 1 / kMostSlowdown);
  return 1 / (1 - lost);
}

}  // namespace trainer::tools
