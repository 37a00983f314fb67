// How labels are read and kept, and where a text lies in its row.
#include "engine/data/labelled.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/data/row_parts.h"
#include "engine/tokenizer/text_tokenizer.h"

namespace trainer::data {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLabelIds = 2, kHalf = 1 << 16;
constexpr std::int64_t kMostConfigBytes = 16 << 20;
constexpr double kMostClass = 1 << 24;  // integers up to here are exact in f32

/// config.json beside the tokenizer; an empty object where there is none.
Json config_of(const DataJob& job) {
  if (job.tokenizer != trainer::Tokenizer::file) return Json::object();
  const std::string path = folder_of_tokenizer(job) + "/config.json";
  if (!exists(path)) return Json::object();
  Json config = Json::parse(read_text(path, kMostConfigBytes), nullptr, false);
  if (!config.is_object()) throw DataError(path + ": is no JSON object");
  return config;
}

class Labelled final : public RowFormat {
 public:
  explicit Labelled(const DataJob& job) : job_(job), label_(named(job, "label")), classes_(label_names(job)) {
    if (job.tokenizer == trainer::Tokenizer::file)
      tokenizer_ = file_ = std::make_shared<FileTokenizer>(job.tokenizer_file);
    else
      tokenizer_ = std::make_shared<BytesTokenizer>();
  }

  EncodedRow encode(const std::string& row) const override {
    const RowJson json = object_of(row);
    const std::string& text = text_at(json, job_, "text");
    const auto label = json.find(label_);
    if (label == json.end()) missing(json, "label", label_);
    const auto bits = std::bit_cast<std::uint32_t>(number_of(*label));
    EncodedRow out{{static_cast<std::int32_t>(bits % kHalf), static_cast<std::int32_t>(bits / kHalf)}, {}};
    const std::vector<std::int32_t> ids = ids_of(text);
    if (ids.empty()) throw DataError("its text is empty");
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.trained.assign(out.ids.size(), false);
    return out;
  }
  std::string facts() const override {
    std::string facts = "labelled\n" + tokenizer_->json() + facts_of_names(job_);
    for (const auto& [name, id] : classes_) facts += fmt::format("\n{} is {}", name, id);
    return facts;
  }
  std::int64_t vocab_size() const override { return std::max(kHalf, tokenizer_->vocab_size()); }
  RowColumns columns() const override { return {{named(job_, "text"), label_}, {}}; }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return tokenizer_; }
  std::vector<std::int32_t> prompt(const std::string&) const override { UNREACHABLE("labelled rows have no answers"); }
  std::vector<std::int32_t> ends() const override { UNREACHABLE("labelled rows have no answers"); }

 private:
  float number_of(const RowJson& label) const {
    if (label.is_string()) {
      const auto known = classes_.find(label.get<std::string>());
      if (known != classes_.end()) return static_cast<float>(known->second);
      std::string names;
      for (const auto& [name, id] : classes_) names += (names.empty() ? "" : ", ") + name;
      throw DataError(fmt::format("its label \"{}\" is no class: {}", label.get<std::string>(),
                                  names.empty() ? "no config.json beside the tokenizer names classes (id2label), so "
                                                  "labels are numbers"
                                                : "the classes are " + names));
    }
    if (!label.is_number()) throw DataError("its label is neither a number nor the name of a class");
    const auto number = static_cast<float>(label.get<double>());
    if (!std::isfinite(number)) throw DataError("its label is no number that f32 can hold");
    return number;
  }

  /// With the special tokens that the tokenizer adds to a text. Those that are written in it are text.
  std::vector<std::int32_t> ids_of(const std::string& text) const {
    if (file_) return file_->text_tokenizer().encode(text, {.special = true, .plain = {.all = true}}).ids;
    return tokenizer_->encode(text);
  }

  const DataJob job_;
  const std::string label_;
  const std::map<std::string, double> classes_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const FileTokenizer> file_;  // null: bytes
};

}  // namespace

std::shared_ptr<const RowFormat> labelled_format(const DataJob& job) { return std::make_shared<Labelled>(job); }

std::map<std::string, double> label_names(const DataJob& job) {
  const Json config = config_of(job);
  std::map<std::string, double> classes;  // id2label is {"0": "name", …}
  const auto names = config.find("id2label");
  if (names == config.end() || !names->is_object()) return classes;
  for (const auto& [id, name] : names->items())
    if (name.is_string() && !id.empty() && id.size() < 8 &&
        std::ranges::all_of(id, [](char c) { return c >= '0' && c <= '9'; }))
      classes[name.get<std::string>()] = std::stod(id);
  return classes;
}

std::optional<std::int32_t> padding_of(const DataJob& job) {
  const Json config = config_of(job);
  const auto pad = config.find("pad_token_id");
  if (pad == config.end() || !pad->is_number_integer()) return std::nullopt;
  return pad->get<std::int32_t>();
}

LabelledSamples::LabelledSamples(std::shared_ptr<const RowStore> rows, std::int64_t first, std::int64_t count,
                                 const Options& options)
    : rows_(std::move(rows)), options_(options) {
  CHECK(first >= 0 && first + count <= rows_->num_rows(), "rows of the store");
  CHECK(options.too_long != TooLong::split, "a text has one label");
  const Shape shape{options.seq_len};
  fields_ = {{"tokens", DType::i32, shape}, {"targets", options.target_dtype, {}}};
  if (options.at_end)
    fields_.push_back({"documents", DType::i32, shape});
  else
    fields_.push_back({"lengths", DType::i32, {}});
  for (std::int64_t row = first; row < first + count && bad_row_ < 0; ++row)
    if (mistake_ = add(row); !mistake_.empty()) bad_row_ = row;
  counts_.samples = num_samples();
  counts_.room = counts_.samples * options_.seq_len;
}

/// Returns what is wrong with the row.
std::string LabelledSamples::add(std::int64_t row) {
  std::int32_t halves[kLabelIds];
  std::uint8_t trained[kLabelIds];
  rows_->read(rows_->start(row), kLabelIds, halves, trained);
  const auto bits = static_cast<std::uint32_t>(halves[0] + halves[1] * kHalf);
  Sample sample{rows_->start(row) + kLabelIds, rows_->length(row) - kLabelIds, std::bit_cast<float>(bits)};
  ++counts_.rows;
  counts_.ids += sample.count;
  if (options_.target_dtype == DType::i32) {
    const double label = sample.label;
    if (label != std::floor(label) || std::abs(label) > kMostClass)
      return fmt::format("its label {} is no class: the model has classes, which are whole numbers", label);
    if (label < 0 || (options_.classes > 0 && label >= static_cast<double>(options_.classes)))
      return fmt::format("its label {} is no class: the model has the classes 0 to {}", label, options_.classes - 1);
  }
  if (sample.count > options_.seq_len) {
    if (options_.too_long == TooLong::drop) {
      ++counts_.dropped;
      return "";
    }
    if (options_.too_long == TooLong::error)
      return fmt::format(
          "has {} tokens, more than data.seq_len = {}; data.too_long: drop or truncate says what "
          "becomes of such rows",
          sample.count, options_.seq_len);
    sample.count = options_.seq_len;
    ++counts_.truncated;
  }
  counts_.held += sample.count;
  samples_.push_back(sample);
  return "";
}

LabelledText LabelledSamples::text_of(std::int64_t sample) const {
  const Sample& it = samples_[static_cast<std::size_t>(sample)];
  LabelledText out{std::vector<std::int32_t>(static_cast<std::size_t>(it.count)), it.label};
  std::vector<std::uint8_t> trained(out.ids.size());
  rows_->read(it.first, it.count, out.ids.data(), trained.data());
  return out;
}

void LabelledSamples::read(std::int64_t sample, std::span<std::byte* const> out) const {
  auto [ids, number] = text_of(sample);
  if (options_.at_end && options_.pad)
    while (ids.size() > 1 && ids.back() == *options_.pad) ids.pop_back();
  const auto room = static_cast<std::size_t>(options_.seq_len), begin = options_.at_end ? room - ids.size() : 0;
  auto* tokens = reinterpret_cast<std::int32_t*>(out[0]);
  std::fill_n(tokens, room, 0);
  std::ranges::copy(ids, tokens + begin);
  if (options_.target_dtype == DType::i32) {
    const auto label = static_cast<std::int32_t>(number);
    std::memcpy(out[1], &label, sizeof label);
  } else {
    std::memcpy(out[1], &number, sizeof number);
  }
  auto* padding = reinterpret_cast<std::int32_t*>(out[2]);
  if (options_.at_end) {
    std::fill_n(padding, begin, 0);
    std::fill_n(padding + begin, ids.size(), 1);
  } else {
    *padding = static_cast<std::int32_t>(ids.size());
  }
}

}  // namespace trainer::data
