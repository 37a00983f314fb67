// Rows of pairs as TRL's DPOTrainer takes them: `prompt`, `chosen` and `rejected`, all text or all lists of messages.
// Without a prompt, it is the messages that both lists begin with. The prompt and an answer are one text, or one
// conversation. Trained is what comes behind the ids that the prompt by itself has in common with both sequences: where
// an answer changes the last id of its prompt, that id is trained as well, in both.
#pragma once

#include <memory>

#include "engine/data/encoded_row.h"
#include "engine/job/job.h"

namespace trainer::data {

/// Raises DataError and IoError for tokenizers and templates that cannot be used.
std::shared_ptr<const RowFormat> preference_rows(const DataJob& job);

}  // namespace trainer::data
