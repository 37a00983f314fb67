// Writing traces, an event a line.
#include "engine/monitor/trace.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/monitor/output.h"

namespace trainer {
namespace {

constexpr std::size_t kBuffered = std::size_t{1} << 20;

std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string metadata(std::string_view what, int rank, int stream, std::string_view name) {
  return fmt::format(R"({{"ph": "M", "name": "{}", "pid": {}, "tid": {}, "args": {{"name": {}}}}})", what, rank, stream,
                     quoted(name));
}

// Only an earlier trace is overwritten: every one begins with these bytes.
const std::string& checked(const std::string& path) {
  constexpr std::string_view kEvent = "[\n{\"ph\": \"", kEmpty = "[\n]\n";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || std::filesystem::file_size(path, error) == 0) return path;
  std::string head(kEvent.size(), '\0');
  std::ifstream(path, std::ios::binary).read(head.data(), static_cast<std::streamsize>(head.size()));
  if (head != kEvent && !std::string_view(head).starts_with(kEmpty))
    throw DataError(path + ": this file is not a trace, so it is not overwritten; name another file");
  return path;
}

}  // namespace

struct TraceWriter::State {
  explicit State(const std::string& path) : output(checked(path), Output::Start::empty) {}

  void append(const std::string& event) {
    const std::lock_guard lock(mutex);
    waiting += empty ? "[\n" : ",\n";
    waiting += event;
    empty = false;
    if (waiting.size() >= kBuffered) flush();
  }
  void flush() {
    output.write(waiting);
    waiting.clear();
  }

  std::mutex mutex;
  Output output;
  std::string waiting;
  bool empty = true, closed = false;
};

TraceWriter::TraceWriter(const std::string& path) : state_(std::make_unique<State>(path)) {}

TraceWriter::~TraceWriter() {
  try {
    close();
  } catch (...) {
    // A trace that could not be written to its end still opens; close() is there for who wants to know.
  }
}

void TraceWriter::name_rank(int rank, std::string_view name) {
  state_->append(metadata("process_name", rank, 0, name));
}
void TraceWriter::name_stream(int rank, int stream, std::string_view name) {
  state_->append(metadata("thread_name", rank, stream, name));
}

void TraceWriter::label_rank(int rank, std::string_view label) {
  state_->append(
      fmt::format(R"({{"ph": "M", "name": "process_labels", "pid": {}, "tid": 0, "args": {{"labels": {}}}}})", rank,
                  quoted(label)));
}
void TraceWriter::order_rank(int rank, int place) {
  state_->append(
      fmt::format(R"({{"ph": "M", "name": "process_sort_index", "pid": {}, "tid": 0, "args": {{"sort_index": {}}}}})",
                  rank, place));
}

void TraceWriter::add_arrow(std::int64_t id, std::string_view name, const TracePoint& from, const TracePoint& to) {
  const auto half = [&](const char* phase, const TracePoint& point) {
    state_->append(
        fmt::format(R"({{"ph": {}, "id": {}, "name": {}, "cat": "arrow", "pid": {}, "tid": {}, "ts": {:.3f}}})", phase,
                    id, quoted(name), point.rank, point.stream, point.at_us));
  };
  half(R"("s")", from);
  half(R"("f", "bp": "e")", to);
}

void TraceWriter::add(const TraceEvent& event) {
  std::string arguments;
  for (const auto& [name, value] : event.numbers)
    arguments += fmt::format("{}{}: {}", arguments.empty() ? "" : ", ", quoted(name), nlohmann::json(value).dump());
  for (const auto& [name, value] : event.texts)
    arguments += fmt::format("{}{}: {}", arguments.empty() ? "" : ", ", quoted(name), quoted(value));
  state_->append(fmt::format(
      R"({{"ph": "X", "name": {}, "cat": {}, "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "args": {{{}}}}})",
      quoted(event.name), quoted(event.category), event.rank, event.stream, event.begin_us, event.duration_us,
      arguments));
}

void TraceWriter::close() {
  const std::lock_guard lock(state_->mutex);
  if (state_->closed) return;
  state_->closed = true;
  state_->waiting += state_->empty ? "[\n]\n" : "\n]\n";
  state_->flush();
}

}  // namespace trainer
