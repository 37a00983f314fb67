// Sampling: a prompt's ids, and one id after the other drawn from the logits behind them.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/compile/lengths.h"
#include "engine/core/error.h"
#include "engine/tokenizer/text_tokenizer.h"
#include "engine/train/inputs.h"
#include "engine/train/sampler.h"
#include "engine/train/train.h"

namespace trainer {
namespace {

constexpr std::size_t kMostPlans = 8;

std::shared_ptr<const data::Tokenizer> tokenizer_of(const LoadedJob& loaded, const CompiledJob& compiled,
                                                    const std::optional<checkpoint::Manifest>& manifest) {
  if (manifest) {
    const nlohmann::json metadata = nlohmann::json::parse(manifest->metadata);
    if (metadata.contains("tokenizer"))
      return data::make_tokenizer(metadata["tokenizer"].dump(), loaded.job.data.tokenizer_file);
  }
  switch (loaded.job.data.format) {
    case DataFormat::tokens:
      return std::make_shared<data::NumbersTokenizer>(*compiled.classes);
    case DataFormat::documents:
    case DataFormat::chat:
    case DataFormat::completion:
    case DataFormat::preference:
    case DataFormat::text:
      if (loaded.job.data.tokenizer == Tokenizer::bytes)
        return std::make_shared<data::BytesTokenizer>(loaded.job.data.is_rows());
      if (loaded.job.data.tokenizer == Tokenizer::file)
        return std::make_shared<data::FileTokenizer>(loaded.job.data.tokenizer_file);
      return open_inputs(loaded, compiled).tokenizer;  // the alphabet is the text's
    case DataFormat::table:
    case DataFormat::idx:
    case DataFormat::tensors:
    case DataFormat::labelled:
      break;
  }
  throw DataError("sampling needs a job whose data is text or tokens; this one has `format: " +
                  std::string(name_of(loaded.job.data.format)) + "`");
}

// The ids that generation goes on from; without a prompt, a line break.
std::vector<std::int32_t> first_ids(const data::Tokenizer& tokenizer, bool text, const SampleOptions& options) {
  const std::string& prompt = options.prompt;
  std::vector<std::int32_t> ids;
  try {
    const auto* file = dynamic_cast<const data::FileTokenizer*>(&tokenizer);
    ids = options.special && file != nullptr ? file->text_tokenizer().encode(prompt, {.special = true}).ids
                                             : tokenizer.encode(prompt);
  } catch (const DataError& error) {
    throw DataError(std::string("the prompt, ") + error.what());
  }
  if (!ids.empty()) return ids;
  if (!text) throw UsageError("this job's data is token ids: give the first ones, as --prompt \"50256\"");
  try {
    return tokenizer.encode("\n");
  } catch (const DataError&) {
    throw UsageError("the model knows no line break to begin with: give a --prompt");
  }
}

}  // namespace

std::vector<std::int64_t> lengths_for_sampling(const LoadedJob& loaded, std::int64_t most) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(most));
  std::iota(all.begin(), all.end(), 1);
  std::vector<std::int64_t> ends;
  for (const std::vector<std::int64_t>& run : lengths_of_one_model(loaded, all)) {
    ends.push_back(run.back());
    if (ends.size() > kMostPlans) return {most};
  }
  return ends;
}

Sampled sample(const LoadedJob& loaded, std::span<const CompiledJob> plans, const std::string& checkpoint,
               const SampleOptions& options, const std::function<void(const std::string&)>& emit,
               const std::function<void(const std::string&)>& tell) {
  Sampled sampled;
  const CompiledJob& compiled = plans.front();
  with_sampler(loaded, plans, checkpoint, tell, [&](Sampler& sampler) {
    const std::shared_ptr<const data::Tokenizer> tokenizer = tokenizer_of(loaded, compiled, sampler.manifest());
    const std::int64_t vocabulary = std::min(tokenizer->vocab_size(), *compiled.classes);
    if (vocabulary < 1) throw DataError("the tokenizer has no tokens");
    sampled.text = tokenizer->reads_text();
    std::vector<std::int32_t>& ids = sampled.ids;
    ids = first_ids(*tokenizer, sampled.text, options);
    emit(options.prompt);
    std::optional<tokenizer::StreamDecoder> stream;  // whole characters only
    if (const auto* file = dynamic_cast<const data::FileTokenizer*>(tokenizer.get()))
      stream.emplace(file->shared(), /*skip_special=*/false);
    for (std::int64_t made = 0; made < options.num_tokens; ++made) {
      const std::span<const float> logits = sampler.after(ids).first(static_cast<std::size_t>(vocabulary));
      const std::int32_t id = draw(logits, options.drawing, static_cast<std::uint64_t>(made));
      if (std::ranges::find(options.stop, id) != options.stop.end()) break;
      ids.push_back(id);
      emit(stream ? stream->add(id) : tokenizer->decode(std::span(&id, 1)));
    }
    if (stream) emit(stream->finish());
  });
  return sampled;
}

}  // namespace trainer
