// Instructions to trace events.
#include "tools/trace.h"

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

void write_rank(TraceWriter& trace, const Role& role, const RankTrace& rank) {
  const Program* step = role.program("step");
  CHECK(step != nullptr && step->instructions.size() == rank.spans.size(), "a span for every instruction");
  trace.name_rank(rank.rank, "rank " + std::to_string(rank.rank));
  for (int stream = 0; stream < kNumStreams; ++stream) trace.name_stream(rank.rank, stream, name_of(static_cast<Stream>(stream)));
  for (std::size_t i = 0; i < rank.spans.size(); ++i) {
    const Issued& issued = step->instructions[i];
    const Span& span = rank.spans[i];
    const std::string title = title_of(role, issued.instruction);
    const double flops = flops_of(role, issued.instruction);
    const std::string printed = print(role, issued.instruction);
    TraceEvent event{rank.rank,
                     static_cast<int>(issued.stream),
                     title,
                     category_of(issued.instruction),
                     static_cast<double>(span.begin_ns) * 1e-3,
                     static_cast<double>(span.end_ns - span.begin_ns) * 1e-3,
                     {},
                     {}};
    event.numbers = {{"index", static_cast<double>(i)}, {"bytes", static_cast<double>(bytes_of(issued.instruction))}};
    if (flops > 0) event.numbers.emplace_back("flops", flops);
    event.texts = {{"instruction", printed}};
    trace.add(event);
  }
}

}  // namespace

void write_trace(TraceWriter& trace, const Plan& plan, const std::vector<RankTrace>& ranks) {
  for (const RankTrace& rank : ranks) write_rank(trace, plan.role_of(rank.rank), rank);
  trace.close();
}

}  // namespace trainer::tools
