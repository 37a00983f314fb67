// The forms that a value may have, and the table from the top. Its sections are in engine/job/sections/.
#include "engine/job/fields.h"

#include "engine/job/job.h"
#include "engine/job/sections/define.h"
#include "engine/job/sections/sections.h"

namespace trainer {

namespace form {

Form null() { return {.kind = Form::Kind::null}; }
Form word(std::vector<std::string_view> words) { return {.kind = Form::Kind::word, .words = std::move(words)}; }
Form integer(double least, double most) { return {.kind = Form::Kind::integer, .least = least, .most = most}; }
Form number(double least, double most) { return {.kind = Form::Kind::number, .least = least, .most = most}; }
Form bytes() { return {.kind = Form::Kind::bytes, .least = 1, .most = kMostInteger}; }
Form positive() { return between(0, kMostF32, true, false); }
Form between(double least, double most, bool above_least, bool below_most) {
  return {
      .kind = Form::Kind::number, .least = least, .most = most, .above_least = above_least, .below_most = below_most};
}
Form flag() { return {.kind = Form::Kind::flag}; }
Form text() { return {.kind = Form::Kind::text}; }
Form path(std::string_view extension) { return {.kind = Form::Kind::path, .name = extension}; }
Form expression() { return {.kind = Form::Kind::expression}; }
Form list(Form item, std::size_t min_items, std::size_t max_items) {
  return {.kind = Form::Kind::list, .items = {std::move(item)}, .min_items = min_items, .max_items = max_items};
}
Form list_of(std::vector<Form> items) { return {.kind = Form::Kind::list, .items = std::move(items)}; }
Form map(std::vector<Form> items) { return {.kind = Form::Kind::map, .items = std::move(items)}; }
Form section(std::vector<FieldDef> fields, std::string_view shorthand) {
  return {.kind = Form::Kind::section, .fields = std::move(fields), .shorthand = shorthand};
}
std::vector<Form> values() {
  std::vector<Form> one{number(-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()),
                        flag(), text(), null()};
  std::vector<Form> all = one;
  all.push_back(list_of(std::move(one)));
  return all;
}
Form tree() { return {.kind = Form::Kind::tree}; }
Form reference(std::string_view name) { return {.kind = Form::Kind::reference, .name = name}; }

}  // namespace form

FieldDef FieldDef::when(std::string_view path, std::vector<std::string_view> words) const {
  FieldDef field = *this;
  field.conditions.push_back({path, std::move(words), std::nullopt});
  return field;
}

FieldDef FieldDef::when_above(std::string_view path, double bound) const {
  FieldDef field = *this;
  field.conditions.push_back({path, {}, bound});
  return field;
}
namespace {

using namespace form;

Fields job() {
  Names names = with_auto(words<DataKind>());
  names.insert(names.end(), {"tensor", "pipeline"});
  return {
      extra("name", "What the run is called; default: the file's name.", {text()}),
      optional("seed", "Of initial weights, dropout and the order of samples.", {integer(0)}, "1337"),
      required("model", "What is trained.", {section(model_fields(), "graph")}),
      optional("adapter", "Small matrices that are trained beside the model's; the model's are model.init_from.",
               {null(), section(adapter_fields(), "kind")}, "null"),
      trainable_field(),
      required("data", "What it is trained on.", {section(data_fields())}),
      required("train", "How it is trained.", {section(train_fields())}),
      part("eval", "Evaluation on the held-out samples.", eval_fields(), "every").when("data.val"),
      part("precision", "Dtypes.", precision_fields(), "compute"),
      part("activation_checkpointing", "What is recomputed instead of kept.", activation_checkpointing_fields(),
           "mode"),
      optional("strategy", "How the work is spread over ranks: auto, a name, or the explicit form.",
               {word(names), section(strategy_fields())}, "auto"),
      optional("goal",
               "What strategy: auto makes least: the time of a step, the memory of a rank, or the cost of a sample.",
               {word(words<Goal>())}, "time"),
      part("cluster", "Where it runs.", cluster_fields()),
      part("checkpoint", "What is saved.", checkpoint_fields(), "dir"),
      part("log", "What is told.", log_fields()),
  };
}

}  // namespace

const std::vector<FieldDef>& job_fields() {
  static const std::vector<FieldDef> fields = job();
  return fields;
}

}  // namespace trainer
