// The text form of a plan, written: one line a fact, words separated by single spaces, names without blanks.
// read_text.cpp reads it.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <type_traits>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/parallel.h"
#include "engine/plan/plan.h"
#include "engine/plan/real_text.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trainer {
namespace {

// Appends words and numbers; a plan has millions of them, so they are written straight into memory that is there
// already. The text has its length when the Out is gone.
class Out {
 public:
  explicit Out(std::string& text) : text_(text), size_(text.size()) {}
  Out(const Out&) = delete;
  Out& operator=(const Out&) = delete;
  ~Out() { text_.resize(size_); }

  template <typename T>
  Out& operator<<(const T& one) {
    if constexpr (std::is_same_v<T, char>) {
      *room(1) = one;
      ++size_;
    } else if constexpr (std::is_integral_v<T>) {
      constexpr std::size_t kDigits = 24;
      char* const at = room(kDigits);
      size_ += static_cast<std::size_t>(std::to_chars(at, at + kDigits, one).ptr - at);
    } else if constexpr (std::is_convertible_v<T, std::string_view>) {
      const std::string_view word(one);
      std::memcpy(room(word.size()), word.data(), word.size());
      size_ += word.size();
    } else {
      put(one);
    }
    return *this;
  }

 private:
  void put(const Region& region) {
    *this << 'b' << region.buffer << '+' << region.offset << ':' << region.bytes;
    if (region.step != 0) *this << '/' << region.step << '*' << region.over;
  }
  void put(const Affine& affine) {
    *this << affine.base;
    for (Axis axis : kAxes)
      if (const std::int64_t per = affine.per[static_cast<std::size_t>(axis)]; per != 0)
        *this << ',' << per << '*' << name_of(axis);
  }
  void put(Axes axes) {
    std::string_view before = "";
    for (Axis axis : axes) *this << std::exchange(before, ",") << name_of(axis);
    if (before.empty()) *this << "none";
  }
  void put(const Attribute& attribute) {
    if (const auto* flag = std::get_if<bool>(&attribute))
      *this << (*flag ? "true" : "false");
    else if (const auto* integer = std::get_if<std::int64_t>(&attribute))
      *this << *integer;
    else if (const auto* real = std::get_if<double>(&attribute))
      *this << real_text(*real);
    else
      *this << '\'' << std::get<std::string>(attribute) << '\'';
  }
  void put(const Shape& shape) {
    std::string_view before = "[";
    for (std::int64_t size : shape.sizes()) *this << std::exchange(before, ",") << size;
    *this << (shape.rank() == 0 ? "[]" : "]");
  }
  void put(const TensorDesc& tensor) { *this << name_of(tensor.dtype) << tensor.shape; }
  // As "f32[24,5]@tensor:0/3/2": a cut's dim, parts and lead, and "/zigzag"; "i8/256[64]" in blocks; "+shard" is a sum
  // over an axis.
  void put(const Spec& spec) {
    *this << name_of(spec.dtype());
    if (spec.format.block != 0) *this << '/' << spec.format.block;
    *this << spec.whole;
    for (const Cut& cut : spec.cuts()) {
      *this << '@' << name_of(cut.axis) << ':' << static_cast<int>(cut.as.dim) << '/' << cut.as.parts << '/'
            << cut.as.lead;
      if (cut.as.is_zigzag()) *this << "/zigzag";
    }
    for (Axis axis : spec.partial) *this << '+' << name_of(axis);
  }

  char* room(std::size_t bytes) {
    if (text_.size() - size_ < bytes) text_.resize(std::max<std::size_t>(256, 2 * (size_ + bytes)));
    return text_.data() + size_;
  }

  std::string& text_;
  std::size_t size_;
};

constexpr std::string_view kAccessNames[] = {"read", "write", "update"};

struct InstructionPrinter {
  const Role& role;
  Out& out;

  void operator()(const Launch& launch) const {
    const Signature& signature = role.signatures[static_cast<std::size_t>(launch.signature)];
    out << "launch " << name_of(signature.op) << " s" << launch.signature << ' ' << role.name(launch.name);
    for (const Operand& operand : launch.operands)
      out << ' ' << kAccessNames[operand.index()] << ' ' << region_of(operand);
    if (launch.workspace.region.bytes > 0) out << " workspace " << launch.workspace.region;
    if (launch.origin != Affine{}) out << " origin " << launch.origin;
    if (launch.origin_step != 0) out << " step " << launch.origin_step;
  }
  void operator()(const Collective& collective) const {
    out << name_of(collective.kind) << ' ' << name_of(collective.dtype) << ' ' << collective.axes;
    if (collective.dim >= 0) out << '/' << static_cast<int>(collective.dim);
    for (std::size_t i = 0; i < collective.stages.size(); ++i) out << (i == 0 ? '@' : '+') << collective.stages[i];
    out << ' ' << role.name(collective.name) << " in " << collective.input.region << " out "
        << collective.output.region;
  }
  void operator()(const Exchange& exchange) const {
    out << "exchange " << role.name(exchange.name);
    for (const auto& send : exchange.sends) part(" send ", send);
    for (const auto& receive : exchange.receives) part(" receive ", receive);
  }
  template <typename Part>
  void part(std::string_view verb, const Part& part) const {
    const Carried& what = part.carried;
    out << verb << name_of(part.axis) << ' ' << part.peer << ' ' << part.region.region
        << (what.backward ? " backward=" : " forward=") << what.boundary << " mb=" << what.micro_batch
        << " value=" << what.value;
    if (part.loop != 0) out << " loop=" << part.loop;
  }
  void operator()(const CopyIn& copy) const {
    out << "copy_in f" << copy.field << '+' << copy.field_offset << ' ' << copy.region.region;
  }
  void operator()(const CopyOut& copy) const {
    out << "copy_out f" << copy.field << '+' << copy.field_offset << ' ' << copy.region.region;
  }
  void operator()(const Move& move) const {
    out << "move " << role.name(move.name) << " from " << move.from.region << " to " << move.to.region;
  }
};

// Ends the line of an instruction; what it has none of is left out.
void print_why(const Provenance& why, Out& out) {
  out << " # " << name_of(why.phase);
  if (why.recomputed) out << " recomputed";
  if (why.micro_batch >= 0) out << " mb=" << why.micro_batch;
  if (why.chunk >= 0) out << " chunk=" << why.chunk;
  if (why.unit >= 0) out << " unit=" << why.unit;
  if (why.node >= 0) out << " node=" << why.node;
  if (why.loop != 0) out << " loop=" << why.loop;
  out << '\n';
}

void print_unit(const Unit& unit, Out& out) {
  out << "unit " << unit.name << ' ' << name_of(unit.compute) << " elements=" << unit.elements
      << " decay=" << unit.decay_elements << " optimizer=" << unit.optimizer << " stages=";
  for (std::size_t i = 0; i < unit.stages.size(); ++i) out << (i == 0 ? "" : "+") << unit.stages[i];
  out << (unit.stages.empty() ? "own" : "") << (unit.across_replicas ? " across_replicas" : "") << '\n';
  for (const Slot& slot : unit.slots) {
    out << "slot " << name_of(slot.kind) << ' ' << slot.name << ' ' << slot.spec << ' ' << slot.region;
    if (slot.persistent) out << " persistent";
    if (slot.saved) out << " saved";
    out << '\n';
  }
  for (const UnitTensor& tensor : unit.tensors) {
    out << "tensor " << tensor.name << ' ' << tensor.spec << " at=" << tensor.offset << " elements=" << tensor.elements
        << " partial=" << tensor.partial << " stddev=" << Attribute(tensor.init.stddev)
        << " constant=" << Attribute(tensor.init.constant);
    if (tensor.init.uniform > 0) out << " uniform=" << Attribute(tensor.init.uniform);
    if (tensor.init.sinusoids) out << " sinusoids";
    if (!tensor.init.copy_of.empty()) out << " copy_of=" << tensor.init.copy_of;
    out << '\n';
  }
}

void print_role(const Role& role, std::size_t index, Out& out) {
  out << "role " << index << " persistent=" << role.persistent_bytes << " total=" << role.total_bytes;
  if (role.host_bytes != 0) out << " host=" << role.host_bytes;
  if (role.disk_bytes != 0) out << " disk=" << role.disk_bytes;
  out << " scalars=b" << role.scalars << " applied=b" << role.applied;
  if (role.good_steps >= 0) out << " good_steps=b" << role.good_steps;
  out << '\n';
  for (std::size_t id = 0; id < role.buffers.size(); ++id) {
    const Buffer& buffer = role.buffers[id];
    out << "buffer " << id << ' ' << role.name(buffer.name) << ' ' << name_of(buffer.category)
        << " mb=" << buffer.micro_batch << " program=" << buffer.program << " bytes=" << buffer.bytes
        << " at=" << buffer.offset - begin_of(buffer.space);
    if (buffer.space != Space::device) out << " on=" << name_of(buffer.space);
    if (buffer.stride != 0) out << " stride=" << buffer.stride << " advance=" << buffer.advance;
    if (buffer.own_parts) out << " own_parts";
    out << '\n';
  }
  for (std::size_t id = 0; id < role.fields.size(); ++id) {
    const Field& field = role.fields[id];
    out << "field " << id << ' ' << field.name << ' ' << name_of(field.kind) << ' ' << field.spec << ' ' << field.bytes
        << '\n';
  }
  for (std::size_t id = 0; id < role.signatures.size(); ++id) {
    const Signature& signature = role.signatures[id];
    out << "signature " << id << ' ' << name_of(signature.op);
    for (const auto& [name, value] : signature.attributes.items()) out << ' ' << name << '=' << value;
    for (const TensorDesc& tensor : signature.operands) out << ' ' << tensor;
    out << '\n';
  }
  for (const Unit& unit : role.units) print_unit(unit, out);
  for (const State& state : role.states) {
    out << "state " << state.name << ' ' << state.spec << ' ' << state.region;
    if (state.initial) out << " initial=" << Attribute(*state.initial);
    out << '\n';
  }
  const InstructionPrinter print_instruction{role, out};
  for (const Program& program : role.programs) {
    out << "program " << name_of(program.kind);
    for (const Loop& loop : program.loops)
      out << " loop=" << loop.first << '-' << loop.last << " times=" << loop.times
          << " micro_batches=" << loop.micro_batches;
    out << '\n';
    for (const Issued& issued : program.instructions) {
      out << name_of(issued.stream);
      for (std::size_t s = 0; s < kNumStreams; ++s)
        if (issued.after[s] >= 0) out << " after=" << name_of(static_cast<Stream>(s)) << ':' << issued.after[s];
      out << ' ';
      std::visit(print_instruction, issued.instruction);
      print_why(issued.why, out);
    }
  }
}

// The plan's text piece by piece, in order: `take` is given each once. Roles are printed a few at a time, as many as
// there are processors.
template <typename Take>
void print_pieces(const Plan& plan, const Take& take) {
  std::string head;
  {
    Out out(head);
    out << "plan 1\nmesh";
    for (Axis axis : kAxes)
      if (plan.mesh.size(axis) > 1) out << ' ' << name_of(axis) << '=' << plan.mesh.size(axis);
    out << (plan.drifts ? " drifts\n" : "\n");
  }
  take(head);
  std::vector<std::string> texts(num_processors());
  for (std::size_t first = 0; first < plan.roles.size(); first += texts.size()) {
    const std::size_t count = std::min(texts.size(), plan.roles.size() - first);
    for_each_index(count, [&](std::size_t i) {
      texts[i].clear();
      Out out(texts[i]);
      print_role(plan.roles[first + i], first + i, out);
    });
    for (std::size_t i = 0; i < count; ++i) take(texts[i]);
  }
}

}  // namespace

std::string print(const Role& role, const Instruction& instruction) {
  std::string text;
  {
    Out out(text);
    std::visit(InstructionPrinter{role, out}, instruction);
  }
  return text;
}

std::string print(const Plan& plan) {
  std::string all;
  print_pieces(plan, [&](const std::string& text) { all += text; });
  return all;
}

std::string hash_of(const Plan& plan) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  print_pieces(plan, [&](const std::string& text) { XXH3_64bits_update(&state, text.data(), text.size()); });
  return fmt::format("{:016x}", XXH3_64bits_digest(&state));
}

}  // namespace trainer
