// Names join data and plan; sizes prove that they mean the same.
#include "engine/train/inputs.h"

#include <algorithm>

#include "engine/core/error.h"

namespace trainer {
namespace {

// The first node that reads a field of the batch decides its dtype.
DType dtype_of_field(const Role& role, std::string_view field) {
  for (const Program& program : role.programs)
    for (const Issued& issued : program.instructions)
      if (const auto* launch = std::get_if<Launch>(&issued.instruction))
        for (std::size_t i = 0; i < launch->operands.size(); ++i)
          if (const Buffer& buffer = role.buffer(region_of(launch->operands[i]).buffer); buffer.category == Category::inputs && role.name(buffer.name) == field)
            return role.signatures[static_cast<std::size_t>(launch->signature)].operands[i].dtype;
  return DType::i32;
}

}  // namespace

data::Data open_inputs(const LoadedJob& loaded, const CompiledJob& compiled) {
  const Role& role = compiled.plan.roles.front();
  data::GraphInputs inputs;
  inputs.target_dtype = dtype_of_field(role, "targets");
  inputs.id_limit = compiled.vocabulary.value_or(compiled.classes.value_or(0));
  data::Data data = data::open_data(loaded.job.data, inputs);
  if (data.tokenizer && compiled.vocabulary && data.tokenizer->vocab_size() > *compiled.vocabulary)
    throw DataError("the text has " + std::to_string(data.tokenizer->vocab_size()) + " distinct ids, but the model's vocabulary has " +
                    std::to_string(*compiled.vocabulary) + " rows");
  return data;
}

BatchBinder::BatchBinder(Executor& executor, const data::Dataset& dataset, std::int32_t program, std::int64_t samples) : executor_(executor) {
  const Role& role = executor.role();
  std::vector<std::int64_t> wanted(role.fields.size(), 0);
  for (const Issued& issued : role.programs.at(static_cast<std::size_t>(program)).instructions)
    if (const auto* copy = std::get_if<CopyIn>(&issued.instruction))
      wanted[static_cast<std::size_t>(copy->field)] = std::max(wanted[static_cast<std::size_t>(copy->field)], copy->field_offset + copy->region.region.bytes);
  for (const data::SampleField& field : dataset.fields()) {
    const std::int32_t index = role.field_index(field.name);
    fields_.push_back(index);
    if (index < 0) continue;
    std::int64_t& bytes = wanted[static_cast<std::size_t>(index)];
    if (bytes != field.bytes() * samples)
      throw DataError("the data's field " + field.name + " has " + std::to_string(field.bytes()) + " bytes a sample (" + std::string(name_of(field.dtype)) + " " +
                      field.shape.str() + "), the model reads " + std::to_string(bytes / samples));
    bytes = 0;
  }
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] > 0 && role.fields[i].name != "lr" && role.fields[i].name != "step") throw DataError("the data has no field " + role.fields[i].name);
}

void BatchBinder::bind(const data::Loader::Batch& batch) {
  for (std::size_t i = 0; i < fields_.size(); ++i)
    if (fields_[i] >= 0) executor_.bind(fields_[i], const_cast<std::byte*>(batch.fields[i]));
}

}  // namespace trainer
