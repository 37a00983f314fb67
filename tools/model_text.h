// What a model makes of text: its chat format, and the plans in which it generates.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/chat/chat_format.h"
#include "engine/compile/compile.h"

namespace trainer::tools {

/// The tokenizer and the chat template that lies beside it. Throws DataError where there is none.
std::shared_ptr<const chat::ChatFormat> chat_format_of(const LoadedJob& loaded);

/// Plans of Purpose::sample for texts of up to data.seq_len tokens, which changes (engine/train/train.h).
std::vector<CompiledJob> plans_for_text(LoadedJob& loaded);

}  // namespace trainer::tools
