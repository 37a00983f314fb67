// Facts of a plan.
#include "tools/plan_report.h"

#include <algorithm>

#include "tools/strategy_json.h"
#include "tools/text.h"

namespace trainer::tools {
namespace {

struct Title {
  const Role& role;

  std::string operator()(const Launch& launch) const {
    const Signature& signature = role.signatures[static_cast<std::size_t>(launch.signature)];
    const std::string micro_batch = launch.micro_batch >= 0 ? fmt::format(" mb{}", launch.micro_batch) : "";
    return fmt::format("{} {}{}", name_of(signature.op), role.name(launch.name), micro_batch);
  }
  std::string operator()(const Collective& collective) const {
    return fmt::format("{} {}", name_of(collective.kind), role.name(collective.name));
  }
  std::string operator()(const Exchange& exchange) const { return "exchange " + role.name(exchange.name); }
  std::string operator()(const CopyIn& copy) const { return "copy_in " + role.fields[static_cast<std::size_t>(copy.field)].name; }
  std::string operator()(const CopyOut& copy) const { return "copy_out " + role.fields[static_cast<std::size_t>(copy.field)].name; }
};

}  // namespace

Json strategy_json(const Job& job, const CompiledJob& compiled) { return explicit_strategy(job.strategy, compiled.plan.mesh); }

Json mesh_json(const Mesh& mesh) {
  Json json = Json::object();
  for (Axis axis : kAxes) json[std::string(name_of(axis))] = mesh.size(axis);
  return json;
}

const MemoryReport& fullest(const CompiledJob& compiled) {
  return *std::max_element(compiled.memory.begin(), compiled.memory.end(),
                           [](const MemoryReport& a, const MemoryReport& b) { return a.peak_bytes < b.peak_bytes; });
}

Json memory_json(const CompiledJob& compiled) {
  const MemoryReport& report = fullest(compiled);
  Json categories = Json::object();
  for (int i = 0; i < kNumCategories; ++i)
    categories[std::string(name_of(static_cast<Category>(i)))] = report.by_category[static_cast<std::size_t>(i)];
  return {{"limit_bytes", compiled.limit_bytes},
          {"peak_bytes", report.peak_bytes},
          {"fits", compiled.fits},
          {"by_category", categories},
          {"peak_at", report.peak_at}};
}

std::string title_of(const Role& role, const Instruction& instruction) { return std::visit(Title{role}, instruction); }

std::vector<BufferId> alive_at(const Role& role, const Program& program, std::int32_t instruction) {
  std::vector<std::int32_t> first(role.buffers.size(), -1), last(role.buffers.size(), -1);
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    for_each_access(program.instructions[i].instruction, [&](Access, const Region& region) {
      const auto buffer = static_cast<std::size_t>(region.buffer);
      if (first[buffer] < 0) first[buffer] = static_cast<std::int32_t>(i);
      last[buffer] = static_cast<std::int32_t>(i);
    });
  std::vector<BufferId> alive;
  for (std::size_t id = 0; id < role.buffers.size(); ++id)
    if (role.buffers[id].program >= 0 && first[id] >= 0 && first[id] <= instruction && instruction <= last[id])
      alive.push_back(static_cast<BufferId>(id));
  std::stable_sort(alive.begin(), alive.end(), [&](BufferId a, BufferId b) { return role.buffer(a).bytes > role.buffer(b).bytes; });
  return alive;
}

std::string memory_line(const CompiledJob& compiled) {
  const MemoryReport& report = fullest(compiled);
  std::vector<std::pair<std::int64_t, std::string_view>> parts;
  for (int i = 0; i < kNumCategories; ++i)
    parts.emplace_back(report.by_category[static_cast<std::size_t>(i)], name_of(static_cast<Category>(i)));
  std::sort(parts.rbegin(), parts.rend());
  std::string text;
  for (const auto& [bytes, name] : parts)
    if (bytes > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, bytes_text(static_cast<double>(bytes)));
  return text;
}

std::string strategy_line(const CompiledJob& compiled) {
  const int ranks = compiled.plan.mesh.world_size();
  return ranks == 1 ? compiled.data_kind : fmt::format("{} over {} ranks", compiled.data_kind, ranks);
}

std::string batch_line(const BatchShape& batch) {
  return fmt::format("{} samples a step: {} rank{} × {} micro-batch{} × {}", batch.global, batch.data_ranks,
                     batch.data_ranks == 1 ? "" : "s", batch.micro_batches, batch.micro_batches == 1 ? "" : "es", batch.micro);
}

}  // namespace trainer::tools
