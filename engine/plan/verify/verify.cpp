// The proof in two parts: memory, role by role; then communication, with what every byte is to the other ranks.
#include "engine/plan/verify/verify.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/plan/loop.h"
#include "engine/plan/verify/communication.h"
#include "engine/plan/verify/memory_proof.h"

namespace trainer {
namespace {

// The axes along which a region of the program, or of the role's units, lies elsewhere from rank to rank.
Axes moving(const Role& role, const Program& program) {
  Axes axes;
  for (const Unit& unit : role.units)
    for (const Slot& slot : unit.slots) axes = axes | slot.region.over;
  for (const Issued& issued : program.instructions)
    for_each_access(issued.instruction, [&](Access, const Region& region) { axes = axes | region.over; });
  return axes;
}

// Along the axes that move regions, addresses are affine in a rank's index: what holds at its ends and beside the first
// holds between.
std::vector<MeshPoint> telling_points(const Mesh& mesh, Axes axes) {
  const int size = mesh.group_size(axes);
  std::vector<MeshPoint> points;
  for (const int index : size <= 2 ? std::vector<int>{0, size - 1} : std::vector<int>{0, 1, size - 1})
    if (points.empty() || index > 0) points.push_back({mesh, mesh.member(index, axes)});
  return points;
}

// Whether a tensor that is held whole or in parts, and is no sum, is sliced along some of `axes`, in the numbering of
// ranks.
bool sliced_in_order(const Spec& spec, Axes axes) {
  const auto cuts = spec.cuts();
  return spec.partial.empty() && axes_of(spec).within(axes) &&
         std::is_sorted(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) { return a.axis < b.axis; });
}

// A step takes every micro-batch of the batch once: as many as its input has parts.
std::string unsound_loop(const Role& role, const Program& program) {
  if (!program.repeats()) return "";
  const Loop& loop = program.loops.front();
  std::int32_t listed = 0;
  for (const Issued& issued : program.instructions) listed = std::max(listed, pass_micro_batch(issued) + 1);
  const std::int64_t all = listed + static_cast<std::int64_t>(loop.times - 1) * loop.micro_batches;
  const auto index = static_cast<std::int32_t>(&program - role.programs.data());
  for (const Buffer& buffer : role.buffers)
    if (buffer.program == index && buffer.category == Category::inputs && buffer.stride > 0 &&
        (buffer.parts() != all || buffer.advance != loop.micro_batches))
      return "has a loop over another number of micro-batches than " + role.name(buffer.name);
  return "";
}

bool is_persistent(const Role& role, BufferId id) {
  return id >= 0 && static_cast<std::size_t>(id) < role.buffers.size() && role.buffer(id).program < 0;
}

bool inside_persistent(const Role& role, const Mesh& mesh, const Region& region) {
  if (!is_persistent(role, region.buffer) || region.offset < 0 || region.bytes < 0) return false;
  const std::int64_t last = region.offset + (mesh.group_size(region.over) - 1) * region.step;
  return region.step >= 0 && last + region.bytes <= role.buffer(region.buffer).bytes;
}

// A slot is what its spec says of the unit: all of it, or an equal slice.
bool sound_slot(const Role& role, const Mesh& mesh, const Unit& unit, const Slot& slot) {
  const std::int64_t ranks = slot.sliced() ? mesh.group_size(axes_of(slot.spec)) : 1;
  const Shape expected = slot.own() ? Shape{mesh.group_size(kTokenAxes), unit.elements} : Shape{unit.elements};
  const bool flat = std::ranges::all_of(slot.spec.cuts(), [](const Cut& cut) { return cut.as == Placement::shard(0); });
  if (!flat || slot.spec.whole != expected || unit.elements % ranks != 0) return false;
  if (!sliced_in_order(slot.spec, slot.own() ? kTokenAxes : unit.slice_axes())) return false;
  if (slot.own() && !mesh.active(kTokenAxes).within(axes_of(slot.spec))) return false;
  if (!inside_persistent(role, mesh, slot.region)) return false;
  if (slot.region.bytes != bytes_of(slot.spec.format, unit.elements / ranks)) return false;
  const bool is_master = slot.kind == Slot::Kind::master, is_working = slot.kind == Slot::Kind::working;
  return (!is_master || slot.spec.format == Format(DType::f32)) &&
         (!is_working || slot.spec.format == Format(unit.compute));
}

bool sound_tensors(const Unit& unit, const Mesh& mesh) {
  std::int64_t end = 0;
  for (const UnitTensor& tensor : unit.tensors) {
    if (!sliced_in_order(tensor.spec, Axis::expert | Axis::tensor) || tensor.spec.format != Format(unit.compute))
      return false;
    if ((axes_of(tensor.spec) & kTokenAxes) != unit.own_axes()) return false;
    if (tensor.offset < end || tensor.elements <= 0 || tensor.elements != local_shape(tensor.spec, mesh).elements())
      return false;
    end = tensor.offset + tensor.elements;
  }
  return end <= unit.elements;
}

bool sound_unit(const Role& role, const Mesh& mesh, const Unit& unit) {
  if (unit.find(Slot::Kind::working) == nullptr || unit.elements <= 0) return false;
  if (unit.trained() != (unit.find(Slot::Kind::master) != nullptr)) return false;
  if (!sound_tensors(unit, mesh)) return false;
  for (const Slot& slot : unit.slots)
    if (slot.persistent && !sound_slot(role, mesh, unit, slot)) return false;
  return std::ranges::all_of(unit.slots, [&](const Slot& slot) {
    return slot.kind != Slot::Kind::state || slot.own() || axes_of(slot.spec) == axes_of(unit.parameters().spec);
  });
}

std::string unsound_fields(const Role& role, const Mesh& mesh) {
  for (const Field& field : role.fields)
    if (!sliced_in_order(field.spec, field.kind == Field::Kind::batch ? kTokenAxes : Axes{}))
      return "has a field that no loader gives in such parts: " + field.name;
  for (const Field& field : role.fields)
    if (field.part_bytes(mesh) <= 0 || field.bytes <= 0 || field.bytes % field.part_bytes(mesh) != 0)
      return "has a field that is not made of parts: " + field.name;
  for (const Program& program : role.programs)
    for (const Issued& issued : program.instructions) {
      const auto* in = std::get_if<CopyIn>(&issued.instruction);
      const auto* out = std::get_if<CopyOut>(&issued.instruction);
      if (in == nullptr && out == nullptr) continue;
      const std::int32_t field = in != nullptr ? in->field : out->field;
      if (field < 0 || static_cast<std::size_t>(field) >= role.fields.size()) return "copies a field that is not there";
    }
  return "";
}

// What the flow of facts takes for granted about a role's units, fields and scalars; empty if it may.
std::string unsound(const Role& role, const Mesh& mesh) {
  for (const Buffer& buffer : role.buffers)
    if (buffer.stride < 0 || buffer.advance < 0 || buffer.stride % kBufferAlignment != 0 ||
        (buffer.stride > 0 && buffer.program < 0) || (buffer.own_parts && buffer.stride == 0))
      return "has a ring that goes around in no program";
  for (const Program& program : role.programs)
    if (const std::string why = unsound_loop(role, program); !why.empty()) return why;
  for (BufferId id : {role.scalars, role.applied, role.good_steps})
    if (id != -1 && !is_persistent(role, id)) return "names scalars that are not there";
  for (const Unit& unit : role.units)
    if (!sound_unit(role, mesh, unit)) return "has no place for " + unit.name;
  return unsound_fields(role, mesh);
}

// What `count` independent proofs find, one after the other.
template <typename Proof>
std::vector<std::string> in_order(std::size_t count, const Proof& proof) {
  std::vector<std::vector<std::string>> found(count);
  for_each_index(count, [&](std::size_t i) { proof(i, found[i]); });
  std::vector<std::string> all;
  for (const std::vector<std::string>& some : found) all.insert(all.end(), some.begin(), some.end());
  return all;
}

// Of some programs.
std::vector<std::string> violations_of(const Plan& plan, const std::vector<std::size_t>& programs) {
  std::vector<std::string> found =
      in_order(plan.roles.size(), [&](std::size_t stage, std::vector<std::string>& of_role) {
        const Role& role = plan.roles[stage];
        for (const std::size_t program : programs)
          for (const MeshPoint& point : telling_points(plan.mesh, moving(role, role.programs[program])))
            prove_memory(role, program, point, "role " + std::to_string(stage), of_role);
      });
  if (!found.empty()) return found;
  for (std::size_t stage = 0; stage < plan.roles.size(); ++stage)
    if (const std::string why = unsound(plan.roles[stage], plan.mesh); !why.empty())
      return {"role " + std::to_string(stage) + " " + why};
  std::vector<std::pair<std::size_t, MeshPoint>> proofs;
  for (const std::size_t program : programs) {
    Axes axes;
    for (const Role& role : plan.roles) axes = axes | moving(role, role.programs[program]);
    const int last = plan.mesh.group_size(axes) - 1;
    proofs.push_back({program, {plan.mesh, {}}});
    if (last > 0) proofs.push_back({program, {plan.mesh, plan.mesh.member(last, axes)}});
  }
  return in_order(proofs.size(), [&](std::size_t proof, std::vector<std::string>& of_program) {
    prove_communication(plan, proofs[proof].first, proofs[proof].second, of_program);
  });
}

std::vector<std::size_t> with_several_loops(const Plan& plan) {
  std::vector<std::size_t> programs;
  for (std::size_t program = 0; program < plan.roles.front().programs.size(); ++program)
    if (std::ranges::any_of(plan.roles, [&](const Role& role) { return role.programs[program].loops.size() > 1; }))
      programs.push_back(program);
  return programs;
}

// Every node of a pass runs for every micro-batch: each op that it has, but for what clears memory once.
void complete_passes(const Role& role, const Program& program, const std::string& who,
                     std::vector<std::string>& found) {
  const auto op_of = [&](const Issued& issued) {
    const auto* launch = std::get_if<Launch>(&issued.instruction);
    return launch == nullptr ? std::optional<Op>() : role.signatures[static_cast<std::size_t>(launch->signature)].op;
  };
  using Key = std::tuple<Provenance::Phase, std::int16_t, std::int32_t, std::optional<Op>>;
  std::map<Key, std::set<std::int32_t>> passes;
  std::int32_t micro_batches = 0;
  for (const Issued& issued : program.instructions) {
    const std::optional<Op> op = op_of(issued);
    if (pass_micro_batch(issued) < 0 || op == Op::zero) continue;
    passes[{issued.why.phase, issued.why.chunk, issued.why.node, op}].insert(issued.why.micro_batch);
    micro_batches = std::max(micro_batches, issued.why.micro_batch + 1);
  }
  for (const auto& [node, of] : passes)
    if (std::ssize(of) != micro_batches)
      return found.push_back(place_of(who, role, program, 0) + "begins a step that leaves out node " +
                             std::to_string(std::get<2>(node)) + " of some micro-batch");
}

// Of these programs, with so many passes over each loop written out.
std::vector<std::string> violations_of_passes(const Plan& plan, const std::vector<std::size_t>& programs,
                                              std::int32_t count) {
  const Plan passes = unrolled(plan, count);
  std::vector<std::string> found = violations_of(passes, programs);
  for (std::size_t stage = 0; stage < passes.roles.size(); ++stage)
    for (const std::size_t program : programs)
      complete_passes(passes.roles[stage], passes.roles[stage].programs[program], "role " + std::to_string(stage),
                      found);
  return found;
}

}  // namespace

std::vector<std::string> violations(const Plan& plan) {
  if (static_cast<int>(plan.roles.size()) != plan.mesh.size(Axis::pipeline))
    return {"a plan has one role a pipeline stage"};
  for (std::size_t stage = 0; stage < plan.roles.size(); ++stage) {
    const Role& role = plan.roles[stage];
    if (role.programs.size() != plan.roles[0].programs.size()) return {"the roles of a plan have different programs"};
    for (std::size_t program = 0; program < role.programs.size(); ++program)
      if (role.programs[program].kind != plan.roles[0].programs[program].kind)
        return {"the roles of a plan have different programs"};
  }
  std::vector<std::size_t> all(plan.roles.front().programs.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::string> found = violations_of(plan, all);
  const std::vector<std::size_t> several = with_several_loops(plan);
  for (const std::int32_t passes : {2, 3})
    if (found.empty() && !several.empty()) found = violations_of_passes(plan, several, passes);
  return found;
}

void verify(const Plan& plan) {
  const std::vector<std::string> found = violations(plan);
  if (found.empty()) return;
  std::string text = "the plan does not hold:";
  for (std::size_t i = 0; i < std::min<std::size_t>(found.size(), 5); ++i) text += "\n  " + found[i];
  throw Bug(text);
}

}  // namespace trainer
