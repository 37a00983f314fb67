// Progress for people. Time left is measured from the first step of this run on, evaluations and checkpoints included.
#include <fmt/format.h>
#include <langinfo.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <string_view>

#include "engine/core/printable.h"
#include "engine/core/text_output.h"
#include "engine/monitor/curve.h"
#include "engine/monitor/monitors.h"

namespace trainer {
namespace {

constexpr double kSecondsBetweenDraws = 0.1;
constexpr int kPatienceMs = 1000;  // for what is said once; a step's line is followed by others, and waits for nobody
constexpr std::size_t kCurveColumns = 24;

// A whole number with its thousands apart: "31,415".
std::string grouped(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (digits.front() == '-' ? 1 : 0); at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string rate(double per_second) {
  return per_second < 100 ? fmt::format("{:.1f}", per_second) : grouped(per_second);
}

std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  return fmt::format("{} d {:02} h", whole / 86400, whole / 3600 % 24);
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Progress final : public Monitor {
 public:
  explicit Progress(ProgressOptions options)
      : options_(std::move(options)), output_(options_.descriptor), curve_(kCurveColumns) {
    if (!options_.seconds) options_.seconds = steady_seconds;
  }
  Progress(const Progress&) = delete;
  ~Progress() override {
    if (drawn_) output_.write("\n", 0);
  }

  void step(const StepRecord& record) override {
    const double now = options_.seconds();
    if (steps_ == 0) started_ = now;
    ++steps_;
    if (std::isfinite(record.loss)) {
      curve_.add(record.loss);
      losses_ += record.loss;
      ++num_losses_;
    }
    const std::int64_t made = record.step + 1;
    const bool last = made == record.num_steps;
    if (record.lowers_scale)
      line(fmt::format("step {}: overflow at loss scale {:g}; the update was skipped, the scale lowered", made,
                       record.loss_scale.value_or(1)));
    if (options_.terminal) {
      if (last || now - drawn_at_ >= kSecondsBetweenDraws) draw(record, now);
    } else if (last || steps_ == 1 || made % options_.every == 0) {
      output_.write(fmt::format("{}{}, grad norm {:.3g}, lr {:.3g}, {}{}\n", head(record), text_of(record.figures),
                                record.grad_norm, record.lr, speed(record), left(record, now)),
                    0);
    }
  }
  void rollback(const RollbackRecord& record) override { line(record.reason); }

  void evaluation(const EvaluationRecord& record) override {
    std::string more;
    if (record.val_accuracy) more += fmt::format(", accuracy {:.2f}%", 100 * *record.val_accuracy);
    if (record.exact_match) more += fmt::format(", exact match {:.2f}%", 100 * *record.exact_match);
    line(fmt::format("step {}: validation loss {:.4f}{}{}", record.step, record.val_loss, more,
                     text_of(record.figures)));
  }
  void checkpoint(std::int64_t step, const std::string& path) override {
    line(fmt::format("step {}: saved {}", step, path));
  }
  void message(const std::string& text) override { line(text); }

 private:
  static std::string text_of(const Figures& figures) {
    std::string text;
    for (const auto& [name, value] : figures) text += fmt::format(", {} {:.3g}", name, value);
    return text;
  }

  // Updates made, as evaluations and checkpoints count them, and the mean loss of the steps since it was last shown.
  std::string head(const StepRecord& record) {
    const double loss = num_losses_ > 0 ? losses_ / static_cast<double>(num_losses_) : record.loss;
    const std::string of = num_losses_ > 1 ? fmt::format(" (mean of {} steps)", num_losses_) : "";
    losses_ = 0;
    num_losses_ = 0;
    return fmt::format("step {}/{}: loss {:.4f}{}", record.step + 1, record.num_steps, loss, of);
  }
  std::string speed(const StepRecord& record) const {
    return fmt::format("{} {}/s", rate(record.tokens_per_s), options_.unit);
  }

  // The first step warms caches up and begins the measurement; there is an estimate from the second on.
  std::string left(const StepRecord& record, double now) const {
    const std::int64_t remaining = record.num_steps - record.step - 1;
    if (remaining <= 0 || steps_ < 2) return "";
    return ", " + duration((now - started_) / static_cast<double>(steps_ - 1) * static_cast<double>(remaining)) +
           " left";
  }

  void draw(const StepRecord& record, double now) {
    const std::string text = fmt::format("{}, {}{}", head(record), speed(record), left(record, now));
    std::string shown = text.substr(0, static_cast<std::size_t>(std::max(1, options_.width - 1)));
    if (options_.unicode && text.size() + 2 + kCurveColumns < static_cast<std::size_t>(options_.width))
      shown += "  " + curve_.text();
    output_.write("\r" + shown + "\x1b[K", 0);
    drawn_ = true;
    drawn_at_ = now;
  }

  // A line of its own; the next step draws the rewritten line below it.
  void line(const std::string& text) {
    output_.write((drawn_ ? "\r\x1b[K" : "") + printable_lines(text) + "\n", kPatienceMs);
    drawn_ = false;
    drawn_at_ = 0;
  }

  ProgressOptions options_;
  TextOutput output_;
  Curve curve_;
  std::int64_t steps_ = 0;  // of this run
  double started_ = 0;      // at the end of its first step
  double losses_ = 0;       // sum since one was shown
  std::int64_t num_losses_ = 0;
  bool drawn_ = false;  // the cursor stands in a line that may be rewritten
  double drawn_at_ = 0;
};

}  // namespace

ProgressOptions progress_options(int descriptor, std::int64_t every) {
  ProgressOptions options;
  options.every = every;
  options.descriptor = descriptor;
  options.terminal = ::isatty(descriptor) == 1;
  if (winsize size{}; ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) options.width = size.ws_col;
  if (const locale_t locale = ::newlocale(LC_CTYPE_MASK, "", nullptr); locale != nullptr) {
    options.unicode = std::string_view(::nl_langinfo_l(CODESET, locale)) == "UTF-8";
    ::freelocale(locale);
  }
  return options;
}

std::unique_ptr<Monitor> progress_monitor(const ProgressOptions& options) {
  return std::make_unique<Progress>(options);
}

}  // namespace trainer
