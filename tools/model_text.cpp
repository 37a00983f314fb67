// How the tokenizer, the chat format and the plans of a job are found.
#include "tools/model_text.h"

#include <filesystem>

#include "engine/core/error.h"
#include "engine/data/data.h"
#include "engine/train/train.h"
#include "tools/command.h"

namespace trainer::tools {

std::optional<std::string> tokenizer_path(const LoadedJob& loaded) {
  if (data::is_tokenized(loaded.job.data)) return loaded.job.data.tokenizer_file;
  return loaded.job.model.folder ? std::optional(loaded.job.model.folder->path) : std::nullopt;
}

std::optional<std::int64_t> longest_text(const LoadedJob& loaded) {
  return loaded.job.model.folder ? loaded.job.model.folder->longest : loaded.job.data.seq_len;
}

std::shared_ptr<const chat::ChatFormat> chat_format_of(const LoadedJob& loaded) {
  const std::optional<std::string> path = tokenizer_path(loaded);
  if (!path) throw DataError("messages need a model folder with a tokenizer and a chat template");
  return chat::ChatFormat::of_folder(std::filesystem::path(tokenizer::tokenizer_file_in(*path)).parent_path().string(),
                                     loaded.job.data.chat_template);
}

std::vector<CompiledJob> plans_for_text(LoadedJob& loaded) {
  std::vector<CompiledJob> plans;
  for (const std::int64_t length : lengths_for_sampling(loaded, loaded.job.data.seq_len)) {
    loaded.job.data.seq_len = length;
    plans.push_back(compile_here(loaded, Purpose::sample));
  }
  return plans;
}

}  // namespace trainer::tools
