// One function per format.
#include "engine/data/data.h"

#include <cmath>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/data/files.h"
#include "engine/data/idx.h"
#include "engine/data/table.h"
#include "engine/data/token_stream.h"
#include "engine/data/windows.h"

namespace trainer::data {
namespace {

// The training part of n things: the first ⌊n·(1 − fraction)⌋, but for rounding of the product.
std::int64_t training_part(std::int64_t n, double fraction) {
  return static_cast<std::int64_t>(std::floor(static_cast<double>(n) * (1.0 - fraction) + 1e-6));
}

std::string first_name(const DataFiles& files) { return files.paths.empty() ? files.images : files.paths.front(); }

const DataFiles* val_files(const DataJob& job) { return std::get_if<DataFiles>(&job.val); }

double val_fraction(const DataJob& job) {
  const double* fraction = std::get_if<double>(&job.val);
  return fraction ? *fraction : 0;
}

void check_samples(const Dataset* dataset, const DataFiles& files, const std::string& part, const std::string& need) {
  if (dataset && dataset->num_samples() == 0) throw DataError(first_name(files) + ": the " + part + " part has no sample" + need);
}

void check_vocabulary(const DataJob& job, const Tokenizer& tokenizer, std::int64_t limit) {
  if (limit == 0 || tokenizer.vocab_size() <= limit) return;
  throw DataError(first_name(job.train) + ": the text has " + std::to_string(tokenizer.vocab_size()) +
                  " distinct tokens, where the model's vocabulary has " + std::to_string(limit));
}

// Training and validation windows of one stream, or of two.
void cut_stream(Data& data, const DataJob& job, std::shared_ptr<const TokenStream> train, std::shared_ptr<const TokenStream> val) {
  const std::int64_t n = train->num_tokens(), part = training_part(n, val_fraction(job));
  data.train = windows(train, 0, part, job.seq_len);
  if (val) {
    data.val = windows(val, 0, val->num_tokens(), job.seq_len);
  } else if (job.has_val()) {
    data.val = windows(train, part, n - part, job.seq_len);
  }
}

// The same for datasets.
void cut_dataset(Data& data, const DataJob& job, std::shared_ptr<const Dataset> train, std::shared_ptr<const Dataset> val) {
  const std::int64_t n = train->num_samples(), part = training_part(n, val_fraction(job));
  data.train = part == n ? train : part_of(train, 0, part);
  data.val = val || !job.has_val() ? val : part_of(train, part, n - part);
}

Data open_text(const DataJob& job, const GraphInputs& inputs) {
  Data data;
  const std::vector<std::string> train = expand_paths(job.train.paths);
  const std::vector<std::string> val = val_files(job) ? expand_paths(val_files(job)->paths) : std::vector<std::string>();
  if (job.tokenizer == trainer::Tokenizer::bytes) {
    data.tokenizer = std::make_shared<BytesTokenizer>();
    cut_stream(data, job, bytes_stream(train), val.empty() ? nullptr : bytes_stream(val));
  } else {
    const CharsText text = chars_stream(train);
    data.tokenizer = text.tokenizer;
    cut_stream(data, job, text.stream, val.empty() ? nullptr : chars_stream(val, text.tokenizer).stream);
  }
  check_vocabulary(job, *data.tokenizer, inputs.id_limit);
  return data;
}

Data open_tokens(const DataJob& job, const GraphInputs& inputs) {
  const auto open = [&](const DataFiles& files) {
    return flat_stream(expand_paths(files.paths), job.token_type == TokenType::u16 ? 2 : 4, inputs.id_limit);
  };
  Data data;
  cut_stream(data, job, open(job.train), val_files(job) ? open(*val_files(job)) : nullptr);
  return data;
}

Data open_table(const DataJob& job, const GraphInputs& inputs) {
  const TableOptions options{job.target, inputs.target_dtype, inputs.id_limit};
  const auto open = [&](const DataFiles& files) { return std::make_shared<Table>(expand_paths(files.paths), options); };
  const auto train = open(job.train), val = val_files(job) ? open(*val_files(job)) : nullptr;
  if (val && val->num_features() != train->num_features()) {
    throw DataError(first_name(*val_files(job)) + ": has " + std::to_string(val->num_features()) + " features, the training table has " +
                    std::to_string(train->num_features()));
  }
  const std::int64_t part = training_part(train->num_rows(), val_fraction(job));
  if (job.normalize == Normalize::standard && part > 0) {
    const Scaling scaling = train->scaling(part);
    train->scale(scaling);
    if (val) val->scale(scaling);
  }
  Data data;
  cut_dataset(data, job, table_rows(train), val ? table_rows(val) : nullptr);
  return data;
}

Data open_idx(const DataJob& job, const GraphInputs& inputs) {
  const auto open = [&](const DataFiles& files) { return idx_images(files.images, files.labels, inputs.id_limit); };
  Data data;
  cut_dataset(data, job, open(job.train), val_files(job) ? open(*val_files(job)) : nullptr);
  return data;
}

Data open_format(const DataJob& job, const GraphInputs& inputs) {
  switch (job.format) {
    case DataFormat::text:
      return open_text(job, inputs);
    case DataFormat::tokens:
      return open_tokens(job, inputs);
    case DataFormat::table:
      return open_table(job, inputs);
    case DataFormat::idx:
      return open_idx(job, inputs);
  }
  CHECK(false, "a format is one of four");
  throw;
}

}  // namespace

Data open_data(const DataJob& job, const GraphInputs& inputs) {
  Data data = open_format(job, inputs);
  const bool windowed = job.format == DataFormat::text || job.format == DataFormat::tokens;
  const std::string need = windowed ? " of seq_len + 1 = " + std::to_string(job.seq_len + 1) + " tokens" : "";
  check_samples(data.train.get(), job.train, "training", need);
  check_samples(data.val.get(), val_files(job) ? *val_files(job) : job.train, "validation", need);
  return data;
}

}  // namespace trainer::data
