// How the chat format and the plans of a job are opened.
#include "tools/model_text.h"

#include <filesystem>

#include "engine/core/error.h"
#include "engine/train/train.h"
#include "tools/command.h"

namespace trainer::tools {

std::shared_ptr<const chat::ChatFormat> chat_format_of(const LoadedJob& loaded) {
  const DataJob& data = loaded.job.data;
  if (data.format == DataFormat::text && data.tokenizer == Tokenizer::file) {
    const std::filesystem::path file = tokenizer::tokenizer_file_in(data.tokenizer_file);
    return chat::ChatFormat::of_folder(file.parent_path().string());
  }
  if (!loaded.job.model.folder) throw DataError("messages need a model folder with a tokenizer and a chat template");
  return chat::ChatFormat::of_folder(loaded.job.model.folder->path);
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
