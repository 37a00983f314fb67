// What a model makes of text: its tokenizer and chat format, and the plans in which it generates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat/chat_format.h"
#include "engine/compile/compile.h"

namespace trainer::tools {

/// Where the tokenizer.json of a model's text is, a file or its folder: of the job's data, else of the model folder.
std::optional<std::string> tokenizer_path(const LoadedJob& loaded);

/// Tokens of the longest text that the model takes; nothing where there is no bound.
std::optional<std::int64_t> longest_text(const LoadedJob& loaded);

/// The tokenizer and the chat template that lies beside it. Throws DataError where there is none.
std::shared_ptr<const chat::ChatFormat> chat_format_of(const LoadedJob& loaded);

/// Plans of Purpose::sample for texts of up to data.seq_len tokens, which changes (engine/train/train.h).
std::vector<CompiledJob> plans_for_text(LoadedJob& loaded);

}  // namespace trainer::tools
