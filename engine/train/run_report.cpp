// How ranks report: each tells its figures over the control channel, and rank 0 gets all traces.
#include "engine/train/run_report.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

namespace trainer {

std::vector<RankReport> report_ranks(const Executor& executor, std::int64_t bytes_sent, ControlChannel& channel) {
  const std::vector<std::int64_t> planned = channel.each(executor.role().total_bytes),
                                  allocated = channel.each(executor.allocated_bytes()),
                                  counted = channel.each(executor.counted_bytes()), sent = channel.each(bytes_sent),
                                  planned_off = channel.each(executor.role().host_bytes + executor.role().disk_bytes),
                                  taken_off = channel.each(executor.offloaded_bytes(Space::host) +
                                                           executor.offloaded_bytes(Space::disk));
  std::vector<RankReport> ranks;
  for (std::size_t rank = 0; rank < planned.size(); ++rank)
    ranks.push_back({planned[rank], allocated[rank], counted[rank], sent[rank], planned_off[rank], taken_off[rank]});
  return ranks;
}

void add_ranks(RunReport& report, const std::vector<RankReport>& ranks) {
  report.ranks = ranks;
  report.bytes_sent = ranks.front().bytes_sent;
  for (const RankReport& rank : ranks) {
    report.allocated_bytes = std::max(report.allocated_bytes, rank.allocated_bytes);
    report.counted_bytes = std::max(report.counted_bytes, rank.counted_bytes);
    report.offloaded_bytes = std::max(report.offloaded_bytes, rank.allocated_offload_bytes);
  }
}

void add_times(RunReport& report, const std::vector<double>& step_ms, std::int64_t tokens_per_step) {
  if (step_ms.empty()) return;
  // The first step touches its memory for the first time; it is no measure of the others.
  std::vector<double> times(step_ms.begin() + (step_ms.size() > 1 ? 1 : 0), step_ms.end());
  const double total = std::accumulate(times.begin(), times.end(), 0.0);
  report.tokens_per_s = static_cast<double>(tokens_per_step) * static_cast<double>(times.size()) / total * 1e3;
  std::sort(times.begin(), times.end());
  report.step_ms_median = times[times.size() / 2];
  report.step_ms_p95 = times[std::min(times.size() - 1, times.size() * 95 / 100)];
}

std::vector<RankTrace> gather_traces(Executor& executor, std::int32_t step_program,
                                     std::chrono::steady_clock::time_point step_start, bool several_machines,
                                     ControlChannel& channel) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point zero = several_machines ? Clock::now() : Clock::time_point{};
  const std::int64_t start = std::chrono::duration_cast<std::chrono::nanoseconds>(step_start - zero).count();
  const auto spans = executor.times(step_program);
  std::string mine(reinterpret_cast<const char*>(&start), sizeof start);
  mine.append(reinterpret_cast<const char*>(spans.data()), spans.size_bytes());
  const std::vector<std::string> all = channel.to_first(mine);
  std::vector<RankTrace> traces;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::size_t bytes = all[rank].size() - sizeof start;
    RankTrace& trace =
        traces.emplace_back(RankTrace{static_cast<int>(rank), 0, std::vector<Span>(bytes / sizeof(Span))});
    std::memcpy(&trace.start_ns, all[rank].data(), sizeof start);
    std::memcpy(trace.spans.data(), all[rank].data() + sizeof start, bytes);
  }
  return traces;
}

}  // namespace trainer
