// Instructions to trace events. A rank of a run is two processes: what was measured, and below it what was predicted.
#include "engine/report/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <variant>

#include "engine/core/check.h"
#include "engine/ops/op_def.h"
#include "engine/report/plan_report.h"

namespace trainer::report {
namespace {

std::int64_t bytes_of(const Instruction& instruction) {
  std::int64_t bytes = 0;
  for_each_access(instruction, [&](Access access, const Region& region) {
    bytes += access == Access::update ? 2 * region.bytes : region.bytes;
  });
  return bytes;
}

const char* category_of(const Instruction& instruction) {
  static constexpr const char* kCategories[] = {"launch", "collective", "exchange", "copy", "copy", "move"};
  static_assert(std::size(kCategories) == std::variant_size_v<Instruction>);
  return kCategories[instruction.index()];
}

double flops_of(const Role& role, const Instruction& instruction) {
  const auto* launch = std::get_if<Launch>(&instruction);
  return launch == nullptr ? 0 : cost_of(role.signatures[static_cast<std::size_t>(launch->signature)]).flops;
}

double microseconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-3; }

const std::vector<Issued>& step_of(const Role& role) {
  const Program* const step = role.program(ProgramKind::step);
  CHECK(step != nullptr, "a plan of training has a step");
  return step->instructions;
}

// Instructions of one role, each with its facts, as events of one process of the trace.
class Row {
 public:
  Row(TraceWriter& trace, const Role& role, int process, int place, const std::string& name, const std::string& label)
      : trace_(trace), role_(role), step_(step_of(role)), process_(process) {
    trace_.name_rank(process, name);
    trace_.order_rank(process, place);
    if (!label.empty()) trace_.label_rank(process, label);
    // The first three are there in every plan; the others where the device communicates on several.
    for (int stream = 0; stream < kNumStreams; ++stream) {
      const auto has = [&](const Issued& one) { return static_cast<int>(one.stream) == stream; };
      if (stream < 3 || std::any_of(step_.begin(), step_.end(), has))
        trace_.name_stream(process, stream, name_of(static_cast<Stream>(stream)));
    }
  }

  // `waited_us`: below 0 where it is not known.
  void draw(std::size_t i, const char* category, double begin_us, double us, double waited_us) {
    const Issued& one = step_[i];
    const std::string title = title_of(role_, one), printed = print(role_, one.instruction);
    TraceEvent event{process_, static_cast<int>(one.stream), title, category, begin_us, us, {}, {}};
    event.numbers = {{"index", static_cast<double>(i)}, {"bytes", static_cast<double>(bytes_of(one.instruction))}};
    if (const double flops = flops_of(role_, one.instruction); flops > 0) event.numbers.emplace_back("flops", flops);
    if (waited_us > 0) event.numbers.emplace_back("waited_us", waited_us);
    event.texts = {{"instruction", printed}};
    trace_.add(event);
  }

  void draw_predicted(const std::vector<cost::Span>& spans) {
    CHECK(spans.size() == step_.size(), "a span for every instruction");
    for (std::size_t i = 0; i < spans.size(); ++i)
      draw(i, "predicted", spans[i].begin, spans[i].end - spans[i].begin, spans[i].waited);
  }

  void draw_measured(const RankTrace& rank, std::int64_t zero_ns) {
    CHECK(rank.spans.size() == step_.size(), "a span for every instruction");
    for (std::size_t i = 0; i < rank.spans.size(); ++i) {
      const Span& span = rank.spans[i];
      draw(i, category_of(step_[i].instruction), microseconds(rank.start_ns + span.begin_ns - zero_ns),
           microseconds(span.end_ns - span.begin_ns), -1);
    }
  }

 private:
  TraceWriter& trace_;
  const Role& role_;
  const std::vector<Issued>& step_;
  const int process_;
};

// From the start of a send to the end of the receive: no message ends before it starts. Just inside, so that an arrow
// finds its event.
TracePoint point_of(const Plan& plan, const std::vector<RankTrace>& measured, const Spot& spot, bool end,
                    std::int64_t zero_ns) {
  constexpr double kInside = 0.001;
  const RankTrace& rank = measured[static_cast<std::size_t>(spot.rank)];
  const Span& span = rank.spans[static_cast<std::size_t>(spot.instruction)];
  const auto stream =
      static_cast<int>(step_of(plan.role_of(spot.rank))[static_cast<std::size_t>(spot.instruction)].stream);
  const double begin = microseconds(rank.start_ns + span.begin_ns - zero_ns);
  return {spot.rank, stream,
          end ? std::max(microseconds(rank.start_ns + span.end_ns - zero_ns) - kInside, begin) : begin};
}

}  // namespace

std::string times_text(const RankTimes& times) {
  const auto part = [&](std::int64_t ns) {
    return fmt::format("{:.2f} ms ({:.0f}%)", static_cast<double>(ns) * 1e-6,
                       100.0 * static_cast<double>(ns) / static_cast<double>(std::max<std::int64_t>(1, times.step)));
  };
  return fmt::format("computing {}, communication that nothing hides {}, waiting {}", part(times.compute),
                     part(times.exposed), part(times.waiting));
}

std::string times_text(const cost::RoleTimes& times) {
  const double step = std::max(1e-9, times.sum());
  const auto part = [&](double us) { return fmt::format("{:.2f} ms ({:.0f}%)", us * 1e-3, 100 * us / step); };
  return fmt::format("computing {}, communication that nothing hides {}, bubble {}, optimizer {}, input {}",
                     part(times.compute_us), part(times.exposed_us), part(times.bubble_us), part(times.optimizer_us),
                     part(times.input_us));
}

std::vector<RankTimes> write_trace(TraceWriter& trace, const Plan& plan, const cost::Prediction& prediction,
                                   const Meetings& meetings, const std::vector<RankTrace>& ranks) {
  const std::vector<RankTimes> times = measure(plan, meetings, ranks);
  std::int64_t zero_ns = INT64_MAX;
  for (const RankTrace& rank : ranks)
    for (const Span& span : rank.spans) zero_ns = std::min(zero_ns, rank.start_ns + span.begin_ns);
  for (const RankTrace& rank : ranks) {
    const Role& role = plan.role_of(rank.rank);
    const auto number = static_cast<std::size_t>(&role - plan.roles.data());
    Row(trace, role, rank.rank, 2 * rank.rank, fmt::format("rank {}", rank.rank),
        times_text(times[static_cast<std::size_t>(rank.rank)]))
        .draw_measured(rank, zero_ns);
    // Measured ranks first, so that a rank's number is that of its process.
    Row(trace, role, plan.mesh.world_size() + rank.rank, 2 * rank.rank + 1,
        fmt::format("rank {}, predicted", rank.rank), times_text(prediction.roles[number]))
        .draw_predicted(prediction.spans[number]);
  }
  std::int64_t id = 0;
  for (const Meetings::Message& message : meetings.messages())
    trace.add_arrow(++id, "message", point_of(plan, ranks, message.from, false, zero_ns),
                    point_of(plan, ranks, message.to, true, zero_ns));
  trace.close();
  return times;
}

void write_predicted_trace(TraceWriter& trace, const Plan& plan, const cost::Prediction& prediction) {
  for (std::size_t role = 0; role < plan.roles.size(); ++role) {
    const auto number = static_cast<int>(role);
    const std::string name =
        plan.roles.size() == 1 ? "every rank, predicted" : fmt::format("stage {}, predicted", role);
    Row(trace, plan.roles[role], number, number, name, times_text(prediction.roles[role]))
        .draw_predicted(prediction.spans[role]);
  }
  trace.close();
}

}  // namespace trainer::report
