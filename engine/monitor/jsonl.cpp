// log.jsonl. What a run before wrote is read once, when the file is opened: each line's place in the history and where
// it begins, so that a record can cut off what it replaces. The same holds of the lines that this run writes, for
// rollbacks.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/monitor/monitors.h"
#include "engine/monitor/output.h"

namespace trainer {
namespace {

// The order of lines: evaluation after n updates, then starts and rollbacks at n, then step n.
std::int64_t place_of_evaluation(std::int64_t step) { return 3 * step; }
std::int64_t place_of_event(std::int64_t step) { return 3 * step + 1; }
std::int64_t place_of_step(std::int64_t step) { return 3 * step + 2; }

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

constexpr std::int64_t kPlaceOfFirst = -1;  // the start of a fresh run: a file's first line

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string host() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  return name;
}

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
      (!line.contains("loss") && !line.contains("val_loss") && !line.contains("event")))
    throw DataError(
        fmt::format("{}:{}: this is not a line of a training log; the file is left as it is", path, number));
  const std::int64_t step = line["step"].get<std::int64_t>();
  if (line.contains("event"))
    return {
        step == 0 && line.contains("checkpoint") && line["checkpoint"].is_null() ? kPlaceOfFirst : place_of_event(step),
        begin};
  return {line.contains("val_loss") ? place_of_evaluation(step) : place_of_step(step), begin};
}

History read_history(const std::string& path) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  History history;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos;
       end = text.find('\n', static_cast<std::size_t>(history.bytes))) {
    const auto begin = static_cast<std::size_t>(history.bytes);
    history.lines.push_back(read_line(text.substr(begin, end - begin), history.bytes, path, history.lines.size() + 1));
    history.bytes = static_cast<std::int64_t>(end) + 1;
  }
  if (history.lines.empty() && !text.empty() && text.front() != '{')
    read_line(text, 0, path, 1);  // no log, and not to be cut
  return history;
}

class Jsonl final : public Monitor {
 public:
  explicit Jsonl(std::string path) : path_(std::move(path)) {}

  void start(const StartRecord& record) override {
    open();
    std::string changes;
    for (const std::string& change : record.changes) changes += (changes.empty() ? "" : ", ") + quoted(change);
    const std::int64_t place = record.checkpoint.empty() ? kPlaceOfFirst : place_of_event(record.step);
    append(
        place, record.checkpoint.empty() ? Cut::from : Cut::after,
        fmt::format(
            R"({{"step": {}, "event": "start", "run": {}, "time": {:.3f}, "host": {}, "pid": {}, "plan_hash": {}, "checkpoint": {}, "changes": [{}]}})",
            record.step, quoted(record.run_id), now(), quoted(host()), ::getpid(), quoted(record.plan_hash),
            record.checkpoint.empty() ? "null" : quoted(record.checkpoint), changes));
  }

  void rollback(const RollbackRecord& record) override {
    append(place_of_event(record.step), Cut::after,
           fmt::format(R"({{"step": {}, "event": "rollback", "time": {:.3f}, "checkpoint": {}, "reason": {}}})",
                       record.step, now(), quoted(record.checkpoint), quoted(record.reason)));
  }

  void step(const StepRecord& record) override {
    std::string more;
    if (record.mfu) more += fmt::format(R"(, "mfu": {:.4g})", *record.mfu);
    if (record.loss_scale) more += fmt::format(R"(, "loss_scale": {})", number(*record.loss_scale));
    if (record.aux_loss) more += fmt::format(R"(, "aux_loss": {})", number(*record.aux_loss));
    if (record.dropped) more += fmt::format(R"(, "dropped": {})", *record.dropped);
    if (record.skipped) more += R"(, "skipped": true)";
    more += text_of(record.figures);
    append(
        place_of_step(record.step), Cut::from,
        fmt::format(
            R"({{"step": {}, "loss": {}, "lr": {}, "grad_norm": {}, "tokens": {}, "step_ms": {:.3f}, "tokens_per_s": {:.1f}, "time": {:.3f}, "samples": {}, "epoch": {:.6g}, "memory_bytes": {}{}}})",
            record.step, number(record.loss), number(record.lr), number(record.grad_norm), record.tokens,
            record.step_ms, record.tokens_per_s, record.time, record.samples, record.epoch, record.memory_bytes, more));
  }

  void evaluation(const EvaluationRecord& record) override {
    std::string more;
    if (record.val_accuracy) more += fmt::format(R"(, "val_accuracy": {})", number(*record.val_accuracy));
    if (record.exact_match) more += fmt::format(R"(, "exact_match": {})", number(*record.exact_match));
    append(place_of_evaluation(record.step), Cut::from,
           fmt::format(R"({{"step": {}, "val_loss": {}{}}})", record.step, number(record.val_loss),
                       more + text_of(record.figures)));
  }

 private:
  static std::string text_of(const Figures& figures) {
    std::string text;
    for (const auto& [name, value] : figures) text += fmt::format(R"(, "{}": {})", name, number(value));
    return text;
  }

  enum class Cut : std::uint8_t { from, after };  // the line's own place, or what comes after it

  // One run at a time: the lock ends with the process, however it ends.
  void open() {
    if (output_) return;
    output_.emplace(path_, Output::Start::append);
    if (!output_->lock()) throw IoError(path_ + ": another run writes this log; give each run a log.jsonl of its own");
    history_ = read_history(path_);
    output_->truncate(history_.bytes);
  }

  void append(std::int64_t place, Cut cut, const std::string& line) {
    open();
    bool shorter = false;
    for (; !history_.lines.empty() &&
           (history_.lines.back().place > place || (cut == Cut::from && history_.lines.back().place == place));
         shorter = true) {
      history_.bytes = history_.lines.back().begin;
      history_.lines.pop_back();
    }
    if (shorter) output_->truncate(history_.bytes);
    output_->write(line + "\n");
    history_.lines.push_back({place, history_.bytes});
    history_.bytes += static_cast<std::int64_t>(line.size()) + 1;
  }

  const std::string path_;
  std::optional<Output> output_;  // once something is to be written
  History history_;               // of what the file holds
};

}  // namespace

std::unique_ptr<Monitor> jsonl_monitor(const std::string& path) { return std::make_unique<Jsonl>(path); }

}  // namespace trainer
