// Params and inputs of a graph file: the numbers of its expressions, and the fields of the data it reads.
#include <algorithm>

#include "engine/job/nearest.h"
#include "engine/transform/reading.h"

namespace trainer {
namespace {

constexpr std::string_view kSymbols[] = {"batch", "seq", "index"};
constexpr std::string_view kInputKeys[] = {"dtype", "shape", "if", "optional"};
constexpr std::string_view kDTypes[] = {"f32", "i32"};
constexpr double kMostElements = 0x1p48;
constexpr const char* kShapeForm = "a list as [batch, seq]";

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::string_view> keys_of(const yaml::Node& mapping) {
  std::vector<std::string_view> keys;
  for (const yaml::Node& key : mapping.keys) keys.push_back(key.text);
  return keys;
}

/// Whether its `if` holds. A mistake is told.
bool holds(Reading& reading, const yaml::Node& input, const std::string& path) {
  const yaml::Node* condition = input.find("if");
  const auto value = condition == nullptr ? ParamValue(1.0) : reading.values.value(*condition, path + ".if");
  return value && value->truth();
}

/// An input as the file describes it for these params: itself, or of a list the first whose `if` holds. Null: the graph
/// has none.
const yaml::Node* chosen(Reading& reading, const yaml::Node& input, const std::string& path) {
  if (!input.is_sequence()) return !input.is_mapping() || holds(reading, input, path) ? &input : nullptr;
  for (const yaml::Node& one : input.items)
    if (!one.is_mapping() || holds(reading, one, path)) return &one;
  return nullptr;
}

/// Whether the graph has the input even where the data gives none.
bool is_optional(Reading& reading, const yaml::Node& input, const std::string& path) {
  const yaml::Node* node = input.find("optional");
  return node != nullptr && reading.values.flag(*node, path + ".optional").value_or(false);
}

/// `seq` is the size of the dim that is called so in the first field that has one.
void bind_sequence(Reading& reading, const std::string& name, const yaml::Node& input) {
  const yaml::Node* shape = input.find("shape");
  const auto field = reading.options.field_shapes.find(name);
  if (shape == nullptr || !shape->is_sequence() || field == reading.options.field_shapes.end()) return;
  for (std::size_t i = 1; i < shape->items.size(); ++i)
    if (shape->items[i].text == "seq" && static_cast<int>(i) <= field->second.rank())
      reading.variables.emplace("seq", ParamValue(static_cast<double>(field->second[static_cast<int>(i) - 1])));
}

/// `given` is the shape of a sample as the data has it, or null where it is not known before the data is read.
std::optional<Shape> read_shape(Reading& reading, const yaml::Node& key, const yaml::Node& input,
                                const std::string& path, const Shape* given) {
  const yaml::Node* written = input.find("shape");
  if (written == nullptr) {
    reading.mistakes.add(key, path, "missing").allowed = kShapeForm;
    return {};
  }
  if (!reading.values.need_sequence(*written, path, kShapeForm)) return {};
  if (written->items.empty() || written->items[0].text != "batch" || written->items.size() > Shape::kMaxDims) {
    reading.mistakes.add(*written, path, "the first dim must be batch, and there are at most 6").value =
        written->brief();
    return {};
  }
  std::vector<std::int64_t> sizes;
  double elements = 1;
  for (const yaml::Node& item : written->items) {
    const std::optional<std::int64_t> size = reading.values.dim(item, path);
    if (!size) return {};
    elements *= static_cast<double>(*size);
    if (*size >= 1 && elements <= kMostElements) {
      sizes.push_back(*size);
      continue;
    }
    reading.values.wrong(item, path, "a size of at least 1, and at most 2^48 elements in all");
    return {};
  }
  const Shape sample{std::span<const std::int64_t>(sizes).subspan(1)};
  if (given != nullptr && *given != sample) {
    reading.mistakes
        .add(*written, path, "the graph takes samples of shape " + sample.str() + ", the data gives " + given->str())
        .value = written->brief();
    return {};
  }
  return Shape{std::span<const std::int64_t>(sizes)};
}

void read_fields(Reading& reading, const yaml::Node& key, const yaml::Node& input, const std::string& path,
                 const Shape* sample, Entry& entry) {
  reading.values.check_keys(input, path, "unknown key", kInputKeys);
  const yaml::Node* dtype = input.find("dtype");
  const bool known = dtype != nullptr && is_one_of(kDTypes, dtype->text);
  if (!known)
    reading.mistakes.unknown(dtype != nullptr ? *dtype : key, path + ".dtype", "f32 or i32 is needed",
                             dtype != nullptr ? dtype->brief() : "", kDTypes);
  const Shape* given = sample == nullptr || sample->rank() == 0 ? nullptr : sample;
  const std::optional<Shape> shape = read_shape(reading, key, input, path + ".shape", given);
  if (!shape || !known) return;
  entry.value = reading.graph.add_value(
      {.name = key.text, .spec = {*dtype_named(dtype->text), *shape}, .kind = ValueKind::input});
  reading.graph.inputs.push_back(entry.value);
}

void read_input(Reading& reading, const yaml::Node& key, const yaml::Node& input) {
  const std::string path = "inputs." + key.text;
  const auto& fields = reading.options.field_shapes;
  const auto field = fields.find(key.text);
  // A text that is continued or scored has no fields but its tokens, whatever the data for training has.
  const bool of_text =
      reading.options.mode == BuildOptions::Mode::sample || reading.options.mode == BuildOptions::Mode::score;
  const bool absent = (field == fields.end() || of_text) && input.is_mapping() && is_optional(reading, input, path);
  reading.variables["inputs." + key.text] = ParamValue(absent ? 0.0 : 1.0);
  if (absent) return;
  Entry entry{.name = key.text, .where = &key};
  if (field == fields.end() && !of_text && !reading.options.any_fields) {
    std::vector<std::string_view> names;
    for (const auto& [name, shape] : fields) names.push_back(name);
    reading.mistakes.unknown(key, path, "the data gives no such field", key.text, names);
  } else if (reading.values.need_mapping(input, path, "{dtype: …, shape: […]}, or a list of such, each with an `if`")) {
    read_fields(reading, key, input, path, field == fields.end() ? nullptr : &field->second, entry);
  }
  reading.names.declare(std::move(entry), key, path);
}

/// A number replaces a number and a word a word, a list of such as well; all may replace null.
bool may_replace(const ParamValue& value, const ParamValue& written) {
  if (value.list() != nullptr)
    return std::all_of(value.list()->begin(), value.list()->end(),
                       [&](const ParamValue& item) { return may_replace(item, written); });
  if (written.list() != nullptr) return written.list()->empty() || may_replace(value, written.list()->front());
  if (written.is_null()) return true;
  return (value.number() != nullptr && written.number() != nullptr) ||
         (value.word() != nullptr && written.word() != nullptr);
}

}  // namespace

void read_params(Reading& reading, const yaml::Node& file, const Variables& with) {
  const yaml::Node* params = file.find("params");
  if (params != nullptr && !reading.values.need_mapping(*params, "params", "a mapping of names to values")) return;
  for (std::size_t i = 0; params != nullptr && i < params->keys.size(); ++i) {
    const std::string& name = params->keys[i].text;
    if (is_one_of(kSymbols, name))
      reading.mistakes.add(params->keys[i], "params." + name, "this name has a meaning of its own in graphs");
    std::optional<ParamValue> value = reading.values.value(params->items[i], "params." + name);
    if (const auto replaced = with.find(name); replaced != with.end()) {
      if (value && !may_replace(replaced->second, *value)) {
        Diagnostic& mistake = reading.mistakes.add(params->keys[i], "model.with." + name, "wrong kind of value");
        mistake.value = text_of(replaced->second);
        mistake.allowed = std::string(value->word() != nullptr ? "a word" : "a number") + ", as " + text_of(*value);
      } else {
        value = replaced->second;
      }
    }
    reading.variables[name] = value.value_or(ParamValue(1.0));
  }
  for (const auto& [name, value] : with)
    if (params == nullptr || params->find(name) == nullptr)
      reading.mistakes.unknown(params != nullptr ? *params : file, "model.with." + name, "the graph has no such param",
                               name, params != nullptr ? keys_of(*params) : std::vector<std::string_view>{});
}

void read_inputs(Reading& reading, const yaml::Node& file) {
  reading.variables["batch"] = ParamValue(static_cast<double>(reading.options.batch));
  const yaml::Node* inputs = file.find("inputs");
  if (inputs == nullptr) {
    reading.mistakes.add(file, "inputs", "missing: the fields of the data that the graph reads");
    return;
  }
  if (!reading.values.need_mapping(*inputs, "inputs", "a mapping of field names to {dtype, shape}")) return;
  std::vector<const yaml::Node*> described;
  for (std::size_t i = 0; i < inputs->keys.size(); ++i) {
    const std::string& name = inputs->keys[i].text;
    described.push_back(chosen(reading, inputs->items[i], "inputs." + name));
    if (described.back() != nullptr) bind_sequence(reading, name, *described.back());
  }
  if (reading.options.seq) reading.variables.emplace("seq", ParamValue(static_cast<double>(*reading.options.seq)));
  if (reading.options.any_fields) reading.variables.emplace("seq", ParamValue(1.0));
  for (std::size_t i = 0; i < inputs->keys.size(); ++i) {
    if (described[i] != nullptr)
      read_input(reading, inputs->keys[i], *described[i]);
    else
      reading.variables["inputs." + inputs->keys[i].text] = ParamValue(0.0);
  }
  if (reading.options.mode == BuildOptions::Mode::sample || reading.options.any_fields) return;
  const auto reads = [&](const std::string& name) {
    for (std::size_t i = 0; i < inputs->keys.size(); ++i)
      if (inputs->keys[i].text == name) return described[i] != nullptr;
    return false;
  };
  for (const auto& [name, shape] : reading.options.field_shapes)
    if (!reads(name) && std::ranges::find(reading.options.offered, name) == reading.options.offered.end())
      reading.mistakes
          .add(*inputs, "inputs", "the data gives the field \"" + name + "\", which the graph does not read")
          .suggestion = nearest(name, keys_of(*inputs));
}

}  // namespace trainer
