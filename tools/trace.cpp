// Instructions to trace events. A rank is two processes: what was measured, and below it what the plan's order allows.
#include "tools/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <variant>

#include "engine/core/check.h"
#include "engine/ops/op_def.h"
#include "tools/plan_report.h"

namespace trainer::tools {
namespace {

std::int64_t bytes_of(const Instruction& instruction) {
  std::int64_t bytes = 0;
  for_each_access(instruction,
                  [&](Access access, const Region& region) { bytes += access == Access::update ? 2 * region.bytes : region.bytes; });
  return bytes;
}

const char* category_of(const Instruction& instruction) {
  static constexpr const char* kCategories[] = {"launch", "collective", "exchange", "copy", "copy"};
  static_assert(std::size(kCategories) == std::variant_size_v<Instruction>);
  return kCategories[instruction.index()];
}

double flops_of(const Role& role, const Instruction& instruction) {
  const auto* launch = std::get_if<Launch>(&instruction);
  return launch == nullptr ? 0 : cost_of(role.signatures[static_cast<std::size_t>(launch->signature)]).flops;
}

double microseconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-3; }

class Drawing {
 public:
  Drawing(TraceWriter& trace, const Plan& plan, const std::vector<RankTrace>& measured) : trace_(trace), plan_(plan), measured_(measured), begin_(INT64_MAX) {
    for (const RankTrace& rank : measured) {
      const Program* step = plan.role_of(rank.rank).program("step");
      CHECK(step != nullptr && step->instructions.size() == rank.spans.size(), "a span for every instruction");
      for (const Span& span : rank.spans) begin_ = std::min(begin_, rank.start_ns + span.begin_ns);
    }
  }

  void draw(const Meetings& meetings, const std::vector<RankTimes>& times) {
    for (const RankTrace& rank : measured_) {
      name(rank.rank, rank.rank, fmt::format("rank {}", rank.rank));
      trace_.label_rank(rank.rank, times_text(times[static_cast<std::size_t>(rank.rank)]));
      draw(rank);
    }
    for (const RankTrace& rank : planned_times(plan_, meetings, measured_)) {
      name(planned(rank.rank), rank.rank, fmt::format("rank {}, planned", rank.rank));
      draw_planned(rank);
    }
    std::int64_t id = 0;
    for (const Meetings::Message& message : meetings.messages()) {
      trace_.add_arrow(++id, "message", point_of(message.from, false), point_of(message.to, true));
    }
  }

 private:
  // Measured ranks first, so that a rank's number is that of its process.
  int planned(int rank) const { return plan_.mesh.world_size() + rank; }

  void name(int process, int rank, const std::string& text) {
    trace_.name_rank(process, text);
    trace_.order_rank(process, 2 * rank + (process == rank ? 0 : 1));
    for (int stream = 0; stream < kNumStreams; ++stream) trace_.name_stream(process, stream, name_of(static_cast<Stream>(stream)));
  }

  const Issued& issued(int rank, std::size_t i) const { return plan_.role_of(rank).program("step")->instructions[i]; }

  void draw(const RankTrace& rank) {
    const Role& role = plan_.role_of(rank.rank);
    for (std::size_t i = 0; i < rank.spans.size(); ++i) {
      const Issued& one = issued(rank.rank, i);
      const Span& span = rank.spans[i];
      const std::string title = title_of(role, one.instruction), printed = print(role, one.instruction);
      const double flops = flops_of(role, one.instruction);
      TraceEvent event{rank.rank,
                       static_cast<int>(one.stream),
                       title,
                       category_of(one.instruction),
                       microseconds(rank.start_ns + span.begin_ns - begin_),
                       microseconds(span.end_ns - span.begin_ns),
                       {},
                       {}};
      event.numbers = {{"index", static_cast<double>(i)}, {"bytes", static_cast<double>(bytes_of(one.instruction))}};
      if (flops > 0) event.numbers.emplace_back("flops", flops);
      event.texts = {{"instruction", printed}};
      trace_.add(event);
    }
  }

  void draw_planned(const RankTrace& rank) {
    for (std::size_t i = 0; i < rank.spans.size(); ++i) {
      const Issued& one = issued(rank.rank, i);
      const Span& span = rank.spans[i];
      const std::string title = title_of(plan_.role_of(rank.rank), one.instruction);
      TraceEvent event{planned(rank.rank),           static_cast<int>(one.stream), title, "planned", microseconds(span.begin_ns),
                       microseconds(span.end_ns - span.begin_ns), {},                             {}};
      event.numbers = {{"index", static_cast<double>(i)}};
      trace_.add(event);
    }
  }

  // From the start of a send to the end of the receive: no message ends before it starts. Just inside, so that an arrow finds its event.
  TracePoint point_of(const Spot& spot, bool end) const {
    constexpr double kInside = 0.001;
    const RankTrace& rank = measured_[static_cast<std::size_t>(spot.rank)];
    const Span& span = rank.spans[static_cast<std::size_t>(spot.instruction)];
    const auto stream = static_cast<int>(issued(spot.rank, static_cast<std::size_t>(spot.instruction)).stream);
    const double at = microseconds(rank.start_ns + (end ? span.end_ns : span.begin_ns) - begin_);
    return {spot.rank, stream, end ? std::max(at - kInside, microseconds(rank.start_ns + span.begin_ns - begin_)) : at};
  }

  TraceWriter& trace_;
  const Plan& plan_;
  const std::vector<RankTrace>& measured_;
  std::int64_t begin_;
};

}  // namespace

std::string times_text(const RankTimes& times) {
  const auto part = [&](std::int64_t ns) { return fmt::format("{:.2f} ms ({:.0f}%)", static_cast<double>(ns) * 1e-6, 100.0 * static_cast<double>(ns) / static_cast<double>(std::max<std::int64_t>(1, times.step))); };
  return fmt::format("computing {}, communication that nothing hides {}, waiting {}", part(times.compute), part(times.exposed), part(times.waiting));
}

std::vector<RankTimes> write_trace(TraceWriter& trace, const Plan& plan, const std::vector<RankTrace>& ranks) {
  const Meetings meetings(plan);
  std::vector<RankTimes> times = measure(plan, meetings, ranks);
  Drawing(trace, plan, ranks).draw(meetings, times);
  trace.close();
  return times;
}

}  // namespace trainer::tools
