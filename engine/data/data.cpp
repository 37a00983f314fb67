// One function per format.
#include "engine/data/data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/file.h"
#include "engine/data/files.h"
#include "engine/data/idx.h"
#include "engine/data/later_targets.h"
#include "engine/data/row_format.h"
#include "engine/data/row_store.h"
#include "engine/data/table.h"
#include "engine/data/tensors.h"
#include "engine/data/token_stream.h"

namespace trainer::data {
namespace {

// Over the ids [first, first + count) of a stream: of n ids, sample i is `tokens` = ids[i·seq_len, (i+1)·seq_len) and
// `targets` one later, both i32 [seq_len]; there are ⌊(n − 1)/seq_len⌋.
class Windows final : public Dataset {
 public:
  Windows(std::shared_ptr<const TokenStream> stream, std::int64_t first, std::int64_t count, std::int64_t seq_len)
      : stream_(std::move(stream)),
        first_(first),
        seq_len_(seq_len),
        num_samples_(std::max<std::int64_t>(0, count - 1) / seq_len),
        fields_{{"tokens", DType::i32, Shape{seq_len}}, {"targets", DType::i32, Shape{seq_len}}} {
    CHECK(seq_len > 0 && first >= 0 && first + count <= stream_->num_tokens(), "windows lie in their stream");
  }

  std::int64_t num_samples() const override { return num_samples_; }
  const std::vector<SampleField>& fields() const override { return fields_; }

  void read(std::int64_t sample, std::span<std::byte* const> out) const override {
    std::vector<std::int32_t> ids(
        static_cast<std::size_t>(seq_len_ + 1));  // read at once: a second read costs as much as the first
    stream_->read(first_ + sample * seq_len_, seq_len_ + 1, ids.data());
    const std::size_t bytes = static_cast<std::size_t>(seq_len_) * sizeof ids.front();
    std::memcpy(out[0], ids.data(), bytes);
    std::memcpy(out[1], ids.data() + 1, bytes);
  }

 private:
  std::shared_ptr<const TokenStream> stream_;
  std::int64_t first_, seq_len_, num_samples_;
  std::vector<SampleField> fields_;
};

// Samples [first, first + count) of `whole`.
class Part final : public Dataset {
 public:
  Part(std::shared_ptr<const Dataset> whole, std::int64_t first, std::int64_t count)
      : whole_(std::move(whole)), first_(first), count_(count) {
    CHECK(first >= 0 && count >= 0 && first + count <= whole_->num_samples(), "a part lies in its whole");
  }
  std::int64_t num_samples() const override { return count_; }
  const std::vector<SampleField>& fields() const override { return whole_->fields(); }
  void read(std::int64_t sample, std::span<std::byte* const> out) const override { whole_->read(first_ + sample, out); }

 private:
  std::shared_ptr<const Dataset> whole_;
  std::int64_t first_, count_;
};

// Samples of several datasets with the same fields, one after the other.
class Joined final : public Dataset {
 public:
  explicit Joined(std::vector<std::shared_ptr<const Dataset>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) ends_.push_back((ends_.empty() ? 0 : ends_.back()) + part->num_samples());
  }
  std::int64_t num_samples() const override { return ends_.back(); }
  const std::vector<SampleField>& fields() const override { return parts_.front()->fields(); }
  void read(std::int64_t sample, std::span<std::byte* const> out) const override {
    const auto part = static_cast<std::size_t>(std::ranges::upper_bound(ends_, sample) - ends_.begin());
    parts_[part]->read(sample - (part == 0 ? 0 : ends_[part - 1]), out);
  }

 private:
  std::vector<std::shared_ptr<const Dataset>> parts_;
  std::vector<std::int64_t> ends_;
};

std::shared_ptr<const Dataset> joined(std::vector<std::shared_ptr<const Dataset>> parts) {
  if (parts.size() == 1) return parts.front();
  return std::make_shared<Joined>(std::move(parts));
}

// The training part of n things: the first ⌊n·(1 − fraction)⌋, apart from rounding of the product.
std::int64_t training_part(std::int64_t n, double fraction) {
  return static_cast<std::int64_t>(std::floor(static_cast<double>(n) * (1.0 - fraction) + 1e-6));
}

constexpr const char *kTrain = "data.train", *kVal = "data.val", *kTokenizer = "data.tokenizer",
                     *kTemplate = "data.template";

std::string first_name(const DataFiles& files) { return files.paths.empty() ? files.images : files.paths.front(); }

// The key that names a job's training files, or those of a part of its mix.
std::string train_key(const DataJob& job, std::size_t part = 0) {
  return job.mix.empty() ? kTrain : "data.mix[" + std::to_string(part) + "].files";
}

const DataFiles* val_files(const DataJob& job) { return std::get_if<DataFiles>(&job.val); }

double val_fraction(const DataJob& job) {
  const double* fraction = std::get_if<double>(&job.val);
  return fraction ? *fraction : 0;
}

// What `open` makes of files; its errors get the key that names them.
template <typename Open>
auto at(const std::string& key, const DataFiles& files, Open&& open) {
  try {
    return open(files);
  } catch (const DataError& error) {
    throw BadData(key, error.what());
  } catch (const IoError& error) {
    throw UnreadableData(key, error.what());
  }
}

// Training and validation files opened in the same way; of no validation files nothing.
template <typename Open>
auto open_both(const DataJob& job, Open&& open) {
  auto train = at(kTrain, job.train, open);
  auto val = val_files(job) ? at(kVal, *val_files(job), open) : decltype(train)();
  return std::pair(std::move(train), std::move(val));
}

// Training and validation windows of one stream, or of two.
void cut_stream(Data& data, const DataJob& job, std::shared_ptr<const TokenStream> train,
                std::shared_ptr<const TokenStream> val) {
  const std::int64_t n = train->num_tokens(), part = training_part(n, val_fraction(job));
  data.train = std::make_shared<Windows>(train, 0, part, job.seq_len);
  if (val) {
    data.val = std::make_shared<Windows>(val, 0, val->num_tokens(), job.seq_len);
  } else if (job.has_val()) {
    data.val = std::make_shared<Windows>(train, part, n - part, job.seq_len);
  }
}

// The same for datasets.
void cut_dataset(Data& data, const DataJob& job, std::shared_ptr<const Dataset> train,
                 std::shared_ptr<const Dataset> val) {
  const std::int64_t n = train->num_samples(), part = training_part(n, val_fraction(job));
  data.train = part == n ? train : std::make_shared<Part>(train, 0, part);
  data.val = val || !job.has_val() ? val : std::make_shared<Part>(train, part, n - part);
}

void check_vocabulary(const DataJob& job, const Tokenizer& tokenizer, std::int64_t limit) {
  const std::int64_t ids = tokenizer.vocab_size();
  if (limit == 0 || ids <= limit) return;
  const bool bytes = job.tokenizer == trainer::Tokenizer::bytes, file = job.tokenizer == trainer::Tokenizer::file;
  throw BadData(bytes || file ? kTokenizer : kTrain,
                (bytes  ? "`tokenizer: bytes` has " + std::to_string(ids) + " ids"
                 : file ? job.tokenizer_file + ": has " + std::to_string(ids) + " ids"
                        : first_name(job.train) + ": the text has " + std::to_string(ids) + " distinct characters") +
                    ", the model's vocabulary has " + std::to_string(limit) + " rows; it must have at least " +
                    std::to_string(ids));
}

// Of `tokenizer: PATH`, else null.
std::shared_ptr<const FileTokenizer> open_tokenizer(const DataJob& job) {
  if (job.tokenizer != trainer::Tokenizer::file) return nullptr;
  try {
    return std::make_shared<FileTokenizer>(job.tokenizer_file);
  } catch (const DataError& error) {
    const bool missing = is_directory(job.tokenizer_file) && !exists(job.tokenizer_file + "/tokenizer.json");
    throw BadData(kTokenizer, error.what() + std::string(missing ? "; or name another, or `bytes`" : ""));
  } catch (const IoError& error) {
    throw UnreadableData(kTokenizer, error.what());
  }
}

Data open_text(const DataJob& job, const GraphInputs& inputs, const Tokenizing& tokenizing) {
  Data data;
  std::shared_ptr<const CharsTokenizer> chars;  // of the training text
  const std::shared_ptr<const FileTokenizer> file = open_tokenizer(job);
  if (file) check_vocabulary(job, *file, inputs.id_limit);  // before all text is encoded
  const auto [train, val] = open_both(job, [&](const DataFiles& files) -> std::shared_ptr<const TokenStream> {
    const std::vector<std::string> paths = expand_paths(files.paths);
    if (job.tokenizer == trainer::Tokenizer::bytes) return bytes_stream(paths);
    if (file) return tokenized_stream(paths, *file, tokenizing);
    const CharsText text = chars_stream(paths, chars);
    chars = text.tokenizer;
    return text.stream;
  });
  if (chars)
    data.tokenizer = chars;
  else if (file)
    data.tokenizer = file;
  else
    data.tokenizer = std::make_shared<BytesTokenizer>();
  check_vocabulary(job, *data.tokenizer, inputs.id_limit);
  cut_stream(data, job, train, val);
  return data;
}

Data open_tokens(const DataJob& job, const GraphInputs& inputs, IdStream::Check check) {
  const auto [train, val] = open_both(job, [&](const DataFiles& files) {
    const auto stream = std::make_shared<IdStream>(expand_paths(files.paths), job.token_type, inputs.id_limit);
    stream->check(check);
    return stream;
  });
  Data data;
  cut_stream(data, job, train, val);
  return data;
}

Data open_table(const DataJob& job, const GraphInputs& inputs) {
  const TableOptions options{job.target, inputs.target_dtype, inputs.id_limit};
  const auto [train, val] = open_both(
      job, [&](const DataFiles& files) { return std::make_shared<Table>(expand_paths(files.paths), options); });
  // A file without rows has no features either; too few samples are told by open_data.
  if (val && val->num_rows() > 0 && train->num_rows() > 0 && val->num_features() != train->num_features()) {
    throw BadData(kVal, first_name(*val_files(job)) + ": has " + std::to_string(val->num_features()) +
                            " features, the training table has " + std::to_string(train->num_features()));
  }
  const std::int64_t part = training_part(train->num_rows(), val_fraction(job));
  if (job.normalize == Normalize::standard && part > 0) {
    const Scaling scaling = train->scaling(part);
    train->scale(scaling);
    if (val && val->num_rows() > 0) val->scale(scaling);
  }
  Data data;
  cut_dataset(data, job, table_rows(train), val ? table_rows(val) : nullptr);
  return data;
}

Data open_idx(const DataJob& job, const GraphInputs& inputs) {
  const auto [train, val] =
      open_both(job, [&](const DataFiles& files) { return idx_images(files.images, files.labels, inputs.id_limit); });
  Data data;
  cut_dataset(data, job, train, val);
  return data;
}

Data open_tensors(const DataJob& job, const GraphInputs& inputs) {
  const auto [train, val] = open_both(job, [&](const DataFiles& files) {
    return tensor_samples(expand_paths(files.paths), inputs.fields, job.fields);
  });
  Data data;
  cut_dataset(data, job, train, val);
  return data;
}

// ---- Rows ----

std::shared_ptr<const RowFormat> open_row_format(const DataJob& job) {
  try {
    return job.is_labelled() ? labelled_format(job) : row_format(job);
  } catch (const DataError& error) {
    const bool of_template = !job.chat_template.empty() && std::string(error.what()).starts_with(job.chat_template);
    throw BadData(of_template ? kTemplate : kTokenizer, error.what());
  } catch (const IoError& error) {
    throw UnreadableData(kTokenizer, error.what());
  }
}

// The parts of the training rows, or the one that all of them are.
std::vector<DataFiles> training_files(const DataJob& job) {
  if (job.mix.empty()) return {job.train};
  std::vector<DataFiles> parts;
  for (const MixPart& part : job.mix) parts.push_back({.paths = part.paths, .images = {}, .labels = {}});
  return parts;
}

std::int64_t longest_of(const RowStore& rows, std::int64_t row) {
  std::int64_t longest = 0;
  for (int sequence = 0; sequence < rows.sequences(); ++sequence)
    longest = std::max(longest, rows.length(row, sequence));
  return longest;
}

// Rows [first, first + count) as samples. A row that is too long is an error that says where it is.
std::shared_ptr<const RowSamples> samples_of(const DataJob& job, const DataFiles& files,
                                             const std::shared_ptr<const RowStore>& rows, std::int64_t first,
                                             std::int64_t count) {
  const RowSamples::Options options{job.seq_len, job.packing, job.too_long};
  auto samples = std::make_shared<RowSamples>(rows, first, count, options);
  if (const std::int64_t row = samples->first_too_long(); row >= 0)
    throw DataError(place_of_row(expand_paths(files.paths), row) + ": has " + std::to_string(longest_of(*rows, row)) +
                    " tokens, more than data.seq_len + 1 = " + std::to_string(job.seq_len + 1) +
                    "; data.too_long: " + (rows->sequences() == 1 ? "drop, truncate or split" : "drop or truncate") +
                    " says what becomes of such rows");
  return samples;
}

Data open_rows_of(const DataJob& job, const GraphInputs& inputs, const Tokenizing& tokenizing) {
  const std::shared_ptr<const RowFormat> format = open_row_format(job);
  Data data;
  data.tokenizer = format->tokenizer();
  check_vocabulary(job, *data.tokenizer, inputs.id_limit);
  const std::vector<DataFiles> parts = training_files(job);
  for (std::size_t i = 0; i < parts.size(); ++i)
    at(train_key(job, i), parts[i], [&](const DataFiles& files) {
      const auto rows = encoded_rows(expand_paths(files.paths), *format, tokenizing);
      const std::int64_t n = rows->num_rows(), part = training_part(n, val_fraction(job));
      data.train_rows.push_back(samples_of(job, files, rows, 0, part));
      if (part < n) data.val_rows.push_back(samples_of(job, files, rows, part, n - part));
      return 0;
    });
  if (val_files(job))
    at(kVal, *val_files(job), [&](const DataFiles& files) {
      const auto rows = encoded_rows(expand_paths(files.paths), *format, tokenizing);
      data.val_rows.push_back(samples_of(job, files, rows, 0, rows->num_rows()));
      return 0;
    });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts.size() > 1 && data.train_rows[i]->num_samples() == 0)
      throw BadData(train_key(job, i), first_name(parts[i]) + ": this part of the mix has no sample");
    data.parts.push_back({data.train_rows[i]->num_samples(), job.mix.empty() ? 1 : job.mix[i].weight});
  }
  data.train = joined({data.train_rows.begin(), data.train_rows.end()});
  if (!data.val_rows.empty())
    data.val = joined({data.val_rows.begin(), data.val_rows.end()});
  else if (job.has_val())
    throw BadData(kVal, first_name(job.train) + ": too few rows to hold out that part; write a larger `fraction`");
  return data;
}

// Texts with a label each. Their places in rows follow from what the graph reads.
Data open_labelled(const DataJob& job, const GraphInputs& inputs, const Tokenizing& tokenizing) {
  const std::shared_ptr<const RowFormat> format = open_row_format(job);
  Data data;
  data.tokenizer = format->tokenizer();
  check_vocabulary(job, *data.tokenizer, inputs.id_limit);
  const LabelledSamples::Options options{
      .seq_len = job.seq_len,
      .too_long = job.too_long,
      .at_end = std::ranges::find(inputs.fields, "documents", &SampleField::name) != inputs.fields.end(),
      .target_dtype = inputs.target_dtype,
      .classes = inputs.classes,
      .pad = padding_of(job)};
  const auto open = [&](const DataFiles& files, double from, double to) {
    const std::vector<std::string> paths = expand_paths(files.paths);
    const auto rows = encoded_rows(paths, *format, tokenizing);
    const std::int64_t first = training_part(rows->num_rows(), 1 - from), end = training_part(rows->num_rows(), 1 - to);
    const auto samples = std::make_shared<const LabelledSamples>(rows, first, end - first, options);
    if (samples->bad_row() >= 0) throw DataError(place_of_row(paths, samples->bad_row()) + ": " + samples->mistake());
    return samples;
  };
  const double kept = 1 - val_fraction(job);
  auto &train = data.train_labelled, &val = data.val_labelled;
  const std::vector<DataFiles> parts = training_files(job);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    train.push_back(at(train_key(job, i), parts[i], [&](const DataFiles& files) { return open(files, 0, kept); }));
    if (kept < 1)
      val.push_back(at(train_key(job, i), parts[i], [&](const DataFiles& files) { return open(files, kept, 1); }));
    if (parts.size() > 1 && train.back()->num_samples() == 0)
      throw BadData(train_key(job, i), first_name(parts[i]) + ": this part of the mix has no sample");
    data.parts.push_back({train.back()->num_samples(), job.mix.empty() ? 1 : job.mix[i].weight});
  }
  if (val_files(job))
    val.push_back(at(kVal, *val_files(job), [&](const DataFiles& files) { return open(files, 0, 1); }));
  data.train = joined({train.begin(), train.end()});
  if (!val.empty()) data.val = joined({val.begin(), val.end()});
  return data;
}

// All rows as ids, for the cache.
void encode_rows(const DataJob& job, std::int64_t id_limit, const Tokenizing& tokenizing) {
  const std::shared_ptr<const RowFormat> format = open_row_format(job);
  check_vocabulary(job, *format->tokenizer(), id_limit);
  const auto encode = [&](const DataFiles& files) {
    cache_rows(expand_paths(files.paths), *format, tokenizing);
    return 0;
  };
  const std::vector<DataFiles> parts = training_files(job);
  for (std::size_t i = 0; i < parts.size(); ++i) at(train_key(job, i), parts[i], encode);
  if (val_files(job)) at(kVal, *val_files(job), encode);
}

Data open_format(const DataJob& job, const GraphInputs& inputs, IdStream::Check ids, const Tokenizing& tokenizing) {
  switch (job.format) {
    case DataFormat::text:
      return open_text(job, inputs, tokenizing);
    case DataFormat::tokens:
      return open_tokens(job, inputs, ids);
    case DataFormat::table:
      return open_table(job, inputs);
    case DataFormat::idx:
      return open_idx(job, inputs);
    case DataFormat::tensors:
      return open_tensors(job, inputs);
    case DataFormat::documents:
    case DataFormat::chat:
    case DataFormat::completion:
    case DataFormat::preference:
      return open_rows_of(job, inputs, tokenizing);
    case DataFormat::labelled:
      return open_labelled(job, inputs, tokenizing);
  }
  UNREACHABLE("a format is one of those listed");
}

void check_samples(const DataJob& job, const Data& data) {
  const bool windows = job.is_text() && !job.is_rows();
  const std::string need = windows ? " of seq_len + 1 = " + std::to_string(job.seq_len + 1) + " tokens" : "";
  if (data.train->num_samples() == 0)
    throw BadData(train_key(job), first_name(job.train) + ": the training part has no sample" + need);
  if (!data.val || data.val->num_samples() > 0) return;
  const bool fraction = !val_files(job);
  throw BadData(kVal, first_name(fraction ? job.train : *val_files(job)) + ": the validation part has no sample" +
                          need + (fraction ? "; write a larger `fraction`" : ""));
}

}  // namespace

Data open_data(const DataJob& job, const GraphInputs& inputs, IdStream::Check ids, const Tokenizing& tokenizing) {
  Data data = open_format(job, inputs, ids, tokenizing);
  check_samples(job, data);
  if (std::ranges::find(inputs.fields, kLaterTargets, &SampleField::name) != inputs.fields.end()) {
    data.train = with_later_targets(data.train);
    if (data.val) data.val = with_later_targets(data.val);
  }
  if (data.parts.empty()) data.parts = {{data.train->num_samples(), 1}};
  return data;
}

bool is_tokenized(const DataJob& job) {
  return (job.format == DataFormat::text || job.is_rows()) && job.tokenizer == trainer::Tokenizer::file;
}

bool is_cached(const DataJob& job) { return is_tokenized(job) || job.is_rows(); }

std::string summary_of_rows(const Data& data, std::int64_t seq_len, bool val) {
  if (!data.has_rows()) return "";
  RowCounts sum;
  for (const auto& part : val ? data.val_rows : data.train_rows) sum += part->counts();
  for (const auto& part : val ? data.val_labelled : data.train_labelled) sum += part->counts();
  return sum.summary(seq_len);
}

void tokenize_data(const DataJob& job, std::int64_t id_limit, const Tokenizing& tokenizing) {
  if (!is_cached(job)) return;
  if (job.is_rows()) return encode_rows(job, id_limit, tokenizing);
  const std::shared_ptr<const FileTokenizer> file = open_tokenizer(job);
  check_vocabulary(job, *file, id_limit);
  open_both(job,
            [&](const DataFiles& files) { return tokenized_stream(expand_paths(files.paths), *file, tokenizing); });
}

}  // namespace trainer::data
