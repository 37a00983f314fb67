// The text form of a plan: one line a fact, words separated by single spaces, names without blanks. The writer is above,
// the reader below; what one writes the other reads.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/plan/plan.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trainer {
namespace {

// ---- Writing -----------------------------------------------------------------------------------------------------

// Appends words and numbers; a plan has millions of them, so they are written straight into memory that is there already. The text has
// its length when the Out is gone.
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
    if (region.per_shard != 0) *this << '/' << region.per_shard;
  }
  void put(const Affine& affine) {
    *this << affine.base;
    for (Axis axis : kAxes)
      if (const std::int64_t per = affine.per[static_cast<std::size_t>(axis)]; per != 0) *this << ',' << per << '*' << name_of(axis);
  }
  void put(Axes axes) {
    std::string_view before = "";
    for (Axis axis : kAxes)
      if (axes.has(axis)) *this << std::exchange(before, ",") << name_of(axis);
    if (before.empty()) *this << "none";
  }
  void put(const Attribute& attribute) {
    if (const auto* flag = std::get_if<bool>(&attribute))
      *this << (*flag ? "true" : "false");
    else if (const auto* integer = std::get_if<std::int64_t>(&attribute))
      *this << *integer;
    else if (const auto* real = std::get_if<double>(&attribute)) {
      const std::string text = fmt::format("{}", *real);
      *this << text << (text.find_first_of(".en") == std::string::npos ? ".0" : "");
    } else {
      *this << '\'' << std::get<std::string>(attribute) << '\'';
    }
  }
  void put(const Shape& shape) {
    std::string_view before = "[";
    for (std::int64_t size : shape.sizes()) *this << std::exchange(before, ",") << size;
    *this << (shape.rank() == 0 ? "[]" : "]");
  }
  void put(const TensorDesc& tensor) {
    *this << name_of(tensor.dtype) << tensor.shape;
    if (tensor.layout != Layout::row_major) *this << ':' << name_of(tensor.layout);
  }
  void put(const Extent& extent) { *this << extent.first << ':' << extent.last; }

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
    out << "launch " << name_of(signature.op) << " s" << launch.signature << ' ' << role.name(launch.name) << " mb=" << launch.micro_batch;
    for (const Operand& operand : launch.operands) out << ' ' << kAccessNames[operand.index()] << ' ' << region_of(operand);
    if (launch.workspace.region.bytes > 0) out << " workspace " << launch.workspace.region;
    if (launch.origin != Affine{}) out << " origin " << launch.origin;
  }
  void operator()(const Collective& collective) const {
    out << name_of(collective.kind) << ' ' << name_of(collective.dtype) << ' ' << collective.axes;
    for (std::size_t i = 0; i < collective.stages.size(); ++i) out << (i == 0 ? '@' : '+') << collective.stages[i];
    out << ' ' << role.name(collective.name) << " in " << collective.input.region << " out " << collective.output.region;
  }
  void operator()(const Exchange& exchange) const {
    out << "exchange " << role.name(exchange.name);
    for (const auto& send : exchange.sends) out << " send " << name_of(send.axis) << ' ' << send.peer << ' ' << send.region.region;
    for (const auto& receive : exchange.receives) out << " receive " << name_of(receive.axis) << ' ' << receive.peer << ' ' << receive.region.region;
  }
  void operator()(const CopyIn& copy) const { out << "copy_in f" << copy.field << '+' << copy.field_offset << ' ' << copy.region.region; }
  void operator()(const CopyOut& copy) const { out << "copy_out f" << copy.field << '+' << copy.field_offset << ' ' << copy.region.region; }
};

void print_unit(const Unit& unit, Out& out) {
  out << "unit " << unit.name << ' ' << name_of(unit.compute) << " elements=" << unit.elements << " decay=" << unit.decay_elements << " replicated=" << unit.replicated
      << " partial=" << unit.partial << " stages=";
  for (std::size_t i = 0; i < unit.stages.size(); ++i) out << (i == 0 ? "" : "+") << unit.stages[i];
  out << (unit.stages.empty() ? "own" : "") << " master=" << unit.master << " slice=" << unit.working_slice << " working=b" << unit.working << " gradient=b" << unit.gradient;
  const std::size_t optimizer_states = unit.states.size() - static_cast<std::size_t>(unit.strategy_states);
  for (std::size_t i = 0; i < unit.states.size(); ++i) out << (i == optimizer_states ? " | " : " ") << unit.state_names[i] << "=b" << unit.states[i];
  if (unit.residual >= 0) out << " residual=b" << unit.residual;
  if (unit.own_states) out << " own_states";
  out << '\n';
  for (const UnitTensor& tensor : unit.tensors) {
    out << "tensor " << tensor.name << ' ' << TensorDesc{DType::f32, tensor.shape, Layout::row_major} << " at=" << tensor.offset << " stddev=" << Attribute(tensor.init.stddev)
        << " constant=" << Attribute(tensor.init.constant);
    // How it is cut along the tensor axis: the dim, the parts of it and how long the first of them is, the whole shape.
    if (tensor.cut.is_shard())
      out << " cut=" << tensor.cut.dim << '/' << tensor.cut.parts << '/' << tensor.cut.lead << ' ' << TensorDesc{DType::f32, tensor.whole, Layout::row_major};
    out << '\n';
  }
}

void print_role(const Role& role, std::size_t index, Out& out) {
  out << "role " << index << " persistent=" << role.persistent_bytes << " total=" << role.total_bytes << " scalars=b" << role.scalars << " applied=b" << role.applied << '\n';
  for (std::size_t id = 0; id < role.buffers.size(); ++id) {
    const Buffer& buffer = role.buffers[id];
    out << "buffer " << id << ' ' << role.name(buffer.name) << ' ' << name_of(buffer.category) << " mb=" << buffer.micro_batch << " program=" << buffer.program
        << " bytes=" << buffer.bytes << " at=" << buffer.offset << '\n';
  }
  for (std::size_t id = 0; id < role.fields.size(); ++id) out << "field " << id << ' ' << role.fields[id].name << ' ' << role.fields[id].bytes << '\n';
  for (std::size_t id = 0; id < role.signatures.size(); ++id) {
    const Signature& signature = role.signatures[id];
    out << "signature " << id << ' ' << name_of(signature.op);
    for (const auto& [name, value] : signature.attributes.items()) out << ' ' << name << '=' << value;
    for (const TensorDesc& tensor : signature.operands) out << ' ' << tensor;
    out << '\n';
  }
  for (const Unit& unit : role.units) print_unit(unit, out);
  const InstructionPrinter print_instruction{role, out};
  for (const Program& program : role.programs) {
    out << "program " << program.name << '\n';
    for (const Issued& issued : program.instructions) {
      out << name_of(issued.stream);
      for (std::size_t s = 0; s < kNumStreams; ++s)
        if (issued.after[s] >= 0) out << " after=" << name_of(static_cast<Stream>(s)) << ':' << issued.after[s];
      out << ' ';
      std::visit(print_instruction, issued.instruction);
      out << '\n';
    }
  }
}

// The plan's text piece by piece, in order: `take` is given each once. Roles are printed a few at a time, as many as there are processors.
template <typename Take>
void print_pieces(const Plan& plan, const Take& take) {
  std::string head;
  {
    Out out(head);
    out << "plan 1\nmesh";
    for (Axis axis : kAxes) out << ' ' << name_of(axis) << '=' << plan.mesh.size(axis);
    out << (plan.drifts ? " drifts\n" : "\n");
  }
  take(head);
  std::vector<std::string> texts(std::max(1U, std::thread::hardware_concurrency()));
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

// ---- Reading -----------------------------------------------------------------------------------------------------

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
  /// "name=value"
  /// Lists are numbered for people; a number out of turn is a mistake.
  void expect_number(std::size_t expected) {
    if (number<std::int64_t>() != static_cast<std::int64_t>(expected)) fail("expected number " + std::to_string(expected));
  }
  std::string_view value(std::string_view name) { return after_prefix(word(), std::string(name) + "="); }
  std::int64_t value_number(std::string_view name) { return to_number<std::int64_t>(value(name)); }
  BufferId value_buffer(std::string_view name) { return to_number<BufferId>(after_prefix(value(name), "b")); }
  std::int32_t prefixed(std::string_view prefix) { return to_number<std::int32_t>(after_prefix(word(), prefix)); }

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
constexpr std::array kCollectives{CollectiveKind::all_reduce, CollectiveKind::reduce_scatter, CollectiveKind::all_gather, CollectiveKind::all_to_all,
                                CollectiveKind::broadcast};
constexpr std::array kLayouts{Layout::row_major, Layout::packed, Layout::packed_transposed};

Region parse_region(const Line& line, std::string_view text) {
  const std::size_t plus = text.find('+'), colon = text.find(':');
  if (!text.starts_with('b') || plus == std::string_view::npos || colon == std::string_view::npos || colon < plus) line.fail("expected a region");
  Region region{line.to_number<BufferId>(text.substr(1, plus - 1)), line.to_number<std::int64_t>(text.substr(plus + 1, colon - plus - 1)), 0, 0};
  const std::size_t slash = std::min(text.find('/', colon), text.size());
  region.bytes = line.to_number<std::int64_t>(text.substr(colon + 1, slash - colon - 1));
  if (slash < text.size()) region.per_shard = line.to_number<std::int64_t>(text.substr(slash + 1));
  if (slash < text.size() && region.per_shard == 0) line.fail("a region does not move by 0");
  return region;
}

Region parse_region(Line& line) { return parse_region(line, line.word()); }

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

Extent parse_extent(const Line& line, std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) line.fail("expected first:last");
  return {line.to_number<std::int64_t>(text.substr(0, colon)), line.to_number<std::int64_t>(text.substr(colon + 1))};
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

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Plan read() {
    Line head = next();
    head.expect("plan");
    head.expect("1");
    Line mesh = next();
    mesh.expect("mesh");
    for (Axis axis : kAxes) plan_.mesh.sizes[static_cast<std::size_t>(axis)] = static_cast<int>(mesh.value_number(name_of(axis)));
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
  }

  void read_fact(Line& line, std::string_view word) {
    if (word == "buffer") return read_buffer(line);
    if (word == "field") {
      line.word(), line.expect_number(role().fields.size());
      const std::string_view field = line.word();
      role().fields.push_back({std::string(field), line.number()});
      return;
    }
    if (word == "signature") return read_signature(line);
    if (word == "unit") return read_unit(line);
    if (word == "tensor") return read_tensor(line);
    if (word == "program") {
      line.word();
      role().programs.push_back({std::string(line.word()), {}});
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
    unit.replicated = parse_extent(line, line.value("replicated"));
    unit.partial = parse_extent(line, line.value("partial"));
    if (const std::string_view stages = line.value("stages"); stages != "own")
      for (std::string_view stage : split(stages, '+')) unit.stages.push_back(line.to_number<std::int32_t>(stage));
    unit.master = parse_region(line, line.value("master"));
    unit.working_slice = parse_region(line, line.value("slice"));
    unit.working = line.value_buffer("working");
    unit.gradient = line.value_buffer("gradient");
    bool of_strategy = false;
    while (!line.empty()) {
      const std::string_view word = line.word();
      if (word == "|" && !of_strategy) {
        of_strategy = true;
        continue;
      }
      if (word == "own_states" && !unit.own_states) {
        unit.own_states = true;
        continue;
      }
      const std::size_t equal = word.find('=');
      if (equal == std::string_view::npos) line.fail("expected state=buffer");
      const BufferId buffer = line.to_number<BufferId>(line.after_prefix(word.substr(equal + 1), "b"));
      if (word.substr(0, equal) == "residual") {
        unit.residual = buffer;
        continue;
      }
      unit.state_names.emplace_back(word.substr(0, equal));
      unit.states.push_back(buffer);
      if (of_strategy) ++unit.strategy_states;
    }
    role().units.push_back(std::move(unit));
  }

  void read_tensor(Line& line) {
    if (role().units.empty()) line.fail("expected a unit");
    line.word();
    UnitTensor tensor;
    tensor.name = line.word();
    tensor.shape = parse_tensor(line, line.word()).shape;
    tensor.offset = line.value_number("at");
    tensor.init.stddev = parse_real(line, line.value("stddev"));
    tensor.init.constant = parse_real(line, line.value("constant"));
    tensor.whole = tensor.shape;
    if (!line.empty()) read_cut(line, tensor);
    role().units.back().tensors.push_back(std::move(tensor));
  }

  static void read_cut(Line& line, UnitTensor& tensor) {
    const std::vector<std::string_view> numbers = split(line.value("cut"), '/');
    if (numbers.size() != 3) line.fail("expected dim/parts/lead");
    tensor.cut = Placement::shard(line.to_number<int>(numbers[0]), line.to_number<int>(numbers[1]), line.to_number<int>(numbers[2]));
    tensor.whole = parse_tensor(line, line.word()).shape;
  }

  void read_issued(Line& line) {
    Issued issued;
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
    collective.axes = parse_axes(line, axes.substr(0, at));
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
      if (sending) exchange.sends.push_back({axis, peer, {region}});
      else exchange.receives.push_back({axis, peer, {region}});
    }
    return exchange;
  }

  std::string_view text_;
  std::size_t number_ = 0;
  Plan plan_;
  std::map<std::string, NameId, std::less<>> names_;
};

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

Plan parse_plan(std::string_view text) { return Reader(text).read(); }

std::string hash_of(const Plan& plan) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  print_pieces(plan, [&](const std::string& text) { XXH3_64bits_update(&state, text.data(), text.size()); });
  return fmt::format("{:016x}", XXH3_64bits_digest(&state));
}

}  // namespace trainer
