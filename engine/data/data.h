// Data of a job: from its data section to a training and a validation dataset.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/core/dtype.h"
#include "engine/data/dataset.h"
#include "engine/data/tokenizer.h"
#include "engine/job/job.h"

namespace trainer::data {

/// What a graph says of the inputs that the data feeds.
struct GraphInputs {
  DType target_dtype = DType::i32;  ///< of a table's targets: i32 are class ids, f32 values
  std::int64_t id_limit = 0;        ///< ids must be below it: the vocabulary's rows, or the classes; 0 if unknown
};

struct Data {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> val;          ///< null if there is none
  std::shared_ptr<const Tokenizer> tokenizer;  ///< of text, else null
};

/// Opens the files. Raises DataError for a file that is missing or malformed, and for data too short for one sample.
Data open_data(const DataJob& job, const GraphInputs& inputs);

}  // namespace trainer::data
