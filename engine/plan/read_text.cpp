// The text form of a plan, read: what text.cpp writes. Anything else is a DataError that names the line.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <utility>

#include "engine/core/error.h"
#include "engine/plan/plan.h"

namespace trainer {
namespace {

// The words of one line; every helper takes the next word or fails naming the line.
class Line {
 public:
  Line(std::string_view text, std::size_t number) : text_(text), number_(number) {}

  bool empty() const { return text_.empty(); }
  std::string_view peek() const { return text_.substr(0, text_.find(' ')); }
  std::string_view word() {
    if (text_.empty()) fail("ends too early");
    const std::string_view result = peek();
    text_.remove_prefix(std::min(text_.size(), result.size() + 1));
    return result;
  }
  void expect(std::string_view word_expected) {
    if (word() != word_expected) fail("expected " + std::string(word_expected));
  }
  template <typename T = std::int64_t>
  T number() { return to_number<T>(word()); }
  /// Lists are numbered for people; a number out of turn is a mistake.
  void expect_number(std::size_t expected) {
    if (number<std::int64_t>() != static_cast<std::int64_t>(expected)) fail("expected number " + std::to_string(expected));
  }
  /// Of "name=value".
  std::string_view value(std::string_view name) { return after_prefix(word(), std::string(name) + "="); }
  std::int64_t value_number(std::string_view name) { return to_number<std::int64_t>(value(name)); }
  BufferId value_buffer(std::string_view name) { return to_number<BufferId>(after_prefix(value(name), "b")); }
  std::int32_t prefixed(std::string_view prefix) { return to_number<std::int32_t>(after_prefix(word(), prefix)); }

  /// What stands behind the last `mark` becomes a line of its own.
  Line split_behind(std::string_view mark) {
    const std::size_t at = text_.rfind(mark);
    if (at == std::string_view::npos) fail("expected" + std::string(mark));
    Line rest(text_.substr(at + mark.size()), number_);
    text_ = text_.substr(0, at);
    return rest;
  }

  std::string_view after_prefix(std::string_view text, std::string_view prefix) const {
    if (!text.starts_with(prefix)) fail("expected " + std::string(prefix));
    return text.substr(prefix.size());
  }
  template <typename T>
  T to_number(std::string_view text) const {
    T result{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
    if (error != std::errc{} || end != text.data() + text.size()) fail("is no number: " + std::string(text));
    return result;
  }
  [[noreturn]] void fail(const std::string& why) const { throw DataError(fmt::format("plan text, line {}: {}", number_, why)); }

 private:
  std::string_view text_;
  std::size_t number_;
};

template <typename Enum, std::size_t N>
Enum named(const Line& line, std::string_view name, const std::array<Enum, N>& all) {
  for (Enum one : all)
    if (name == name_of(one)) return one;
  line.fail("unknown name " + std::string(name));
}

constexpr std::array kCategories{Category::parameters, Category::gradients, Category::optimizer, Category::activations,
                                 Category::communication, Category::workspace, Category::inputs};
constexpr std::array kStreams{Stream::compute, Stream::communication, Stream::copy, Stream::background, Stream::tensor};
static_assert(kStreams.size() == kNumStreams);
template <typename Enum, int kNumber>
constexpr auto all_of_enum() {
  std::array<Enum, kNumber> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Enum>(i);
  return all;
}
constexpr auto kPhases = all_of_enum<Provenance::Phase, kNumPhases>();
constexpr auto kPrograms = all_of_enum<ProgramKind, kNumProgramKinds>();
constexpr std::array kFieldKinds{Field::Kind::batch, Field::Kind::scalar, Field::Kind::result};
constexpr std::array kCollectives{CollectiveKind::all_reduce, CollectiveKind::reduce_scatter, CollectiveKind::all_gather, CollectiveKind::all_to_all,
                                CollectiveKind::broadcast};
constexpr std::array kSlotKinds{Slot::Kind::master, Slot::Kind::working, Slot::Kind::state, Slot::Kind::strategy_state, Slot::Kind::residual, Slot::Kind::copy, Slot::Kind::gradient};
constexpr std::array kLayouts{Layout::row_major, Layout::packed, Layout::packed_transposed};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return parts;
}

Axes parse_axes(const Line& line, std::string_view text) {
  Axes axes;
  if (text == "none") return axes;
  for (std::string_view part : split(text, ',')) axes = axes | Axes::of(named(line, part, kAxes));
  return axes;
}

Region parse_region(const Line& line, std::string_view text) {
  const std::size_t plus = text.find('+'), colon = text.find(':');
  if (!text.starts_with('b') || plus == std::string_view::npos || colon == std::string_view::npos || colon < plus) line.fail("expected a region");
  Region region{line.to_number<BufferId>(text.substr(1, plus - 1)), line.to_number<std::int64_t>(text.substr(plus + 1, colon - plus - 1)), 0};
  const std::size_t slash = std::min(text.find('/', colon), text.size());
  region.bytes = line.to_number<std::int64_t>(text.substr(colon + 1, slash - colon - 1));
  if (slash == text.size()) return region;
  const std::size_t star = text.find('*', slash);
  if (star == std::string_view::npos) line.fail("expected the axes along which the region moves");
  region.step = line.to_number<std::int64_t>(text.substr(slash + 1, star - slash - 1));
  region.over = parse_axes(line, text.substr(star + 1));
  if (region.step == 0 || region.over.empty()) line.fail("a region does not move by 0");
  return region;
}

Region parse_region(Line& line) { return parse_region(line, line.word()); }

Affine parse_affine(Line& line) {
  Affine affine;
  const std::vector<std::string_view> parts = split(line.word(), ',');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i == 0) {
      affine.base = line.to_number<std::int64_t>(parts[i]);
      continue;
    }
    const std::size_t star = parts[i].find('*');
    if (star == std::string_view::npos) line.fail("expected factor*axis");
    affine.per[static_cast<std::size_t>(named(line, parts[i].substr(star + 1), kAxes))] = line.to_number<std::int64_t>(parts[i].substr(0, star));
  }
  return affine;
}

Attribute parse_attribute(const Line& line, std::string_view text) {
  if (text == "true" || text == "false") return text == "true";
  if (text.size() >= 2 && text.front() == '\'') return std::string(text.substr(1, text.size() - 2));
  if (text.find_first_of(".en") == std::string_view::npos) return line.to_number<std::int64_t>(text);
  return line.to_number<double>(text);
}

double parse_real(const Line& line, std::string_view text) { return std::get<double>(parse_attribute(line, text)); }

TensorDesc parse_tensor(const Line& line, std::string_view text) {
  const std::size_t open = text.find('['), close = text.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) line.fail("expected a tensor");
  TensorDesc tensor;
  const std::optional<DType> dtype = dtype_named(text.substr(0, open));
  if (!dtype) line.fail("unknown dtype");
  tensor.dtype = *dtype;
  std::vector<std::int64_t> sizes;
  for (std::string_view size : split(text.substr(open + 1, close - open - 1), ',')) sizes.push_back(line.to_number<std::int64_t>(size));
  if (sizes.size() > Shape::kMaxDims) line.fail("too many dims");
  tensor.shape = Shape(std::span<const std::int64_t>(sizes));
  if (close + 1 < text.size()) tensor.layout = named(line, line.after_prefix(text.substr(close + 1), ":"), kLayouts);
  return tensor;
}

Spec parse_spec(const Line& line, std::string_view text) {
  Spec spec;
  const std::size_t bracket = text.find('['), close = text.find(']');
  if (bracket == std::string_view::npos || close == std::string_view::npos) line.fail("expected a spec");
  const std::size_t slash = std::min(text.find('/'), bracket);
  const std::optional<DType> dtype = dtype_named(text.substr(0, slash));
  if (!dtype) line.fail("unknown dtype");
  spec.format = {*dtype, slash < bracket ? line.to_number<std::int32_t>(text.substr(slash + 1, bracket - slash - 1)) : 0};
  spec.whole = parse_tensor(line, std::string(name_of(*dtype)) + std::string(text.substr(bracket, close + 1 - bracket))).shape;
  text.remove_prefix(close + 1);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("@+", 1), text.size());
    const std::string_view word = text.substr(1, end - 1);
    const std::size_t colon = std::min(word.find(':'), word.size());
    const Axis axis = named(line, word.substr(0, colon), kAxes);
    if (!spec.on(axis).is_replicate()) line.fail("an axis is named twice");
    if (text.front() == '+' && colon == word.size()) {
      spec.place(axis, Placement::partial());
    } else if (text.front() == '@' && colon < word.size()) {
      const std::vector<std::string_view> numbers = split(word.substr(colon + 1), '/');
      if (numbers.size() != 3) line.fail("expected dim/parts/lead");
      const int dim = line.to_number<int>(numbers[0]);
      if (dim < Placement::kRows || dim >= spec.whole.rank()) line.fail("no such dim");
      spec.place(axis, Placement::shard(dim, line.to_number<int>(numbers[1]), line.to_number<int>(numbers[2])));
    } else {
      line.fail("expected a cut or a partial axis");
    }
    text.remove_prefix(end);
  }
  return spec;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Plan read() {
    Line head = next();
    head.expect("plan");
    head.expect("1");
    Line mesh = next();
    mesh.expect("mesh");
    for (Axis axis : kAxes) {
      if (!mesh.peek().starts_with(std::string(name_of(axis)) + '=')) continue;
      plan_.mesh.set(axis, static_cast<int>(mesh.value_number(name_of(axis))));
      if (plan_.mesh.size(axis) < 2) mesh.fail("an axis that is named has several ranks");
    }
    plan_.drifts = !mesh.empty();
    if (plan_.drifts) mesh.expect("drifts");
    while (!text_.empty()) {
      Line line = next();
      const std::string_view word = line.peek();
      if (word == "role") {
        read_role(line);
      } else if (plan_.roles.empty()) {
        line.fail("expected a role");
      } else {
        read_fact(line, word);
      }
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

  NameId name(std::string_view text) {
    const auto [at, added] = names_.try_emplace(std::string(text), static_cast<NameId>(role().names.size()));
    if (added) role().names.emplace_back(text);
    return at->second;
  }

  Role& role() { return plan_.roles.back(); }

  void read_role(Line& line) {
    plan_.roles.emplace_back();
    names_.clear();
    line.word();
    line.number();
    role().persistent_bytes = line.value_number("persistent");
    role().total_bytes = line.value_number("total");
    role().scalars = line.value_buffer("scalars");
    role().applied = line.value_buffer("applied");
    if (!line.empty()) role().good_steps = line.value_buffer("good_steps");
  }

  void read_fact(Line& line, std::string_view word) {
    if (word == "buffer") return read_buffer(line);
    if (word == "field") return read_field(line);
    if (word == "signature") return read_signature(line);
    if (word == "unit") return read_unit(line);
    if (word == "slot") return read_slot(line);
    if (word == "tensor") return read_tensor(line);
    if (word == "program") {
      line.word();
      const ProgramKind kind = named(line, line.word(), kPrograms);
      if (role().program(kind) != nullptr) line.fail("a role has one program of a kind");
      role().programs.push_back({kind, {}});
      return;
    }
    if (role().programs.empty()) line.fail("expected a program");
    read_issued(line);
  }

  void read_buffer(Line& line) {
    line.word(), line.expect_number(role().buffers.size());
    Buffer buffer;
    buffer.name = name(line.word());
    buffer.category = named(line, line.word(), kCategories);
    buffer.micro_batch = static_cast<std::int32_t>(line.value_number("mb"));
    buffer.program = static_cast<std::int32_t>(line.value_number("program"));
    buffer.bytes = line.value_number("bytes");
    buffer.offset = line.value_number("at");
    role().buffers.push_back(buffer);
  }

  void read_field(Line& line) {
    line.word(), line.expect_number(role().fields.size());
    Field field;
    field.name = line.word();
    field.kind = named(line, line.word(), kFieldKinds);
    field.spec = parse_spec(line, line.word());
    field.bytes = line.number();
    role().fields.push_back(std::move(field));
  }

  void read_signature(Line& line) {
    line.word(), line.expect_number(role().signatures.size());
    Signature signature{};
    const std::optional<Op> op = op_named(line.word());
    if (!op) line.fail("unknown op");
    signature.op = *op;
    while (!line.empty()) {
      const std::string_view word = line.word();
      const std::size_t equal = word.find('=');
      if (equal != std::string_view::npos)
        signature.attributes.set(word.substr(0, equal), parse_attribute(line, word.substr(equal + 1)));
      else
        signature.operands.push_back(parse_tensor(line, word));
    }
    role().signatures.push_back(std::move(signature));
  }

  void read_unit(Line& line) {
    line.word();
    Unit unit;
    unit.name = line.word();
    const std::optional<DType> compute = dtype_named(line.word());
    if (!compute) line.fail("unknown dtype");
    unit.compute = *compute;
    unit.elements = line.value_number("elements");
    unit.decay_elements = line.value_number("decay");
    unit.optimizer = static_cast<std::int32_t>(line.value_number("optimizer"));
    if (const std::string_view stages = line.value("stages"); stages != "own")
      for (std::string_view stage : split(stages, '+')) unit.stages.push_back(line.to_number<std::int32_t>(stage));
    role().units.push_back(std::move(unit));
  }

  void read_slot(Line& line) {
    if (role().units.empty()) line.fail("expected a unit");
    line.word();
    Slot slot;
    slot.kind = named(line, line.word(), kSlotKinds);
    slot.name = line.word();
    slot.spec = parse_spec(line, line.word());
    slot.region = parse_region(line, line.word());
    slot.persistent = slot.saved = false;
    while (!line.empty()) {
      const std::string_view word = line.word();
      if (word != "persistent" && word != "saved") line.fail("expected persistent or saved");
      (word == "saved" ? slot.saved : slot.persistent) = true;
    }
    role().units.back().slots.push_back(std::move(slot));
  }

  void read_tensor(Line& line) {
    if (role().units.empty()) line.fail("expected a unit");
    line.word();
    UnitTensor tensor;
    tensor.name = line.word();
    tensor.spec = parse_spec(line, line.word());
    tensor.offset = line.value_number("at");
    tensor.elements = line.value_number("elements");
    tensor.partial = parse_axes(line, line.value("partial"));
    tensor.init.stddev = parse_real(line, line.value("stddev"));
    tensor.init.constant = parse_real(line, line.value("constant"));
    if (!line.empty()) tensor.init.uniform = parse_real(line, line.value("uniform"));
    role().units.back().tensors.push_back(std::move(tensor));
  }

  // What stands behind the last " # " of an instruction's line.
  static Provenance read_why(Line line) {
    Provenance why;
    why.phase = named(line, line.word(), kPhases);
    if (line.peek() == "recomputed") line.word(), why.recomputed = true;
    const auto number = [&](std::string_view name, auto& into) {
      if (!line.peek().starts_with(name)) return;
      into = line.to_number<std::remove_reference_t<decltype(into)>>(line.value(name));
      if (into < 0) line.fail("a number of its own is not below 0");
    };
    number("mb", why.micro_batch);
    number("chunk", why.chunk);
    number("unit", why.unit);
    number("node", why.node);
    if (!line.empty()) line.fail("unexpected " + std::string(line.peek()));
    return why;
  }

  void read_issued(Line& line) {
    Issued issued;
    issued.why = read_why(line.split_behind(" # "));
    issued.stream = named(line, line.word(), kStreams);
    while (line.peek().starts_with("after=")) {
      const std::string_view text = line.value("after");
      const std::size_t colon = text.find(':');
      if (colon == std::string_view::npos) line.fail("expected stream:index");
      issued.after[static_cast<std::size_t>(named(line, text.substr(0, colon), kStreams))] = line.to_number<std::int32_t>(text.substr(colon + 1));
    }
    issued.instruction = read_instruction(line);
    role().programs.back().instructions.push_back(std::move(issued));
  }

  Instruction read_instruction(Line& line) {
    const std::string_view word = line.word();
    if (word == "launch") return read_launch(line);
    if (word == "exchange") return read_exchange(line);
    if (word == "copy_in" || word == "copy_out") {
      const std::string_view text = line.word();
      const std::size_t plus = text.find('+');
      if (!text.starts_with('f') || plus == std::string_view::npos) line.fail("expected a field");
      const auto field = line.to_number<std::int32_t>(text.substr(1, plus - 1));
      const auto offset = line.to_number<std::int64_t>(text.substr(plus + 1));
      const Region region = parse_region(line);
      if (word == "copy_in") return CopyIn{field, offset, {region}};
      return CopyOut{field, offset, {region}};
    }
    Collective collective;
    collective.kind = named(line, word, kCollectives);
    const std::optional<DType> dtype = dtype_named(line.word());
    if (!dtype) line.fail("unknown dtype");
    collective.dtype = *dtype;
    const std::string_view axes = line.word();
    const std::size_t at = std::min(axes.find('@'), axes.size());
    const std::size_t slash = std::min(axes.find('/'), at);
    collective.axes = parse_axes(line, axes.substr(0, slash));
    if (slash < at) collective.dim = line.to_number<std::int8_t>(axes.substr(slash + 1, at - slash - 1));
    if (at < axes.size())
      for (std::string_view stage : split(axes.substr(at + 1), '+')) collective.stages.push_back(line.to_number<std::int32_t>(stage));
    collective.name = name(line.word());
    line.expect("in");
    collective.input.region = parse_region(line);
    line.expect("out");
    collective.output.region = parse_region(line);
    return collective;
  }

  Launch read_launch(Line& line) {
    Launch launch;
    const std::string_view op = line.word();
    launch.signature = line.prefixed("s");
    if (launch.signature < 0 || static_cast<std::size_t>(launch.signature) >= role().signatures.size()) line.fail("no such signature");
    if (op != name_of(role().signatures[static_cast<std::size_t>(launch.signature)].op)) line.fail("the signature is of another op than " + std::string(op));
    launch.name = name(line.word());
    launch.micro_batch = static_cast<std::int32_t>(line.value_number("mb"));
    while (!line.empty()) {
      const std::string_view word = line.word();
      if (word == "read") launch.operands.emplace_back(Read{parse_region(line)});
      else if (word == "write") launch.operands.emplace_back(Write{parse_region(line)});
      else if (word == "update") launch.operands.emplace_back(Update{parse_region(line)});
      else if (word == "workspace") launch.workspace.region = parse_region(line);
      else if (word == "origin") launch.origin = parse_affine(line);
      else line.fail("unexpected " + std::string(word));
    }
    return launch;
  }

  Exchange read_exchange(Line& line) {
    Exchange exchange;
    exchange.name = name(line.word());
    while (!line.empty()) {
      const bool sending = line.peek() == "send";
      line.expect(sending ? "send" : "receive");
      const Axis axis = named(line, line.word(), kAxes);
      const auto peer = line.number<std::int32_t>();
      const Region region = parse_region(line);
      Carried carried;
      carried.backward = line.peek().starts_with("backward=");
      carried.boundary = static_cast<std::int32_t>(line.value_number(carried.backward ? "backward" : "forward"));
      carried.micro_batch = static_cast<std::int32_t>(line.value_number("mb"));
      carried.value = static_cast<std::int32_t>(line.value_number("value"));
      if (sending) exchange.sends.push_back({axis, peer, {region}, carried});
      else exchange.receives.push_back({axis, peer, {region}, carried});
    }
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
