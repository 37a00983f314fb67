// The text form of a plan, read as text.cpp writes it: `line >> "buffer " >> …` mirrors `out << "buffer " << …`.
// Anything else is a DataError that names the line.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <map>
#include <span>
#include <type_traits>
#include <utility>

#include "engine/core/error.h"
#include "engine/plan/plan.h"
#include "engine/plan/real_text.h"

namespace trainer {
namespace {

// What is left of one line.
class Line {
 public:
  Line(std::string_view text, std::size_t number) : text_(text), number_(number) {}

  bool empty() const { return text_.empty(); }
  /// Whether `text` comes next; it is then read.
  bool take(std::string_view text) {
    if (!text_.starts_with(text)) return false;
    text_.remove_prefix(text.size());
    return true;
  }
  /// All before the next of `ends`, or before the end of the line.
  std::string_view until(std::string_view ends) {
    const std::string_view text = text_.substr(0, text_.find_first_of(ends));
    if (text.empty()) fail("ends too early");
    text_.remove_prefix(text.size());
    return text;
  }
  std::string_view peek() const { return text_.substr(0, text_.find(' ')); }
  void end() const {
    if (!empty()) fail("unexpected " + std::string(text_));
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw DataError(fmt::format("plan text, line {}: {}", number_, why));
  }

  Line& operator>>(const char* text) {
    if (!take(text)) fail("expected " + std::string(text));
    return *this;
  }
  template <std::integral T>
  Line& operator>>(T& number) {
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), number);
    if (error != std::errc{}) fail("is no number: " + std::string(peek()));
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return *this;
  }
  Line& operator>>(double& number) { return number = whole<double>(until(" ")), *this; }
  Line& operator>>(std::string& name) { return name = until(" "), *this; }
  template <typename Enum>
  requires std::is_enum_v<Enum> Line& operator>>(Enum& one) {
    const std::string_view name = until(kEndsOfNames);
    for (int i = 0; name_of(static_cast<Enum>(i)) != "?"; ++i)
      if (name_of(static_cast<Enum>(i)) == name) return one = static_cast<Enum>(i), *this;
    fail("unknown name " + std::string(name));
  }
  Line& operator>>(Axes& axes) {
    axes = {};
    if (take("none")) return *this;
    Axis axis{};
    do {
      *this >> axis;
      axes = axes | axis;
    } while (take(","));
    return *this;
  }
  Line& operator>>(Region& region) {
    *this >> "b" >> region.buffer >> "+" >> region.offset >> ":" >> region.bytes;
    if (!take("/")) return *this;
    *this >> region.step >> "*" >> region.over;
    if (region.step == 0 || region.over.empty()) fail("a region does not move by 0");
    return *this;
  }
  Line& operator>>(Affine& affine) {
    *this >> affine.base;
    while (take(",")) {
      std::int64_t per = 0;
      Axis axis{};
      *this >> per >> "*" >> axis;
      affine.per[static_cast<std::size_t>(axis)] = per;
    }
    return *this;
  }
  Line& operator>>(Attribute& attribute) {
    const std::string_view text = until(" ");
    if (text == "true" || text == "false")
      attribute = text == "true";
    else if (text.size() >= 2 && text.front() == '\'')
      attribute = std::string(text.substr(1, text.size() - 2));
    else if (text.find_first_of(".en") != std::string_view::npos)
      attribute = whole<double>(text);
    else
      attribute = whole<std::int64_t>(text);
    return *this;
  }
  Line& operator>>(Shape& shape) {
    std::vector<std::int64_t> sizes;
    *this >> "[";
    while (!take("]")) *this >> (sizes.empty() ? "" : ",") >> sizes.emplace_back();
    if (sizes.size() > Shape::kMaxDims) fail("too many dims");
    shape = Shape(std::span<const std::int64_t>(sizes));
    return *this;
  }
  Line& operator>>(TensorDesc& tensor) { return *this >> tensor.dtype >> tensor.shape; }
  Line& operator>>(Spec& spec) {
    *this >> spec.format.element;
    if (take("/")) *this >> spec.format.block;
    *this >> spec.whole;
    for (bool cut = false; (cut = take("@")) || take("+");) {
      Axis axis{};
      int dim = 0, parts = 0, lead = 0;
      *this >> axis;
      if (cut) *this >> ":" >> dim >> "/" >> parts >> "/" >> lead;
      if (!spec.on(axis).is_replicate()) fail("an axis is named twice");
      if (dim < Placement::kRows || dim >= std::max(spec.whole.rank(), 1)) fail("no such dim");
      Placement placement = cut ? Placement::shard(dim, parts, lead) : Placement::partial();
      if (cut && take("/zigzag")) placement.order = Placement::Order::zigzag;
      spec.place(axis, placement);
    }
    return *this;
  }

  /// The number that an item of a list begins with. It must be the item's place in the list.
  Line& index(std::size_t expected) {
    std::size_t number = 0;
    *this >> number;
    if (number != expected) fail("expected number " + std::to_string(expected));
    return *this;
  }
  /// "0+3": stages of a list.
  Line& list(std::vector<std::int32_t>& numbers) {
    do *this >> numbers.emplace_back();
    while (take("+"));
    return *this;
  }

 private:
  static constexpr std::string_view kEndsOfNames = " ,:/*@+[=";

  template <typename T>
  T whole(std::string_view text) const {
    T number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) fail("is no number: " + std::string(text));
    if constexpr (std::is_floating_point_v<T>)
      if (real_text(number) != text) fail("is written " + real_text(number) + " in a plan: " + std::string(text));
    return number;
  }

  std::string_view text_;
  std::size_t number_;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Plan read() {
    next() >> "plan " >> "1";
    Line mesh = next();
    mesh >> "mesh";
    for (Axis axis : kAxes) {
      if (!mesh.take(fmt::format(" {}=", name_of(axis)))) continue;
      int size = 0;
      mesh >> size;
      if (size < 2) mesh.fail("an axis that is named has several ranks");
      plan_.mesh.set(axis, size);
    }
    plan_.drifts = mesh.take(" drifts");
    mesh.end();
    while (!text_.empty()) {
      Line line = next();
      if (line.take("role "))
        read_role(line);
      else if (plan_.roles.empty())
        line.fail("expected a role");
      else
        read_fact(line);
      line.end();
    }
    return std::move(plan_);
  }

 private:
  Line next() {
    const std::size_t end = text_.find('\n');
    if (end == std::string_view::npos) throw DataError("plan text: the last line has no end");
    Line line(text_.substr(0, end), ++number_);
    text_.remove_prefix(end + 1);
    return line;
  }

  NameId name(Line& line) {
    const std::string_view text = line.until(" ");
    const auto [at, added] = names_.try_emplace(std::string(text), static_cast<NameId>(role().names.size()));
    if (added) role().names.emplace_back(text);
    return at->second;
  }

  Role& role() { return plan_.roles.back(); }
  Unit& unit(const Line& line) {
    if (role().units.empty()) line.fail("expected a unit");
    return role().units.back();
  }

  void read_role(Line& line) {
    line.index(plan_.roles.size());
    plan_.roles.emplace_back();
    names_.clear();
    line >> " persistent=" >> role().persistent_bytes >> " total=" >> role().total_bytes;
    if (line.take(" host=")) line >> role().host_bytes;
    if (line.take(" disk=")) line >> role().disk_bytes;
    line >> " scalars=b" >> role().scalars >> " applied=b" >> role().applied;
    if (line.take(" good_steps=b")) line >> role().good_steps;
  }

  void read_fact(Line& line) {
    if (line.take("buffer ")) return read_buffer(line);
    if (line.take("field ")) return read_field(line);
    if (line.take("signature ")) return read_signature(line);
    if (line.take("unit ")) return read_unit(line);
    if (line.take("slot ")) return read_slot(line, unit(line).slots.emplace_back());
    if (line.take("tensor ")) return read_tensor(line, unit(line).tensors.emplace_back());
    if (line.take("state ")) return read_state(line, role().states.emplace_back());
    if (line.take("program ")) {
      ProgramKind kind{};
      line >> kind;
      if (kind != ProgramKind::average && role().program(kind) != nullptr)
        line.fail("a role has one program of a kind");
      return read_loops(line, role().programs.emplace_back(Program{kind, {}}));
    }
    if (role().programs.empty()) line.fail("expected a program");
    read_issued(line, role().programs.back().instructions.emplace_back());
  }

  void read_buffer(Line& line) {
    line.index(role().buffers.size());
    Buffer buffer;
    line >> " ";
    buffer.name = name(line);
    line >> " " >> buffer.category >> " mb=" >> buffer.micro_batch >> " program=" >> buffer.program;
    line >> " bytes=" >> buffer.bytes >> " at=" >> buffer.offset;
    if (line.take(" on=")) line >> buffer.space;
    buffer.offset += begin_of(buffer.space);
    if (line.take(" stride=")) line >> buffer.stride >> " advance=" >> buffer.advance;
    buffer.own_parts = buffer.stride != 0 && line.take(" own_parts");
    if (buffer.stride < 0) line.fail("the parts of a ring lie one behind the other");
    role().buffers.push_back(buffer);
  }

  void read_loops(Line& line, Program& program) {
    while (line.take(" loop=")) {
      Loop& loop = program.loops.emplace_back();
      line >> loop.first >> "-" >> loop.last >> " times=" >> loop.times >> " micro_batches=" >> loop.micro_batches;
      if (loop.first < 0 || loop.last <= loop.first || loop.times < 2 || loop.micro_batches < 1)
        line.fail("a loop of nothing");
    }
  }

  void read_field(Line& line) {
    line.index(role().fields.size());
    Field& field = role().fields.emplace_back();
    line >> " " >> field.name >> " " >> field.kind >> " " >> field.spec >> " " >> field.bytes;
  }

  void read_signature(Line& line) {
    line.index(role().signatures.size());
    Signature signature{};
    line >> " " >> signature.op;
    while (line.take(" ")) {
      if (line.peek().find('=') == std::string_view::npos) {
        line >> signature.operands.emplace_back();
        continue;
      }
      const std::string key(line.until("="));
      Attribute value;
      line >> "=" >> value;
      signature.attributes.set(key, value);
    }
    role().signatures.push_back(std::move(signature));
  }

  void read_unit(Line& line) {
    Unit& unit = role().units.emplace_back();
    line >> unit.name >> " " >> unit.compute >> " elements=" >> unit.elements >> " decay=" >> unit.decay_elements;
    line >> " optimizer=" >> unit.optimizer >> " stages=";
    if (!line.take("own")) line.list(unit.stages);
    unit.across_replicas = line.take(" across_replicas");
  }

  void read_slot(Line& line, Slot& slot) {
    line >> slot.kind >> " " >> slot.name >> " " >> slot.spec >> " " >> slot.region;
    slot.persistent = line.take(" persistent");
    slot.saved = line.take(" saved");
  }

  void read_state(Line& line, State& state) {
    line >> state.name >> " " >> state.spec >> " " >> state.region;
    if (line.take(" initial=")) line >> state.initial.emplace();
  }

  void read_tensor(Line& line, UnitTensor& tensor) {
    line >> tensor.name >> " " >> tensor.spec >> " at=" >> tensor.offset >> " elements=" >> tensor.elements;
    line >> " partial=" >> tensor.partial >> " stddev=" >> tensor.init.stddev >> " constant=" >> tensor.init.constant;
    if (line.take(" uniform=")) line >> tensor.init.uniform;
    tensor.init.sinusoids = line.take(" sinusoids");
    if (line.take(" copy_of=")) line >> tensor.init.copy_of;
  }

  void read_issued(Line& line, Issued& issued) {
    line >> issued.stream;
    while (line.take(" after=")) {
      Stream stream{};
      line >> stream >> ":";
      line >> issued.after[static_cast<std::size_t>(stream)];
    }
    line >> " ";
    issued.instruction = read_instruction(line);
    Provenance& why = issued.why;
    line >> " # " >> why.phase;
    why.recomputed = line.take(" recomputed");
    const auto number = [&](std::string_view what, auto& into) {
      if (!line.take(what)) return;
      line >> into;
      if (into < 0) line.fail("a number of its own is not below 0");
    };
    number(" mb=", why.micro_batch);
    number(" chunk=", why.chunk);
    number(" unit=", why.unit);
    number(" node=", why.node);
    number(" loop=", why.loop);
  }

  Instruction read_instruction(Line& line) {
    if (line.take("launch ")) return read_launch(line);
    if (line.take("exchange ")) return read_exchange(line);
    if (line.take("copy_in f")) return read_copy<CopyIn>(line);
    if (line.take("copy_out f")) return read_copy<CopyOut>(line);
    if (line.take("move ")) return read_move(line);
    Collective collective;
    line >> collective.kind >> " " >> collective.dtype >> " " >> collective.axes;
    if (line.take("/")) line >> collective.dim;
    if (line.take("@")) line.list(collective.stages);
    line >> " ";
    collective.name = name(line);
    line >> " in " >> collective.input.region >> " out " >> collective.output.region;
    return collective;
  }

  template <typename Copy>
  Copy read_copy(Line& line) {
    Copy copy;
    line >> copy.field >> "+" >> copy.field_offset >> " " >> copy.region.region;
    return copy;
  }

  Move read_move(Line& line) {
    Move move;
    move.name = name(line);
    line >> " from " >> move.from.region >> " to " >> move.to.region;
    return move;
  }

  Launch read_launch(Line& line) {
    Launch launch;
    Op op{};
    line >> op >> " s" >> launch.signature >> " ";
    const std::vector<Signature>& signatures = role().signatures;
    if (launch.signature < 0 || static_cast<std::size_t>(launch.signature) >= signatures.size())
      line.fail("no such signature");
    if (signatures[static_cast<std::size_t>(launch.signature)].op != op) line.fail("the signature is of another op");
    launch.name = name(line);
    const auto operand = [&](std::string_view access, auto one) {
      if (!line.take(access)) return false;
      line >> one.region;
      launch.operands.emplace_back(one);
      return true;
    };
    while (operand(" read ", Read{}) || operand(" write ", Write{}) || operand(" update ", Update{})) continue;
    if (line.take(" workspace ")) line >> launch.workspace.region;
    if (line.take(" origin ")) line >> launch.origin;
    if (line.take(" step ")) line >> launch.origin_step;
    return launch;
  }

  Exchange read_exchange(Line& line) {
    Exchange exchange;
    exchange.name = name(line);
    const auto part = [&](std::string_view verb, auto& parts) {
      if (!line.take(verb)) return false;
      auto& one = parts.emplace_back();
      line >> one.axis >> " " >> one.peer >> " " >> one.region.region;
      one.carried.backward = line.take(" backward=");
      if (!one.carried.backward) line >> " forward=";
      line >> one.carried.boundary >> " mb=" >> one.carried.micro_batch >> " value=" >> one.carried.value;
      if (line.take(" loop=")) line >> one.loop;
      return true;
    };
    while (part(" send ", exchange.sends) || part(" receive ", exchange.receives)) continue;
    return exchange;
  }

  std::string_view text_;
  std::size_t number_ = 0;
  Plan plan_;
  std::map<std::string, NameId, std::less<>> names_;
};

}  // namespace

Plan parse_plan(std::string_view text) { return Reader(text).read(); }

}  // namespace trainer
