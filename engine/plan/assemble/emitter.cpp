// Names, buffers, fields and instructions of any program.
#include "engine/plan/assemble/emitter.h"

#include <algorithm>
#include <utility>

#include "engine/core/check.h"

namespace trainer {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15u + (hash >> 29);
}

std::uint64_t hash_of(const Signature& signature) {
  std::uint64_t hash = static_cast<std::uint64_t>(signature.op);
  for (const auto& [name, value] : signature.attributes.items()) {
    hash = mix(hash, std::hash<std::string>{}(name));
    hash = mix(hash, std::hash<Attribute>{}(value));
  }
  for (const TensorDesc& tensor : signature.operands) {
    hash = mix(hash, static_cast<std::uint64_t>(tensor.dtype));
    for (std::int64_t size : tensor.shape.sizes()) hash = mix(hash, static_cast<std::uint64_t>(size));
  }
  return hash;
}

}  // namespace

NameId Emitter::name(const std::string& text) {
  const auto [at, added] = names_.try_emplace(text, static_cast<NameId>(role_.names.size()));
  if (added) role_.names.push_back(text);
  return at->second;
}

// Buffers of one name succeed one another: those of a micro-batch and chunk by micro-batches, others as they are made.
// Workspaces do not: each is one launch's.
BufferId Emitter::buffer(NameId name, Category category, std::int64_t bytes, std::int32_t micro_batch, int chunk) {
  const auto program = static_cast<std::int32_t>(role_.programs.size()) - 1;
  role_.buffers.push_back({name, micro_batch, category, program, bytes, -1});
  successions_.resize(role_.buffers.size());
  if (category != Category::workspace || micro_batch < 0) {
    auto& [line, made] =
        lines_.try_emplace({program, name, chunk}, static_cast<std::int32_t>(lines_.size()), 0).first->second;
    successions_.back() = {line, micro_batch < 0 ? made : micro_batch};
    ++made;
  }
  return static_cast<BufferId>(role_.buffers.size() - 1);
}

BufferId Emitter::persistent(const std::string& text, Category category, std::int64_t bytes, Space space) {
  role_.buffers.push_back({name(text), -1, category, -1, bytes, -1});
  role_.buffers.back().space = space;
  return static_cast<BufferId>(role_.buffers.size() - 1);
}

BufferId Emitter::place_of_activation(const std::string& text, std::int64_t bytes, Space space) {
  const NameId wanted = name(text);
  for (std::size_t id = 0; id < role_.buffers.size(); ++id)
    if (const Buffer& known = role_.buffers[id]; known.name == wanted && known.program < 0)
      return static_cast<BufferId>(id);
  return persistent(text, Category::activations, bytes, space);
}

std::int32_t Emitter::field(const std::string& text, Field::Kind kind, const Spec& part, int parts) {
  const std::int64_t bytes = local_shape(part, options_.mesh).elements() * size_of(part.dtype()) * parts;
  const std::int32_t known = role_.field_index(text);
  if (known < 0) {
    role_.fields.push_back({text, kind, part, bytes});
    return static_cast<std::int32_t>(role_.fields.size() - 1);
  }
  Field& field = role_.fields[static_cast<std::size_t>(known)];
  CHECK(field.kind == kind && field.spec.dtype() == part.dtype() && std::ranges::equal(field.spec.cuts(), part.cuts()),
        "programs read the same parts of " + text);
  if (part.whole.elements() > field.spec.whole.elements()) field.spec = part;
  field.bytes = std::max(field.bytes, bytes);
  return known;
}

void Emitter::begin_program(ProgramKind kind) {
  role_.programs.push_back({kind, {}});
  for (std::size_t unit = 0; unit < states_.size(); ++unit) {
    states_[unit] = {};
    states_[unit].working = role_.units[unit].whole_working();
  }
}

Emitter::Because Emitter::because(Provenance::Phase phase, const Unit& unit) {
  Provenance why;
  why.phase = phase;
  why.chunk = why_.chunk;
  why.micro_batch = why_.micro_batch;
  why.loop = why_.loop;
  why.unit = static_cast<std::int32_t>(&unit - role_.units.data());
  return because(why);
}

void Emitter::issue(Stream stream, Instruction instruction) {
  role_.programs.back().instructions.push_back({stream, std::move(instruction), {}, why_});
}

Stream Emitter::stream_of(Axes axes) const {
  const int streams = options_.target->communication_streams();
  const bool of_layers =
      axes == Axes::of(Axis::tensor) || axes == Axes::of(Axis::context) || axes == Axes::of(Axis::expert);
  if (streams > 1 && axes.within(kTokenAxes) && !of_layers) return Stream::background;
  return streams > 2 && of_layers ? Stream::tensor : Stream::communication;
}

std::int32_t Emitter::signature_index(const Signature& signature) {
  const std::uint64_t hash = hash_of(signature);
  const auto [first, last] = signatures_.equal_range(hash);
  for (auto at = first; at != last; ++at)
    if (role_.signatures[static_cast<std::size_t>(at->second)] == signature) return at->second;
  role_.signatures.push_back(signature);
  return signatures_.emplace(hash, static_cast<std::int32_t>(role_.signatures.size() - 1))->second;
}

void Emitter::launch(const std::string& text, const Signature& signature, std::vector<Operand> operands,
                     const Affine& origin) {
  const NameId called = name(text);
  append_launch(called, signature_index(signature), options_.target->workspace_bytes(signature), std::move(operands),
                origin);
}

void Emitter::launch_on_host(const std::string& text, const Signature& signature, std::vector<Operand> operands,
                             const Affine& origin) {
  append_launch(name(text), signature_index(signature), 0, std::move(operands), origin, Stream::host);
}

void Emitter::append_launch(NameId called, std::int32_t signature, std::int64_t workspace,
                            std::vector<Operand> operands, const Affine& origin, Stream stream) {
  CHECK(operands.size() == role_.signatures[static_cast<std::size_t>(signature)].operands.size(),
        "a launch has the operands of its signature");
  Launch launch;
  launch.signature = signature;
  launch.name = called;
  launch.operands = std::move(operands);
  launch.origin = origin;
  if (workspace > 0)
    launch.workspace.region =
        whole(buffer("workspace", Category::workspace, workspace, is_pass(why_.phase) ? why_.micro_batch : -1));
  issue(stream, std::move(launch));
}

void Emitter::all_reduce(const std::string& text, DType dtype, Axes axes, const Region& region,
                         const std::vector<std::int32_t>& stages) {
  if (options_.mesh.group_size(axes, stages) == 1) return;
  issue(stream_of(axes),
        Collective{CollectiveKind::all_reduce, dtype, axes, -1, stages, name(text), {region}, {region}});
}

void Emitter::collective(const std::string& text, CollectiveKind kind, DType dtype, Axes axes, const Region& input,
                         const Region& output, int dim) {
  issue(stream_of(axes),
        Collective{kind, dtype, axes, static_cast<std::int8_t>(dim), {}, name(text), {input}, {output}});
}

void Emitter::zero(const std::string& text, const Region& region) {
  launch(text, {Op::zero, {}, {TensorDesc{DType::u8, Shape{region.bytes}}}}, {Write{region}});
}

void Emitter::copy(const std::string& text, DType dtype, const Region& from, const Region& to) {
  const TensorDesc tensor{dtype, Shape{from.bytes / size_of(dtype)}};
  launch(text, {Op::cast, {}, {tensor, tensor}}, {Read{from}, Write{to}});
}

}  // namespace trainer
