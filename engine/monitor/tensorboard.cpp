// Event files of TensorBoard, written by hand: they are TFRecords of small protobuf messages.
//   record   u64 length, u32 masked crc32c of the length, the message, u32 masked crc32c of it; little-endian
//   Event    1 wall_time double, 2 step int64, and one of 3 file_version string, 5 summary Summary, 7 session_log
//            SessionLog
//   Summary  repeated 1 value Value;  Value  1 tag string, 2 simple_value float;  SessionLog  1 status (1: start)
// Source: tensorflow's record_writer.cc, event.proto and summary.proto.
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <optional>

#include "engine/monitor/crc32c.h"
#include "engine/monitor/monitors.h"
#include "engine/monitor/output.h"

namespace trainer {
namespace {

static_assert(std::endian::native == std::endian::little, "records are copied from memory");

template <typename T>
std::string bytes_of(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// Wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
std::string key(int field, int wire_type) { return varint(static_cast<std::uint64_t>(field << 3 | wire_type)); }
std::string integer_field(int field, std::int64_t value) {
  return key(field, 0) + varint(static_cast<std::uint64_t>(value));
}
std::string bytes_field(int field, const std::string& bytes) { return key(field, 2) + varint(bytes.size()) + bytes; }

std::string scalar(const std::string& tag, double value) {
  return bytes_field(1, bytes_field(1, tag) + key(2, 5) + bytes_of(static_cast<float>(value)));
}

std::string framed(const std::string& message) {
  const std::string length = bytes_of<std::uint64_t>(message.size());
  return length + bytes_of(masked(crc32c(length))) + message + bytes_of(masked(crc32c(message)));
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard takes a folder's event files in the order of their names, so the name begins with the time.
std::string file_name() {
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  return "events.out.tfevents." + std::to_string(static_cast<std::int64_t>(wall_seconds())) + "." + host + "." +
         std::to_string(::getpid());
}

class TensorBoard final : public Monitor {
 public:
  explicit TensorBoard(std::string folder) : folder_(std::move(folder)) {}
  TensorBoard(const TensorBoard&) = delete;
  ~TensorBoard() override {
    try {
      flush();
    } catch (...) {
      // The last second's curve is lost; the run that ends here has reported its own outcome.
    }
  }

  void start(const StartRecord&) override { open(); }
  void rollback(const RollbackRecord&) override { started_ = false; }

  void step(const StepRecord& record) override {
    start_at(record.step);
    std::string more = record.loss_scale ? scalar("loss_scale", *record.loss_scale) : "";
    if (record.aux_loss) more += scalar("aux_loss", *record.aux_loss);
    if (record.dropped) more += scalar("dropped", static_cast<double>(*record.dropped));
    put(record.step,
        bytes_field(5, scalar("loss", record.loss) + scalar("lr", record.lr) + scalar("grad_norm", record.grad_norm) +
                           scalar("tokens_per_s", record.tokens_per_s) + more + scalars(record.figures)));
    if (wall_seconds() - flushed_ > 1) flush();
  }

  void evaluation(const EvaluationRecord& record) override {
    start_at(record.step);
    std::string values = scalar("val_loss", record.val_loss);
    if (record.val_accuracy) values += scalar("val_accuracy", *record.val_accuracy);
    if (record.exact_match) values += scalar("exact_match", *record.exact_match);
    put(record.step, bytes_field(5, values + scalars(record.figures)));
    flush();
  }

 private:
  static std::string scalars(const Figures& figures) {
    std::string text;
    for (const auto& [name, value] : figures) text += scalar(name, value);
    return text;
  }

  // A refused start leaves no file.
  void open() {
    if (output_) return;
    output_.emplace(folder_ + "/" + file_name(), Output::Start::empty);
    put(0, bytes_field(3, "brain.Event:2"));
    flush();
  }

  // The first record of a run: a start at this step makes readers drop what other files have from it on.
  void start_at(std::int64_t step) {
    open();
    if (!started_) put(step, bytes_field(7, integer_field(1, 1)));
    started_ = true;
  }

  void put(std::int64_t step, const std::string& what) {
    waiting_ += framed(key(1, 1) + bytes_of(wall_seconds()) + integer_field(2, step) + what);
  }

  void flush() {
    if (!output_) return;
    output_->write(waiting_);
    waiting_.clear();
    flushed_ = wall_seconds();
  }

  const std::string folder_;
  std::optional<Output> output_;
  std::string waiting_;
  double flushed_ = 0;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<Monitor> tensorboard_monitor(const std::string& folder) {
  return std::make_unique<TensorBoard>(folder);
}

}  // namespace trainer
