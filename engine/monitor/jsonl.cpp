// log.jsonl. What a run before wrote is read once, when the monitor is made: each line's place in the history and
// where it begins, so that the first record can cut at the right byte.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/monitor/monitors.h"
#include "engine/monitor/output.h"

namespace trainer {
namespace {

// The order of lines: evaluation after n updates, then step n.
std::int64_t place_of_evaluation(std::int64_t step) { return 2 * step; }
std::int64_t place_of_step(std::int64_t step) { return 2 * step + 1; }

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

struct Line {
  std::int64_t place = 0;
  std::int64_t begin = 0;  // byte
};

struct History {
  std::vector<Line> lines;
  std::int64_t bytes = 0;  // without a half-written last line
};

Line read_line(std::string_view text, std::int64_t begin, const std::string& path, std::size_t number) {
  const nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
  if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer() ||
      (!line.contains("loss") && !line.contains("val_loss")))
    throw DataError(fmt::format("{}:{}: this is no line of a training log; the file is left as it is", path, number));
  const std::int64_t step = line["step"].get<std::int64_t>();
  return {line.contains("val_loss") ? place_of_evaluation(step) : place_of_step(step), begin};
}

History read_history(const std::string& path) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  History history;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n', static_cast<std::size_t>(history.bytes))) {
    const auto begin = static_cast<std::size_t>(history.bytes);
    history.lines.push_back(read_line(text.substr(begin, end - begin), history.bytes, path, history.lines.size() + 1));
    history.bytes = static_cast<std::int64_t>(end) + 1;
  }
  if (history.lines.empty() && !text.empty() && text.front() != '{') read_line(text, 0, path, 1);  // no log, and not to be cut
  return history;
}

class Jsonl final : public Monitor {
 public:
  explicit Jsonl(const std::string& path) : output_(path, Output::Start::append), history_(read_history(path)) {}

  void step(const StepRecord& record) override {
    const std::string scale = record.loss_scale ? fmt::format(R"(, "loss_scale": {}{})", number(*record.loss_scale), record.skipped ? R"(, "skipped": true)" : "") : "";
    append(place_of_step(record.step),
           fmt::format(R"({{"step": {}, "loss": {}, "lr": {}, "grad_norm": {}, "tokens": {}, "step_ms": {:.3f}, "tokens_per_s": {:.1f}{}}})",
                       record.step, number(record.loss), number(record.lr), number(record.grad_norm), record.tokens, record.step_ms,
                       record.tokens_per_s, scale));
  }

  void evaluation(const EvaluationRecord& record) override {
    const std::string accuracy = record.val_accuracy ? fmt::format(R"(, "val_accuracy": {})", number(*record.val_accuracy)) : "";
    append(place_of_evaluation(record.step),
           fmt::format(R"({{"step": {}, "val_loss": {}{}}})", record.step, number(record.val_loss), accuracy));
  }

 private:
  void append(std::int64_t place, const std::string& line) {
    if (!joined_) join(place);
    output_.write(line + "\n");
  }

  void join(std::int64_t place) {
    std::int64_t keep = history_.bytes;
    for (auto line = history_.lines.rbegin(); line != history_.lines.rend() && line->place >= place; ++line) keep = line->begin;
    output_.truncate(keep);
    joined_ = true;
  }

  Output output_;
  History history_;
  bool joined_ = false;
};

}  // namespace

std::unique_ptr<Monitor> jsonl_monitor(const std::string& path) { return std::make_unique<Jsonl>(path); }

}  // namespace trainer
