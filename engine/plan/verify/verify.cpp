// The proof in two parts: memory, role by role; then communication, with what every byte is to the other ranks.
#include "engine/plan/verify/verify.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/plan/address_map.h"
#include "engine/plan/loop.h"
#include "engine/plan/verify/communication.h"
#include "engine/plan/verify/loop.h"

namespace trainer {
namespace {

using Clock = StreamClock;
constexpr Clock kNever;

std::size_t index_of(Stream stream) { return static_cast<std::size_t>(stream); }

// ---- Memory ------------------------------------------------------------------------------------------------------

struct Content {
  BufferId owner = -1;       // whose bytes lie here; -1: nobody's
  std::int32_t writer = -1;  // -1: an earlier program
  std::size_t writer_stream = 0;
  Clock readers = kNever;  // last reader on each stream
};

class MemoryProof {
 public:
  MemoryProof(const Role& role, const MeshPoint& point, const Program& program, std::int32_t index, std::string who,
              std::vector<std::string>& found)
      : role_(role), point_(point), program_(program), index_(index), who_(std::move(who)), found_(found) {}

  void run() {
    for (std::size_t id = 0; id < role_.buffers.size(); ++id) {
      const Buffer& buffer = role_.buffers[id];
      if (buffer.program >= 0) continue;
      Content content;
      content.owner = static_cast<BufferId>(id);
      memory_.assign(buffer.offset, buffer.offset + buffer.bytes, content);
    }
    if (program_.loops() && !sound_loop()) return;
    rings_ = ends_of_rings(role_, program_);
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      meet_loop(i);
      step(i);
      end_rings(static_cast<std::int32_t>(i));
    }
    meet_loop(program_.instructions.size());
  }

 private:
  struct State {
    AddressMap<Content> memory;
    std::array<Clock, kNumStreams> clocks;
  };

  // ---- The induction over the loop (loop.h) ----

  bool sound_loop() {
    const Loop& loop = program_.loop;
    const auto size = static_cast<std::int32_t>(program_.instructions.size());
    const bool inside = loop.size() > 0 && loop.first >= loop.size() && loop.last <= size && loop.micro_batches > 0;
    if (!inside) return report(0, "has a loop that does not lie behind a round of its own"), false;
    for (std::int32_t i = loop.first; i < loop.last; ++i) {
      active_[index_of(issued(i).stream)] = true;
      if (!(next_round(issued(i - loop.size())) == issued(i)))
        return report(static_cast<std::size_t>(i), "is not what the round before the loop has in its place"), false;
    }
    return true;
  }

  // What the round behind this instruction's has in its place: the same a pass later, after the same waits.
  Issued next_round(const Issued& issued) const {
    Issued next = in_pass(role_, program_.loop, issued, 1);
    for (std::int32_t& after : next.after.at)
      if (after >= 0) after += program_.loop.size();
    return next;
  }

  const Issued& issued(std::int32_t i) const { return program_.instructions[static_cast<std::size_t>(i)]; }
  bool turning(const Region& region) const { return inside(region) && turns(role_.buffer(region.buffer), index_); }

  // All streams of the loop know of it.
  bool settled(std::int32_t touch, std::size_t stream, const std::array<Clock, kNumStreams>& clocks) const {
    for (std::size_t s = 0; s < kNumStreams; ++s)
      if (active_[s] && s != stream && clocks[s][stream] < touch) return false;
    return true;
  }

  // Any of a ring's parts may now lie at any of its addresses: each counts as touched by whatever touched one last.
  void end_rings(std::int32_t at) {
    for (auto [ring, last] = rings_.equal_range(at); ring != last; ++ring) {
      const Buffer& buffer = role_.buffer(ring->second);
      Content any;
      any.owner = ring->second;
      memory_.update(buffer.offset, buffer.offset + buffer.bytes, [&](const Content& content) {
        if (content.writer >= 0)
          any.readers[content.writer_stream] = std::max(any.readers[content.writer_stream], content.writer);
        for (std::size_t s = 0; s < kNumStreams; ++s) any.readers[s] = std::max(any.readers[s], content.readers[s]);
      });
      memory_.assign(buffer.offset, buffer.offset + buffer.bytes, any);
    }
  }

  void meet_loop(std::size_t at) {
    if (!program_.loops()) return;
    const Loop& loop = program_.loop;
    if (at == static_cast<std::size_t>(loop.first)) found_at_loop_ = {memory_, clocks_};
    if (at != static_cast<std::size_t>(loop.last)) return;
    const auto tail = at - 1;
    for (std::size_t s = 0; s < kNumStreams; ++s)
      for (std::size_t t = 0; t < kNumStreams; ++t)
        if (active_[s] && active_[t] && s != t &&
            (clocks_[s][t] < loop.first - loop.size() || clocks_[s][t] != found_at_loop_.clocks[s][t] + loop.size()))
          return report(tail, "ends a pass after which " + std::string(name_of(static_cast<Stream>(s))) +
                                  " knows less of " + std::string(name_of(static_cast<Stream>(t))) + " than before");
    const auto touched = [&](std::int32_t before, std::int32_t now, std::size_t stream) {
      return now == before || now == before + loop.size() ||
             (settled(before, stream, found_at_loop_.clocks) && settled(now, stream, clocks_));
    };
    // Where a part of a ring holds nothing of it yet, or never does, only the order of accesses counts.
    const auto same = [&](BufferId ring, const Content& before, const Content& now) {
      const bool empty = ring >= 0 && before.owner != ring && now.owner != ring;
      bool alike = (empty || before.owner == now.owner) && touched(before.writer, now.writer, now.writer_stream);
      alike = alike && (before.writer_stream == now.writer_stream ||
                        (settled(before.writer, before.writer_stream, found_at_loop_.clocks) &&
                         settled(now.writer, now.writer_stream, clocks_)));
      for (std::size_t s = 0; s < kNumStreams; ++s) alike = alike && touched(before.readers[s], now.readers[s], s);
      return alike;
    };
    const AddressMap<Content> moved =
        after_pass(found_at_loop_.memory, role_, index_, [](const Content& content, std::int64_t) { return content; });
    if (!same_everywhere(moved, memory_, role_, index_, same))
      report(tail, "ends a pass that leaves other memory than it found");
    found_at_loop_ = {};
  }

  // In the loop a region lies in one part of its ring, and waits go back a pass at most. Behind it streams that had no
  // part in it know of it.
  void step_of_loop(std::size_t i, const Issued& one, const Clock& clock) {
    const Loop& loop = program_.loop;
    const auto at = static_cast<std::int32_t>(i);
    const bool in_loop = at >= loop.first && at < loop.last;
    for (const std::int32_t after : one.after)
      if (in_loop && after >= 0 && after < loop.first - loop.size())
        report(i, "waits for what is before the round behind which the loop begins");
    for_each_access(one.instruction, [&](Access, const Region& region) {
      if (!turning(region)) return;
      const std::int64_t stride = role_.buffer(region.buffer).stride;
      if (in_loop && region.offset % stride + region.bytes > stride)
        report(i, "reaches from one part of a ring into the next");
      if (at < loop.last || active_[index_of(one.stream)]) return;
      for (std::size_t s = 0; s < kNumStreams; ++s)
        if (active_[s] && clock[s] < loop.first) report(i, "touches what a loop has left without waiting for it");
    });
  }

  void step(std::size_t i) {
    const Issued& issued = program_.instructions[i];
    const std::size_t mine = index_of(issued.stream);
    Clock& clock = clocks_[mine];
    for (std::size_t s = 0; s < kNumStreams; ++s) {
      const std::int32_t after = issued.after[s];
      if (after < 0) continue;
      if (after >= static_cast<std::int32_t>(i) ||
          index_of(program_.instructions[static_cast<std::size_t>(after)].stream) != s) {
        report(i, "waits for #" + std::to_string(after) + ", which is not before it on stream " +
                      std::string(name_of(static_cast<Stream>(s))));
        continue;
      }
      for (std::size_t t = 0; t < kNumStreams; ++t)
        clock[t] = std::max(clock[t], ended_[static_cast<std::size_t>(after)][t]);
    }
    if (program_.loops()) step_of_loop(i, issued, clock);
    if (const auto* launch = std::get_if<Launch>(&issued.instruction)) operands_fit(i, *launch);
    overlap_inside(i);
    for_each_access(issued.instruction, [&](Access access, const Region& region) {
      if (access != Access::write) read(i, region, clock);
    });
    for_each_access(issued.instruction, [&](Access access, const Region& region) {
      if (access != Access::read) write(i, region, clock);
    });
    clock[mine] = static_cast<std::int32_t>(i);
    ended_.push_back(clock);
  }

  // A kernel touches what its signature says, not what the operands say. Packed operands have the size of their buffer.
  void operands_fit(std::size_t i, const Launch& launch) {
    if (launch.signature < 0 || static_cast<std::size_t>(launch.signature) >= role_.signatures.size())
      return report(i, "names a signature that is not there");
    const Signature& signature = role_.signatures[static_cast<std::size_t>(launch.signature)];
    if (signature.operands.size() != launch.operands.size())
      return report(i, "has another number of operands than its signature");
    if (const Region& workspace = launch.workspace.region;
        workspace.bytes > 0 && inside(workspace) && role_.address(workspace, point_) % kBufferAlignment != 0)
      report(i, "has a workspace at an address that is no multiple of " + std::to_string(kBufferAlignment));
    for (std::size_t operand = 0; operand < launch.operands.size(); ++operand) {
      const TensorDesc& tensor = signature.operands[operand];
      const Region& region = region_of(launch.operands[operand]);
      const bool packed = tensor.layout != Layout::row_major;
      if (!inside(region)) continue;  // reported with its accesses
      const std::int64_t address = role_.address(region, point_);
      if (const std::int64_t multiple = alignment_of(signature, tensor); address % multiple != 0)
        report(i, "gives operand " + std::to_string(operand) + " an address that is no multiple of " +
                      std::to_string(multiple));
      const Buffer& buffer = role_.buffer(region.buffer);
      const bool whole = buffer.parts() == 1 ? region.bytes == buffer.bytes : aligned(region.bytes) == buffer.stride;
      if (packed ? !whole : region.bytes != tensor.bytes())
        report(i, "gives operand " + std::to_string(operand) + " another size than its signature");
    }
  }

  // `zero` clears any bytes: paddings, parts of a gradient. Of several rates each update reads one.
  static std::int64_t alignment_of(const Signature& signature, const TensorDesc& tensor) {
    if (signature.op == Op::zero) return 1;
    return tensor.shape.elements() == 1 ? size_of(tensor.dtype) : kOperandAlignment;
  }

  // A rank's own slice of what a collective gathers or scatters may lie in its place there.
  static bool slice_in_place(const Instruction& instruction) {
    const auto* collective = std::get_if<Collective>(&instruction);
    return collective != nullptr && collective->input.region.buffer == collective->output.region.buffer &&
           (collective->kind == CollectiveKind::all_gather || collective->kind == CollectiveKind::reduce_scatter);
  }

  // A write may coincide with a read of the same instruction, or keep clear of it; nothing between.
  void overlap_inside(std::size_t i) {
    if (slice_in_place(program_.instructions[i].instruction)) return;
    std::vector<std::pair<Access, Region>> all;
    for_each_access(program_.instructions[i].instruction,
                    [&](Access access, const Region& region) { all.emplace_back(access, region); });
    for (std::size_t a = 0; a < all.size(); ++a)
      for (std::size_t b = 0; b < all.size(); ++b) {
        if (a == b || all[a].first == Access::read || all[a].second == all[b].second) continue;
        if (inside(all[a].second) && inside(all[b].second) && overlap(all[a].second, all[b].second))
          report(i, "writes over a part of another of its operands");
        else if (all[a].second == all[b].second && all[b].first != Access::read && a < b)
          report(i, "writes the same bytes twice");
      }
  }

  bool inside(const Region& region) const {
    return region.buffer >= 0 && static_cast<std::size_t>(region.buffer) < role_.buffers.size();
  }

  bool overlap(const Region& a, const Region& b) const {
    const std::int64_t x = role_.address(a, point_), y = role_.address(b, point_);
    return x < y + b.bytes && y < x + a.bytes;
  }

  bool bounds(std::size_t i, const Region& region) {
    if (!inside(region)) return report(i, "names a buffer that is not there"), false;
    const Buffer& buffer = role_.buffer(region.buffer);
    const std::int64_t offset = role_.address(region, point_) - buffer.offset;
    if (offset < 0 || region.bytes < 0 || offset + region.bytes > buffer.bytes)
      return report(i, "reaches beyond its buffer"), false;
    if (buffer.offset < 0 || buffer.offset + buffer.bytes > role_.total_bytes)
      return report(i, "reaches beyond the allocation"), false;
    if (buffer.offset % kBufferAlignment != 0)
      return report(i, "uses a buffer whose offset is no multiple of " + std::to_string(kBufferAlignment)), false;
    if (buffer.program >= 0 && buffer.program != index_)
      return report(i, "uses scratch memory of another program"), false;
    return true;
  }

  void read(std::size_t i, const Region& region, const Clock& clock) {
    if (!bounds(i, region)) return;
    const std::size_t mine = index_of(program_.instructions[i].stream);
    const std::int64_t first = role_.address(region, point_);
    bool undefined = false, taken = false, unordered = false;
    memory_.update(first, first + region.bytes, [&](Content& content) {
      undefined = undefined || content.owner < 0;
      taken = taken || (content.owner >= 0 && content.owner != region.buffer);
      unordered = unordered || !before(content, clock);
      content.readers[mine] = static_cast<std::int32_t>(i);
    });
    if (undefined) report(i, "reads bytes that nothing has written");
    if (taken) report(i, "reads bytes that another buffer has taken over");
    if (unordered) report(i, "reads without waiting for the write");
  }

  void write(std::size_t i, const Region& region, const Clock& clock) {
    if (!bounds(i, region)) return;
    const std::size_t mine = index_of(program_.instructions[i].stream);
    const std::int64_t first = role_.address(region, point_);
    bool unordered = false, foreign = false;
    Content written;
    written.owner = region.buffer;
    written.writer = static_cast<std::int32_t>(i);
    written.writer_stream = mine;
    memory_.replace(first, first + region.bytes, written, [&](const Content& content) {
      bool ordered = before(content, clock);
      for (std::size_t s = 0; s < kNumStreams; ++s) ordered = ordered && (s == mine || content.readers[s] <= clock[s]);
      unordered = unordered || !ordered;
      foreign =
          foreign || (content.owner >= 0 && content.owner != region.buffer && role_.buffer(content.owner).program < 0);
    });
    if (unordered) report(i, "writes without waiting for an earlier access of the same memory");
    if (foreign) report(i, "writes over persistent memory of another buffer");
  }

  static bool before(const Content& content, const Clock& clock) {
    return content.writer < 0 || content.writer <= clock[content.writer_stream];
  }

  void report(std::size_t i, const std::string& what) { found_.push_back(place_of(who_, role_, program_, i) + what); }

  const Role& role_;
  const MeshPoint point_;
  const Program& program_;
  std::int32_t index_;
  std::string who_;
  std::vector<std::string>& found_;
  AddressMap<Content> memory_;
  std::array<Clock, kNumStreams> clocks_;
  std::vector<Clock> ended_;
  std::array<bool, kNumStreams> active_{};  // in the loop
  State found_at_loop_;
  std::multimap<std::int32_t, BufferId> rings_;  // by their last instruction
};

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
  if (!program.loops()) return "";
  std::int32_t listed = 0;
  for (const Issued& issued : program.instructions) listed = std::max(listed, pass_micro_batch(issued) + 1);
  const std::int64_t all = listed + static_cast<std::int64_t>(program.loop.times - 1) * program.loop.micro_batches;
  const auto index = static_cast<std::int32_t>(&program - role.programs.data());
  for (const Buffer& buffer : role.buffers)
    if (buffer.program == index && buffer.category == Category::inputs && buffer.stride > 0 &&
        (buffer.parts() != all || buffer.advance != program.loop.micro_batches))
      return "has a loop over another number of micro-batches than " + role.name(buffer.name);
  return "";
}

// What the flow of facts takes for granted about a role's units, fields and scalars; empty if it may.
std::string unsound(const Role& role, const Mesh& mesh) {
  const auto persistent = [&](BufferId id) {
    return id >= 0 && static_cast<std::size_t>(id) < role.buffers.size() && role.buffer(id).program < 0;
  };
  const auto inside = [&](const Region& region) {
    if (!persistent(region.buffer) || region.offset < 0 || region.bytes < 0) return false;
    const std::int64_t last = region.offset + (mesh.group_size(region.over) - 1) * region.step;
    return region.step >= 0 && last + region.bytes <= role.buffer(region.buffer).bytes;
  };
  for (const Buffer& buffer : role.buffers)
    if (buffer.stride < 0 || buffer.advance < 0 || buffer.stride % kBufferAlignment != 0 ||
        (buffer.stride > 0 && buffer.program < 0))
      return "has a ring that goes around in no program";
  for (const Program& program : role.programs)
    if (const std::string why = unsound_loop(role, program); !why.empty()) return why;
  for (BufferId id : {role.scalars, role.applied, role.good_steps})
    if (id != -1 && !persistent(id)) return "names scalars that are not there";
  for (const Unit& unit : role.units) {
    std::int64_t end = 0;
    bool sound = unit.find(Slot::Kind::working) != nullptr &&
                 unit.trained() == (unit.find(Slot::Kind::master) != nullptr) && unit.elements > 0;
    for (const UnitTensor& tensor : unit.tensors) {
      sound =
          sound && sliced_in_order(tensor.spec, Axes::of(Axis::tensor)) && tensor.spec.format == Format(unit.compute);
      sound = sound && tensor.offset >= end && tensor.elements > 0 &&
              tensor.elements == local_shape(tensor.spec, mesh).elements();
      end = tensor.offset + tensor.elements;
    }
    // A slot is what its spec says of the unit: all of it, or an equal slice.
    for (const Slot& slot : unit.slots) {
      if (!slot.persistent) continue;
      const std::int64_t ranks = slot.sliced() ? mesh.group_size(axes_of(slot.spec)) : 1;
      const Shape expected = slot.own() ? Shape{mesh.group_size(kTokenAxes), unit.elements} : Shape{unit.elements};
      const bool flat = std::all_of(slot.spec.cuts().begin(), slot.spec.cuts().end(),
                                    [](const Cut& cut) { return cut.as == Placement::shard(0); });
      sound = sound && flat && slot.spec.whole == expected && unit.elements % ranks == 0;
      sound = sound && sliced_in_order(slot.spec, slot.own() ? kTokenAxes : kSliceAxes);
      sound = sound && (!slot.own() || mesh.active(kTokenAxes).within(axes_of(slot.spec)));
      sound = sound && inside(slot.region) && slot.region.bytes == bytes_of(slot.spec.format, unit.elements / ranks);
      const bool is_master = slot.kind == Slot::Kind::master, is_working = slot.kind == Slot::Kind::working;
      sound = sound && (!is_master || slot.spec.format == Format(DType::f32)) &&
              (!is_working || slot.spec.format == Format(unit.compute));
    }
    for (const Slot& slot : unit.slots)
      if (sound && slot.kind == Slot::Kind::state)
        sound = slot.own() || axes_of(slot.spec) == axes_of(unit.parameters().spec);
    if (!sound || end > unit.elements) return "has no place for " + unit.name;
  }
  for (const Field& field : role.fields)
    if (!sliced_in_order(field.spec, field.kind == Field::Kind::batch ? kTokenAxes : Axes{}))
      return "has a field that no loader gives in such parts: " + field.name;
  for (const Field& field : role.fields)
    if (field.part_bytes(mesh) <= 0 || field.bytes <= 0 || field.bytes % field.part_bytes(mesh) != 0)
      return "has a field that is not made of parts: " + field.name;
  for (const Program& program : role.programs)
    for (const Issued& issued : program.instructions) {
      std::int32_t field = 0;
      if (const auto* in = std::get_if<CopyIn>(&issued.instruction))
        field = in->field;
      else if (const auto* out = std::get_if<CopyOut>(&issued.instruction))
        field = out->field;
      else
        continue;
      if (field < 0 || static_cast<std::size_t>(field) >= role.fields.size()) return "copies a field that is not there";
    }
  return "";
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

}  // namespace

std::vector<std::string> violations(const Plan& plan) {
  std::vector<std::string> found;
  if (static_cast<int>(plan.roles.size()) != plan.mesh.size(Axis::pipeline))
    return {"a plan has one role a pipeline stage"};
  for (std::size_t stage = 0; stage < plan.roles.size(); ++stage) {
    const Role& role = plan.roles[stage];
    if (role.programs.size() != plan.roles[0].programs.size()) return {"the roles of a plan have different programs"};
    for (std::size_t program = 0; program < role.programs.size(); ++program)
      if (role.programs[program].kind != plan.roles[0].programs[program].kind)
        return {"the roles of a plan have different programs"};
  }
  found = in_order(plan.roles.size(), [&](std::size_t stage, std::vector<std::string>& of_role) {
    const Role& role = plan.roles[stage];
    for (std::size_t program = 0; program < role.programs.size(); ++program)
      for (const MeshPoint& point : telling_points(plan.mesh, moving(role, role.programs[program])))
        MemoryProof(role, point, role.programs[program], static_cast<std::int32_t>(program),
                    "role " + std::to_string(stage), of_role)
            .run();
  });
  if (!found.empty()) return found;
  for (std::size_t stage = 0; stage < plan.roles.size(); ++stage)
    if (const std::string why = unsound(plan.roles[stage], plan.mesh); !why.empty())
      return {"role " + std::to_string(stage) + " " + why};
  std::vector<std::pair<std::size_t, MeshPoint>> proofs;
  for (std::size_t program = 0; program < plan.roles[0].programs.size(); ++program) {
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

void verify(const Plan& plan) {
  const std::vector<std::string> found = violations(plan);
  if (found.empty()) return;
  std::string text = "the plan does not hold:";
  for (std::size_t i = 0; i < std::min<std::size_t>(found.size(), 5); ++i) text += "\n  " + found[i];
  throw Bug(text);
}

}  // namespace trainer
