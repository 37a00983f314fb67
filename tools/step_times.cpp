#include "tools/step_times.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "engine/core/check.h"
#include "engine/ops/op_def.h"

namespace trainer::tools {
namespace {

const std::vector<Issued>& step_of(const Plan& plan, int rank) {
  const Program* step = plan.role_of(rank).program("step");
  CHECK(step != nullptr, "a plan of training has a step");
  return step->instructions;
}

bool meets_others(const Instruction& instruction) { return std::holds_alternative<Collective>(instruction) || std::holds_alternative<Exchange>(instruction); }

int peer_of(const Mesh& mesh, int rank, Axis axis, int distance) {
  Coordinates at = mesh.coordinates(rank);
  at[static_cast<std::size_t>(axis)] += distance;
  return mesh.rank(at);
}

std::int64_t bytes_of(const Instruction& instruction) {
  std::int64_t bytes = 0;
  for_each_access(instruction, [&](Access, const Region& region) { bytes += region.bytes; });
  return bytes;
}

// What a byte moved weighs in products: processors of all kinds make some tens of FLOPs in the time of one.
constexpr double kFlopsPerByte = 30;

double weight_of(const Role& role, const Instruction& instruction) {
  const auto* launch = std::get_if<Launch>(&instruction);
  if (launch == nullptr) return kFlopsPerByte * static_cast<double>(bytes_of(instruction));
  const Cost cost = cost_of(role.signatures[static_cast<std::size_t>(launch->signature)]);
  return cost.flops + kFlopsPerByte * (cost.bytes_read + cost.bytes_written);
}

// ---- Playing a plan --------------------------------------------------------------------------------------------------

// Nanoseconds for a unit of weight, and for a byte of communication as the quicker quarter of the messages took: the others waited.
struct Rates {
  double per_weight = 0, per_byte = 0;
};

Rates rates_of(const Plan& plan, const std::vector<RankTrace>& measured) {
  double weights = 0, kernels = 0;
  std::vector<double> messages;
  for (const RankTrace& trace : measured) {
    const Role& role = plan.role_of(trace.rank);
    const std::vector<Issued>& step = step_of(plan, trace.rank);
    for (std::size_t i = 0; i < step.size(); ++i) {
      const auto ns = static_cast<double>(trace.spans[i].end_ns - trace.spans[i].begin_ns);
      if (meets_others(step[i].instruction)) {
        messages.push_back(ns / static_cast<double>(std::max<std::int64_t>(1, bytes_of(step[i].instruction))));
      } else {
        weights += weight_of(role, step[i].instruction);
        kernels += ns;
      }
    }
  }
  Rates rates{weights > 0 ? kernels / weights : 0, 0};
  if (messages.empty()) return rates;
  const auto quarter = messages.begin() + static_cast<std::ptrdiff_t>(messages.size() / 4);
  std::nth_element(messages.begin(), quarter, messages.end());
  rates.per_byte = *quarter;
  return rates;
}

class Play {
 public:
  Play(const Plan& plan, const Meetings& meetings, Rates rates) : plan_(plan), meetings_(meetings), rates_(rates), ranks_(static_cast<std::size_t>(plan.mesh.world_size())) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].ready.assign(step_of(plan_, static_cast<int>(rank)).size(), -1);
      ranks_[rank].end.assign(ranks_[rank].ready.size(), 0);
    }
  }

  std::vector<RankTrace> run() {
    for (bool any = true; any;) {
      any = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) any = advance(static_cast<int>(rank)) || any;
    }
    std::vector<RankTrace> traces;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      CHECK(ranks_[rank].next == ranks_[rank].ready.size(), "a verified plan runs to its end");
      traces.push_back({static_cast<int>(rank), 0, std::move(ranks_[rank].spans)});
    }
    return traces;
  }

 private:
  struct Player {
    std::size_t next = 0;
    std::vector<double> ready, end;  // of each instruction; -1: it is not known yet when it can start
    std::array<double, kNumStreams> free{};
    std::vector<Span> spans;
  };

  // Runs until it has to wait for another rank. In issue order, since waits only point back.
  bool advance(int rank) {
    Player& player = ranks_[static_cast<std::size_t>(rank)];
    const std::vector<Issued>& step = step_of(plan_, rank);
    bool any = false;
    for (; player.next < step.size(); ++player.next, any = true) {
      const std::size_t i = player.next;
      const Issued& issued = step[i];
      double& free = player.free[static_cast<std::size_t>(issued.stream)];
      if (player.ready[i] < 0) {
        double ready = free;
        for (std::int32_t after : issued.after)
          if (after >= 0) ready = std::max(ready, player.end[static_cast<std::size_t>(after)]);
        player.ready[i] = ready;
        any = true;
      }
      double start = player.ready[i];
      for (const Spot& spot : meetings_.of(rank, i)) {
        const double theirs = ranks_[static_cast<std::size_t>(spot.rank)].ready[static_cast<std::size_t>(spot.instruction)];
        if (theirs < 0) return any;
        start = std::max(start, theirs);
      }
      const double duration = meets_others(issued.instruction) ? rates_.per_byte * static_cast<double>(bytes_of(issued.instruction))
                                                               : rates_.per_weight * weight_of(plan_.role_of(rank), issued.instruction);
      free = player.end[i] = start + duration;
      // As when measured, what communicates begins when it is issued, and waits inside.
      player.spans.push_back({static_cast<std::int64_t>(player.ready[i]), static_cast<std::int64_t>(start + duration)});
    }
    return any;
  }

  const Plan& plan_;
  const Meetings& meetings_;
  const Rates rates_;
  std::vector<Player> ranks_;
};

// ---- Measuring ---------------------------------------------------------------------------------------------------------

using Intervals = std::vector<std::pair<std::int64_t, std::int64_t>>;

// Sorted and apart.
Intervals joined(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end());
  Intervals result;
  for (const auto& [begin, end] : intervals) {
    if (end <= begin) continue;
    if (!result.empty() && begin <= result.back().second)
      result.back().second = std::max(result.back().second, end);
    else
      result.emplace_back(begin, end);
  }
  return result;
}

std::int64_t length_of(const Intervals& intervals) {
  std::int64_t length = 0;
  for (const auto& [begin, end] : intervals) length += end - begin;
  return length;
}

}  // namespace

Meetings::Meetings(const Plan& plan) {
  const int world = plan.mesh.world_size();
  std::map<std::vector<int>, std::vector<std::vector<Spot>>> collectives;  // by members: the k-th of each member
  std::map<std::pair<int, int>, std::vector<Spot>> sends, receives;        // by sender and receiver
  for (int rank = 0; rank < world; ++rank) {
    const std::vector<Issued>& step = step_of(plan, rank);
    met_.emplace_back(step.size());
    std::map<std::vector<int>, std::size_t> seen;
    for (std::size_t i = 0; i < step.size(); ++i) {
      const Spot here{rank, static_cast<std::int32_t>(i)};
      if (const auto* collective = std::get_if<Collective>(&step[i].instruction)) {
        const std::vector<int> members = plan.mesh.group(rank, collective->axes, collective->stages);
        std::vector<std::vector<Spot>>& all = collectives[members];
        const std::size_t k = seen[members]++;
        if (all.size() <= k) all.resize(k + 1);
        all[k].push_back(here);
      } else if (const auto* exchange = std::get_if<Exchange>(&step[i].instruction)) {
        for (const Exchange::Send& send : exchange->sends) sends[{rank, peer_of(plan.mesh, rank, send.axis, send.peer)}].push_back(here);
        for (const Exchange::Receive& receive : exchange->receives) receives[{peer_of(plan.mesh, rank, receive.axis, receive.peer), rank}].push_back(here);
      }
    }
  }
  const auto meet = [&](const Spot& a, const Spot& b) { met_[static_cast<std::size_t>(a.rank)][static_cast<std::size_t>(a.instruction)].push_back(b); };
  for (const auto& [members, all] : collectives)
    for (const std::vector<Spot>& spots : all)
      for (const Spot& a : spots)
        for (const Spot& b : spots)
          if (a.rank != b.rank) meet(a, b);
  for (const auto& [ranks, from] : sends) {
    const std::vector<Spot>& to = receives[ranks];
    CHECK(from.size() == to.size(), "every send has its receive");
    for (std::size_t k = 0; k < from.size(); ++k) {
      meet(from[k], to[k]);
      meet(to[k], from[k]);
      messages_.push_back({from[k], to[k]});
    }
  }
}

std::vector<RankTrace> planned_times(const Plan& plan, const Meetings& meetings, const std::vector<RankTrace>& measured) {
  return Play(plan, meetings, rates_of(plan, measured)).run();
}

std::vector<RankTimes> measure(const Plan& plan, const Meetings& meetings, const std::vector<RankTrace>& traces) {
  std::int64_t begin = INT64_MAX, end = INT64_MIN;
  for (const RankTrace& trace : traces)
    for (const Span& span : trace.spans) {
      begin = std::min(begin, trace.start_ns + span.begin_ns);
      end = std::max(end, trace.start_ns + span.end_ns);
    }
  std::vector<RankTimes> times;
  for (const RankTrace& trace : traces) {
    Intervals compute, busy;
    const std::vector<Issued>& step = step_of(plan, trace.rank);
    for (std::size_t i = 0; i < step.size(); ++i) {
      std::int64_t from = trace.start_ns + trace.spans[i].begin_ns;
      const std::int64_t to = trace.start_ns + trace.spans[i].end_ns;
      if (meets_others(step[i].instruction)) {
        for (const Spot& spot : meetings.of(trace.rank, i)) {
          const RankTrace& other = traces[static_cast<std::size_t>(spot.rank)];
          from = std::max(from, other.start_ns + other.spans[static_cast<std::size_t>(spot.instruction)].begin_ns);
        }
        busy.emplace_back(from, to);
      } else if (std::holds_alternative<Launch>(step[i].instruction)) {
        compute.emplace_back(from, to);
        busy.emplace_back(from, to);
      }
    }
    RankTimes& one = times.emplace_back();
    one.step = end - begin;
    one.compute = length_of(joined(std::move(compute)));
    one.exposed = length_of(joined(std::move(busy))) - one.compute;
    one.waiting = one.step - one.compute - one.exposed;
  }
  return times;
}

}  // namespace trainer::tools
