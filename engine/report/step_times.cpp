// How waiting is separated: a collective begins when the last of its ranks arrives; time before that is waiting.
#include "engine/report/step_times.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/core/check.h"

namespace trainer::report {
namespace {

const std::vector<Issued>& step_of(const Plan& plan, int rank) {
  const Program* step = plan.role_of(rank).program(ProgramKind::step);
  CHECK(step != nullptr, "a plan of training has a step");
  return step->instructions;
}

bool meets_others(const Instruction& instruction) {
  return std::holds_alternative<Collective>(instruction) || std::holds_alternative<Exchange>(instruction);
}

int peer_of(const Mesh& mesh, int rank, Axis axis, int distance) {
  Coordinates at = mesh.coordinates(rank);
  at[static_cast<std::size_t>(axis)] += distance;
  return mesh.rank(at);
}

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
        for (const Exchange::Send& send : exchange->sends)
          sends[{rank, peer_of(plan.mesh, rank, send.axis, send.peer)}].push_back(here);
        for (const Exchange::Receive& receive : exchange->receives)
          receives[{peer_of(plan.mesh, rank, receive.axis, receive.peer), rank}].push_back(here);
      }
    }
  }
  const auto meet = [&](const Spot& a, const Spot& b) {
    met_[static_cast<std::size_t>(a.rank)][static_cast<std::size_t>(a.instruction)].push_back(b);
  };
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

std::int64_t begin_together(const Meetings& meetings, const std::vector<RankTrace>& traces, const RankTrace& rank,
                            std::size_t instruction) {
  std::int64_t from = rank.start_ns + rank.spans[instruction].begin_ns;
  for (const Spot& spot : meetings.of(rank.rank, instruction)) {
    const RankTrace& other = traces[static_cast<std::size_t>(spot.rank)];
    from = std::max(from, other.start_ns + other.spans[static_cast<std::size_t>(spot.instruction)].begin_ns);
  }
  return from;
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
      const std::int64_t from = begin_together(meetings, traces, trace, i), to = trace.start_ns + trace.spans[i].end_ns;
      if (meets_others(step[i].instruction)) {
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

}  // namespace trainer::report
