// Names join data and plan; types and sizes prove that they mean the same.
#include "engine/train/inputs.h"

#include <algorithm>
#include <cstring>

#include "engine/core/environment.h"
#include "engine/core/error.h"
#include "engine/core/printable.h"
#include "engine/data/id_cache.h"
#include "engine/train/answers.h"
#include "engine/train/evaluation.h"

namespace trainer {
namespace {

// Of a field that the stages of the plan which read it read alike; i32 where none does.
DType dtype_of_field(const Plan& plan, std::string_view name) {
  for (const Role& role : plan.roles)
    if (const std::int32_t index = role.field_index(name); index >= 0)
      return role.fields[static_cast<std::size_t>(index)].spec.dtype();
  return DType::i32;
}

// The mistakes in the files that `key` names, of which `what` has one on each line.
std::string told(const LoadedJob& loaded, const std::string& key, std::string_view what) {
  const std::size_t end = std::min(what.find('\n'), what.size());
  std::string text = about_files(loaded, key, std::string(what.substr(0, end))).str();
  for (std::size_t at = end; at < what.size();) {
    const std::size_t next = std::min(what.find('\n', at + 1), what.size());
    text += "\n  " + printable(what.substr(at + 1, next - at - 1));
    at = next;
  }
  return text;
}

// What `open` gives; its errors say where the job names the data.
template <typename Open>
auto located(const LoadedJob& loaded, Open&& open) {
  try {
    return open();
  } catch (const data::BadData& error) {
    throw DataError(told(loaded, error.key, error.what()));
  } catch (const data::UnreadableData& error) {
    throw IoError(told(loaded, error.key, error.what()));
  }
}

// Whether the plan trains, and does not only evaluate or sample.
bool trains(const CompiledJob& compiled) { return compiled.plan.roles.front().program(ProgramKind::step) != nullptr; }

}  // namespace

Diagnostic about_files(const LoadedJob& loaded, std::string_view key, std::string message) {
  Diagnostic diagnostic = loaded.at(key, std::move(message));
  diagnostic.value.clear();
  return diagnostic;
}

data::GraphInputs graph_inputs(const Job& job, const CompiledJob& compiled) {
  data::GraphInputs inputs;
  inputs.target_dtype = dtype_of_field(compiled.plan, "targets");
  inputs.id_limit = compiled.classes.value_or(0);
  // A token is an input and a target.
  if (job.data.is_text() && compiled.vocabulary)
    inputs.id_limit = std::min(*compiled.vocabulary, compiled.classes.value_or(*compiled.vocabulary));
  if (job.data.is_labelled()) {
    inputs.id_limit = compiled.vocabulary.value_or(0);
    inputs.classes = compiled.classes.value_or(0);
  }
  for (const Role& role : compiled.plan.roles)
    for (const Field& field : role.fields) {
      const bool known = std::ranges::find(inputs.fields, field.name, &data::SampleField::name) != inputs.fields.end();
      if (known || field.kind != Field::Kind::batch) continue;
      inputs.fields.push_back({field.name, field.spec.dtype(), Shape(field.spec.whole.sizes().subspan(1))});
    }
  return inputs;
}

std::vector<Diagnostic> too_few_samples(const LoadedJob& loaded, const CompiledJob& compiled, const data::Data& data) {
  std::vector<Diagnostic> problems;
  const auto count = [](std::int64_t samples) {
    return std::to_string(samples) + (samples == 1 ? " sample" : " samples");
  };
  const std::int64_t train = data.train->num_samples(), batch = compiled.batch.global;
  if (trains(compiled) && train < batch)
    problems.push_back(about_files(loaded, "data.train",
                                   "the training part has " + count(train) + ", fewer than one batch of " +
                                       std::to_string(batch) + "; give more data, or at most " + std::to_string(train) +
                                       " as train.batch.global"));
  if (!data.val || !evaluates(compiled) || num_evaluation_batches(compiled, data.val->num_samples()) > 0)
    return problems;
  const std::int64_t val_batch = compiled.batch.micro * compiled.batch.data_ranks;
  problems.push_back(about_files(loaded, "data.val",
                                 "the validation part has " + count(data.val->num_samples()) +
                                     ", fewer than one batch of " + std::to_string(val_batch) +
                                     "; hold out more, or use a smaller train.batch.micro"));
  return problems;
}

std::string cache_for(const DataJob& job, const std::function<void(const std::string&)>& say) {
  if (!data::is_cached(job)) return "";
  const std::string folder = environment::cache_folder();
  if (folder.empty() || environment::value_of(environment::kCache)) return folder;
  try {
    data::make_cache(folder);
    return folder;
  } catch (const IoError& error) {
    if (say) say(std::string(error.what()) + ": token ids are held in memory");
    return "";
  }
}

data::Data open_inputs(const LoadedJob& loaded, const CompiledJob& compiled) {
  return located(loaded, [&] {
    data::Data data =
        data::open_data(loaded.job.data, graph_inputs(loaded.job, compiled), data::IdStream::Check::samples,
                        {.cache = cache_for(loaded.job.data), .threads = threads_per_rank(1)});
    const std::vector<Diagnostic> problems = too_few_samples(loaded, compiled, data);
    if (!problems.empty()) throw DataError(problems.front().str());
    return data;
  });
}

std::shared_ptr<const data::Questions> open_questions(const LoadedJob& loaded, const CompiledJob& compiled) {
  const std::optional<EvalJob>& eval = loaded.job.eval;
  if (!eval || !eval->generate || !answers_questions(compiled)) return nullptr;
  const std::string key = "eval.generate.file";
  try {
    return std::make_shared<data::Questions>(loaded.job.data, *eval->generate,
                                             graph_inputs(loaded.job, compiled).id_limit);
  } catch (const DataError& error) {
    throw DataError(told(loaded, key, error.what()));
  } catch (const IoError& error) {
    throw IoError(told(loaded, key, error.what()));
  }
}

data::Data open_samples(const LoadedJob& loaded, data::Tokenizing tokenizing) {
  tokenizing.cache = cache_for(loaded.job.data, tokenizing.say);
  const data::GraphInputs anything{.target_dtype = loaded.job.data.is_labelled() ? DType::f32 : DType::i32};
  return located(
      loaded, [&] { return data::open_data(loaded.job.data, anything, data::IdStream::Check::samples, tokenizing); });
}

void tokenize_inputs(const LoadedJob& loaded, const CompiledJob* compiled, data::Tokenizing tokenizing) {
  tokenizing.cache = cache_for(loaded.job.data, tokenizing.say);
  if (tokenizing.cache.empty()) return;
  const std::int64_t id_limit = compiled == nullptr ? 0 : graph_inputs(loaded.job, *compiled).id_limit;
  located(loaded, [&] { data::tokenize_data(loaded.job.data, id_limit, tokenizing); });
}

BatchBinder::BatchBinder(Executor& executor, const MeshPoint& point, const data::Dataset& dataset, std::int32_t program,
                         std::int64_t samples)
    : executor_(executor), samples_(samples) {
  const Role& role = executor.role();
  std::vector<std::int64_t> wanted(role.fields.size(), 0);
  for (const Issued& issued : role.programs.at(static_cast<std::size_t>(program)).instructions)
    if (const auto* copy = std::get_if<CopyIn>(&issued.instruction))
      wanted[static_cast<std::size_t>(copy->field)] =
          std::max(wanted[static_cast<std::size_t>(copy->field)], copy->field_offset + copy->region.region.bytes);
  for (const data::SampleField& field : dataset.fields()) {
    const std::int32_t index = role.field_index(field.name);
    fields_.push_back({.index = index});
    if (index < 0) continue;
    std::int64_t& bytes = wanted[static_cast<std::size_t>(index)];
    const Spec& spec = role.fields[static_cast<std::size_t>(index)].spec;
    const DType dtype = spec.dtype();
    Part& part = fields_.back();
    part.stride = part.bytes = field.bytes();
    for (const Cut& cut : spec.cuts())
      if (cut.as.is_shard(1) && point.mesh.size(cut.axis) > 1) {
        part.bytes = field.bytes() / spec.whole[1] * local_shape(spec, point.mesh)[1];
        part.first = field.bytes() / spec.whole[1] * origin(spec, 1, point.mesh).at(point.at);
        part.zigzag = cut.as.is_zigzag();
      }
    if (part.bytes < part.stride) part.values.resize(static_cast<std::size_t>(part.bytes * samples));
    if (bytes != part.bytes * samples || dtype != field.dtype)
      throw DataError("the data's field " + field.name + " has " + std::to_string(field.bytes()) + " bytes a sample (" +
                      std::string(name_of(field.dtype)) + " " + field.shape.str() + "), the model reads " +
                      std::to_string(bytes / samples) + " (" + std::string(name_of(dtype)) + ")");
    bytes = 0;
  }
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] > 0 && role.fields[i].kind == Field::Kind::batch)
      throw DataError("the data has no field " + role.fields[i].name);
}

void BatchBinder::bind(const data::Loader::Batch& batch) {
  for (std::size_t i = 0; i < fields_.size(); ++i) bind(i, batch.fields[i]);
}

void BatchBinder::bind(std::size_t field, const std::byte* values) {
  Part& part = fields_[field];
  if (part.index < 0) return;
  const auto copy = [&](std::int64_t to, std::int64_t from, std::int64_t bytes) {
    std::memcpy(part.values.data() + to, values + from, static_cast<std::size_t>(bytes));
  };
  for (std::int64_t sample = 0; !part.values.empty() && sample < samples_; ++sample) {
    const std::int64_t to = sample * part.bytes, from = sample * part.stride, half = part.bytes / 2;
    copy(to, from + part.first, part.zigzag ? half : part.bytes);
    if (part.zigzag) copy(to + half, from + part.stride - part.first - half, half);
  }
  executor_.bind(part.index, part.values.empty() ? const_cast<std::byte*>(values) : part.values.data());
}

}  // namespace trainer
