// One line for each thing that is executed or saved, in a fixed order.
#include "tests/plan/golden_text.h"

#include <cinttypes>
#include <cstdio>
#include <sstream>
#include <utility>

namespace trainer::tests {
namespace {

class Writer {
 public:
  explicit Writer(const Plan& plan) : plan_(plan) {}

  std::string plan() {
    out_ << "mesh";
    for (Axis axis : kAxes)
      if (wide(axis)) out_ << ' ' << name_of(axis) << '=' << plan_.mesh.size(axis);
    out_ << (plan_.drifts ? " drifts\n" : "\n");
    for (std::size_t i = 0; i < plan_.roles.size(); ++i) {
      out_ << "role " << i << '\n';
      role_ = &plan_.roles[i];
      role();
    }
    return out_.str();
  }

 private:
  // Axes of one rank are left out everywhere: nothing differs along them.
  bool wide(Axis axis) const { return plan_.mesh.size(axis) > 1; }

  void role() {
    const Role& role = *role_;
    out_ << "bytes persistent=" << role.persistent_bytes << " total=" << role.total_bytes << " scalars=" << role.scalars
         << " applied=" << role.applied << " good_steps=" << role.good_steps << '\n';
    for (std::size_t id = 0; id < role.buffers.size(); ++id) {
      const Buffer& buffer = role.buffers[id];
      out_ << "buffer " << id << ' ' << role.name(buffer.name) << ' ' << name_of(buffer.category)
           << " micro_batch=" << buffer.micro_batch << " program=" << buffer.program << " bytes=" << buffer.bytes
           << " offset=" << buffer.offset - begin_of(buffer.space);
      if (buffer.space != Space::device) out_ << " on=" << name_of(buffer.space);
      out_ << '\n';
    }
    for (const Field& field : role.fields) out_ << "field " << field.name << " bytes=" << field.bytes << '\n';
    for (std::size_t id = 0; id < role.signatures.size(); ++id) signature(id, role.signatures[id]);
    for (const Unit& one : role.units) unit(one);
    for (const Program& program : role.programs) {
      out_ << "program " << name_of(program.kind) << '\n';
      for (std::size_t i = 0; i < program.instructions.size(); ++i) issued(program, i);
    }
  }

  void signature(std::size_t id, const Signature& signature) {
    out_ << "signature " << id << ' ' << name_of(signature.op);
    for (const auto& [name, value] : signature.attributes.items()) {
      out_ << ' ' << name << '=';
      attribute(value);
    }
    for (const TensorDesc& operand : signature.operands)
      out_ << ' ' << name_of(operand.dtype) << ' ' << operand.shape.str();
    out_ << '\n';
  }

  void attribute(const Attribute& attribute) {
    if (const auto* number = std::get_if<double>(&attribute))
      real(*number);
    else
      std::visit([&](const auto& value) { out_ << value; }, attribute);
  }

  void real(double number) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", number);
    out_ << text;
  }

  void unit(const Unit& unit) {
    const auto range_of = [&](const auto& wanted) {
      ElementRange range;
      for (const UnitTensor& tensor : unit.tensors) {
        if (!wanted(tensor)) continue;
        if (range.size() == 0) range.first = tensor.offset;
        range.last = tensor.offset + aligned_elements(tensor.elements);
      }
      return range;
    };
    const ElementRange replicated = range_of([](const UnitTensor& tensor) { return tensor.spec.cuts().empty(); });
    const ElementRange partial = range_of([](const UnitTensor& tensor) { return !tensor.partial.empty(); });
    const auto buffer_of = [&](Slot::Kind kind) {
      return unit.find(kind) != nullptr ? unit.find(kind)->region.buffer : -1;
    };
    out_ << "unit " << unit.name << " compute=" << name_of(unit.compute) << " elements=" << unit.elements
         << " slice=" << unit.slice() << " decay=" << unit.decay_elements << " replicated=" << replicated.first << ".."
         << replicated.last << " partial=" << partial.first << ".." << partial.last << " stages=";
    for (std::int32_t stage : unit.stages) out_ << stage << ',';
    out_ << " master=";
    region(unit.parameters().region);
    out_ << " working_slice=";
    region(unit.updated_working());
    out_ << " working=" << unit.whole_working() << " gradient=" << buffer_of(Slot::Kind::gradient)
         << " residual=" << buffer_of(Slot::Kind::residual) << '\n';
    for (const Slot& slot : unit.slots) {
      const bool of_strategy = slot.kind == Slot::Kind::strategy_state;
      if (!of_strategy && slot.kind != Slot::Kind::state) continue;
      out_ << "state " << slot.name << " buffer=" << slot.region.buffer << (of_strategy ? " strategy" : " optimizer")
           << (slot.own() ? " own" : "") << '\n';
    }
    for (const UnitTensor& tensor : unit.tensors) {
      out_ << "tensor " << tensor.name << " local=" << local_shape(tensor.spec, plan_.mesh).str()
           << " whole=" << tensor.spec.whole.str() << " offset=" << tensor.offset << " cut=";
      const Placement cut = tensor.spec.on(Axis::tensor);
      if (cut.is_shard())
        out_ << int{cut.dim} << '/' << cut.parts << '/' << cut.lead;
      else
        out_ << (cut.is_partial() ? "partial" : "none");
      out_ << " stddev=";
      real(tensor.init.stddev);
      out_ << " constant=";
      real(tensor.init.constant);
      out_ << '\n';
    }
  }

  // Of a node's own kernel; what a node clears or copies before it, the next instruction being for the same, has none.
  static std::int32_t micro_batch_of(const Program& program, std::size_t index) {
    const Issued& issued = program.instructions[index];
    const bool last = index + 1 == program.instructions.size() || !(program.instructions[index + 1].why == issued.why);
    return last ? pass_micro_batch(issued) : -1;
  }

  void issued(const Program& program, std::size_t index) {
    const Issued& issued = program.instructions[index];
    micro_batch_ = micro_batch_of(program, index);
    out_ << index << ' ' << name_of(issued.stream);
    for (std::size_t s = 0; s < kNumStreams; ++s)
      if (issued.after[s] >= 0) out_ << " after=" << name_of(static_cast<Stream>(s)) << ':' << issued.after[s];
    out_ << ' ';
    std::visit([&](const auto& one) { instruction(one); }, issued.instruction);
    out_ << '\n';
  }

  void instruction(const Launch& launch) {
    out_ << "launch " << launch.signature << ' ' << role_->name(launch.name) << " micro_batch=" << micro_batch_;
    for (const Operand& operand : launch.operands) {
      static constexpr const char* kNames[] = {" read ", " write ", " update "};
      out_ << kNames[operand.index()];
      region(region_of(operand));
    }
    if (launch.workspace.region.bytes > 0) {
      out_ << " workspace ";
      region(launch.workspace.region);
    }
    out_ << " origin " << launch.origin.base;
    for (Axis axis : kAxes)
      if (const std::int64_t per = launch.origin.per[static_cast<std::size_t>(axis)]; per != 0 && wide(axis))
        out_ << '+' << per << '*' << name_of(axis);
  }

  void instruction(const Collective& collective) {
    out_ << name_of(collective.kind) << ' ' << name_of(collective.dtype) << " over ";
    for (Axis axis : kAxes)
      if (collective.axes.has(axis) && wide(axis)) out_ << name_of(axis) << ',';
    for (std::int32_t stage : collective.stages) out_ << " stage " << stage;
    out_ << ' ' << role_->name(collective.name) << " read ";
    region(collective.input.region);
    out_ << " write ";
    region(collective.output.region);
  }

  void instruction(const Exchange& exchange) {
    out_ << "exchange";
    for (const Exchange::Send& send : exchange.sends) {
      out_ << " send " << name_of(send.axis) << ' ' << send.peer << ' ';
      region(send.region.region);
    }
    for (const Exchange::Receive& receive : exchange.receives) {
      out_ << " receive " << name_of(receive.axis) << ' ' << receive.peer << ' ';
      region(receive.region.region);
    }
  }

  void instruction(const CopyIn& copy) {
    out_ << "copy_in " << role_->fields[static_cast<std::size_t>(copy.field)].name << '+' << copy.field_offset << ' ';
    region(copy.region.region);
  }
  void instruction(const CopyOut& copy) {
    out_ << "copy_out " << role_->fields[static_cast<std::size_t>(copy.field)].name << '+' << copy.field_offset << ' ';
    region(copy.region.region);
  }

  void instruction(const Move& move) {
    out_ << "move " << role_->name(move.name) << " from ";
    region(move.from.region);
    out_ << " to ";
    region(move.to.region);
  }

  // buffer+offset:bytes, and by how much it moves from one rank along the shard axis to the next.
  void region(const Region& region) {
    if (region.buffer < 0) {
      out_ << "none";
      return;
    }
    out_ << region.buffer << '+' << region.offset << ':' << region.bytes;
    if (region.step == 0) return;
    out_ << '+' << region.step;
    for (Axis axis : kAxes)
      if (region.over.has(axis) && wide(axis)) out_ << '*' << name_of(axis);
  }

  const Plan& plan_;
  const Role* role_ = nullptr;
  std::int32_t micro_batch_ = -1;  // of the instruction at hand
  std::ostringstream out_;
};

}  // namespace

std::string golden_text(const Plan& plan) { return Writer(plan).plan(); }

std::string golden_hash(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016" PRIx64, hash);
  return digits;
}

}  // namespace trainer::tests
