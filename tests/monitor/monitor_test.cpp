// Monitors by what they leave: lines, files and bytes, read back by code of the tests' own.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "engine/core/error.h"
#include "engine/monitor/crc32c.h"
#include "engine/monitor/curve.h"
#include "engine/monitor/monitors.h"
#include "engine/monitor/trace.h"
#include "tests/temporary.h"

using namespace trainer;
using trainer::tests::contains;
using trainer::tests::contents_of;
using trainer::tests::message_of;
using trainer::tests::TemporaryFolder;

namespace {

StepRecord step_record(std::int64_t step, double loss) { return {step, 10, loss, 1e-3, 0.5, 768, 12.3456, 62208.36}; }

std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(contents_of(path));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// Steps first … last, with an evaluation after the update of every second.
void run(Monitor& monitor, std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step <= last; ++step) {
    monitor.step(step_record(step, 5.0 - static_cast<double>(step)));
    if (step % 2 == 1) monitor.evaluation({step + 1, 4.5, std::nullopt, std::nullopt});
  }
}

std::vector<std::int64_t> steps_of(const std::string& path, const char* key) {
  std::vector<std::int64_t> steps;
  for (const nlohmann::json& line : json_lines(path))
    if (line.contains(key)) steps.push_back(line["step"].get<std::int64_t>());
  return steps;
}

}  // namespace

TEST_CASE("a line of log.jsonl has the keys of a step, and folders are made") {
  const TemporaryFolder folder;
  const std::string path = folder.path("a/b/log.jsonl");
  const auto monitor = jsonl_monitor(path);
  monitor->step(step_record(0, 5.545177459716797));
  monitor->evaluation({1, 4.25, 0.125, 0.75});
  const auto lines = json_lines(path);  // the monitor still lives: lines are there at once
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == nlohmann::json{{"step", 0},
                                   {"loss", 5.545177459716797},
                                   {"lr", 1e-3},
                                   {"grad_norm", 0.5},
                                   {"tokens", 768},
                                   {"step_ms", 12.346},
                                   {"tokens_per_s", 62208.4},
                                   {"time", 0.0},
                                   {"samples", 0},
                                   {"epoch", 0},
                                   {"memory_bytes", 0}});
  CHECK(lines[1] == nlohmann::json{{"step", 1}, {"val_loss", 4.25}, {"val_accuracy", 0.125}, {"exact_match", 0.75}});
}

TEST_CASE("a line of log.jsonl has the loss scale of its step, if there is one, and says that an update was left out") {
  const TemporaryFolder folder;
  const auto monitor = jsonl_monitor(folder.path("log.jsonl"));
  StepRecord record = step_record(0, 2.5);
  record.loss_scale = 65536;
  monitor->step(record);
  record.step = 1;
  record.grad_norm = HUGE_VAL;
  record.skipped = true;
  monitor->step(record);
  const auto lines = json_lines(folder.path("log.jsonl"));
  CHECK(lines[0]["loss_scale"] == 65536);
  CHECK_FALSE(lines[0].contains("skipped"));
  CHECK(lines[1]["skipped"] == true);
  CHECK(lines[1]["grad_norm"].is_null());
}

TEST_CASE("log.jsonl stays JSON where a loss is not finite") {
  const TemporaryFolder folder;
  jsonl_monitor(folder.path("log.jsonl"))->step(step_record(0, std::nan("")));
  CHECK(json_lines(folder.path("log.jsonl"))[0]["loss"].is_null());
}

TEST_CASE("a resumed run repeats no line of log.jsonl") {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.jsonl");
  run(*jsonl_monitor(path), 0, 7);
  run(*jsonl_monitor(path), 4, 9);  // from step-4, whose evaluation is there already
  CHECK(steps_of(path, "loss") == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(steps_of(path, "val_loss") == std::vector<std::int64_t>{2, 4, 6, 8, 10});
}

TEST_CASE("a resumed run that begins with an evaluation replaces it") {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.jsonl");
  run(*jsonl_monitor(path), 0, 7);
  const auto monitor = jsonl_monitor(path);
  monitor->evaluation({4, 9.0, std::nullopt, std::nullopt});
  run(*monitor, 4, 5);
  CHECK(steps_of(path, "val_loss") == std::vector<std::int64_t>{2, 4, 6});
  CHECK(steps_of(path, "loss") == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("a fresh run empties log.jsonl, and a run without a step leaves it") {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.jsonl");
  run(*jsonl_monitor(path), 0, 3);
  jsonl_monitor(path).reset();
  CHECK(steps_of(path, "loss").size() == 4);
  run(*jsonl_monitor(path), 0, 0);
  CHECK(steps_of(path, "loss") == std::vector<std::int64_t>{0});
}

TEST_CASE("a half-written last line of log.jsonl is cut off") {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.jsonl");
  run(*jsonl_monitor(path), 0, 0);
  folder.write("log.jsonl", contents_of(path) + R"({"step": 1, "lo)");
  run(*jsonl_monitor(path), 1, 1);
  CHECK(steps_of(path, "loss") == std::vector<std::int64_t>{0, 1});
}

TEST_CASE("a start is a line of log.jsonl that a resumed run keeps and a fresh one begins with") {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.jsonl");
  const auto begin = [&](std::int64_t step, std::int64_t last, const std::string& checkpoint) {
    const auto monitor = jsonl_monitor(path);
    StartRecord start{"0123456789abcdef", step, checkpoint, "feed"};
    if (step > 0) start.changes = {"train.optimizer.lr 0.1 → \"0.2\""};
    monitor->start(start);
    run(*monitor, step, last);
  };
  begin(0, 5, "");
  begin(4, 7, "runs/step-00000004");
  begin(4, 5, "runs/step-00000004");
  CHECK(steps_of(path, "loss") == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5});
  CHECK(steps_of(path, "event") == std::vector<std::int64_t>{0, 4, 4});
  const auto lines = json_lines(path);
  CHECK(lines[0]["event"] == "start");
  CHECK(lines[0]["run"] == "0123456789abcdef");
  CHECK(lines[0]["checkpoint"].is_null());
  CHECK(lines[7]["changes"][0] == "train.optimizer.lr 0.1 → \"0.2\"");
  begin(0, 0, "");
  CHECK(steps_of(path, "event") == std::vector<std::int64_t>{0});
}

TEST_CASE("a rollback takes back the lines of the steps that it takes back") {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.jsonl");
  const auto monitor = jsonl_monitor(path);
  run(*monitor, 0, 5);
  monitor->rollback({2, "runs/step-00000002", "loss nan"});
  run(*monitor, 2, 3);
  CHECK(steps_of(path, "loss") == std::vector<std::int64_t>{0, 1, 2, 3});
  CHECK(steps_of(path, "event") == std::vector<std::int64_t>{2});
  CHECK(steps_of(path, "val_loss") == std::vector<std::int64_t>{2, 4});
}

TEST_CASE("two runs do not write one log.jsonl") {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.jsonl");
  const auto first = jsonl_monitor(path);
  run(*first, 0, 3);
  CHECK(contains(message_of<IoError>([&] { jsonl_monitor(path)->start({}); }), "another run writes this log"));
  CHECK(steps_of(path, "loss").size() == 4);
}

TEST_CASE("a refused start leaves no event file") {
  const TemporaryFolder folder;
  tensorboard_monitor(folder.path("tb")).reset();
  CHECK_FALSE(std::filesystem::exists(folder.path("tb")));
}

TEST_CASE("a trace overwrites a trace and no other file") {
  const TemporaryFolder folder;
  const std::string path = folder.path("trace.json");
  TraceWriter(path).close();
  {
    TraceWriter trace(path);
    trace.name_rank(0, "rank");
  }
  TraceWriter(path).close();
  const std::string notes = folder.write("notes.json", "[1, 2, 3]\n");
  CHECK(contains(message_of<DataError>([&] { TraceWriter writer(notes); }), "not a trace"));
  CHECK(contents_of(notes) == "[1, 2, 3]\n");
}

TEST_CASE("a file that is no log is refused and left as it is") {
  const TemporaryFolder folder;
  for (const char* text : {"precious\n", "precious", "{\"step\": 1}\n", "{}\n"}) {
    const std::string path = folder.write("notes.txt", text);
    CHECK(contains(message_of<DataError>([&] { jsonl_monitor(path)->start({}); }), path + ":1:"));
    CHECK(contents_of(path) == text);
  }
}

TEST_CASE("an output that cannot be written is an IoError that names it") {
  const TemporaryFolder folder;
  folder.write("file", "");
  CHECK(contains(message_of<IoError>([&] { jsonl_monitor(folder.path("file/log.jsonl"))->start({}); }),
                 folder.path("file")));
  CHECK(contains(message_of<IoError>([&] { tensorboard_monitor(folder.path("file/tb"))->start({}); }),
                 folder.path("file")));
  CHECK(contains(message_of<IoError>([&] { TraceWriter(folder.path("file/trace.json")); }), folder.path("file")));
}

TEST_CASE("crc32c gives the values of RFC 3720") {
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAU);
  CHECK(crc32c(std::string(32, '\xFF')) == 0x62A8AB43U);
  CHECK(crc32c("123456789") == 0xE3069283U);
}

namespace {

// A reader of event files: the least of protobuf, written for these tests.
struct Message {
  std::string_view rest;

  struct Item {
    std::uint64_t field = 0, integer = 0;
    std::string_view bytes;
  };
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(rest.at(0));
      rest.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
  }
  Item next() {
    const std::uint64_t key = varint();
    Item item{key >> 3, 0, {}};
    std::uint64_t size = 0;
    switch (key & 7U) {
      case 0:
        item.integer = varint();
        return item;
      case 1:
        size = 8;
        break;
      case 2:
        size = varint();
        break;
      case 5:
        size = 4;
        break;
      default:
        FAIL("wire type");
    }
    REQUIRE(size <= rest.size());
    item.bytes = rest.substr(0, size);
    rest.remove_prefix(size);
    return item;
  }
};

struct Event {
  std::int64_t step = 0;
  std::string version;
  bool session_start = false;
  std::map<std::string, float> scalars;
};

template <typename T>
T value_at(std::string_view bytes, std::size_t at) {
  T value;
  REQUIRE(at + sizeof(T) <= bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

Event parse_event(std::string_view bytes) {
  Event event;
  for (Message message{bytes}; !message.rest.empty();) {
    const Message::Item item = message.next();
    if (item.field == 2) event.step = static_cast<std::int64_t>(item.integer);
    if (item.field == 3) event.version = item.bytes;
    if (item.field == 7) event.session_start = Message{item.bytes}.next().integer == 1;
    if (item.field != 5) continue;
    for (Message summary{item.bytes}; !summary.rest.empty();) {
      Message value{summary.next().bytes};
      const std::string tag(value.next().bytes);
      event.scalars[tag] = value_at<float>(value.next().bytes, 0);
    }
  }
  return event;
}

std::vector<Event> events_in(const std::string& folder) {
  std::vector<Event> events;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = contents_of(entry.path());
    for (std::size_t at = 0; at < file.size();) {
      const auto size = value_at<std::uint64_t>(file, at);
      CHECK(value_at<std::uint32_t>(file, at + 8) == masked(crc32c(file.substr(at, 8))));
      CHECK(value_at<std::uint32_t>(file, at + 12 + size) == masked(crc32c(file.substr(at + 12, size))));
      events.push_back(parse_event(std::string_view(file).substr(at + 12, size)));
      at += 16 + size;
    }
  }
  return events;
}

}  // namespace

TEST_CASE("an event file holds the scalars of steps and evaluations after a start at the first step") {
  const TemporaryFolder folder;
  const std::string path = folder.path("logs/tb");
  {
    const auto monitor = tensorboard_monitor(path);
    monitor->step(step_record(300, 2.5));
    monitor->evaluation({301, 2.25, 0.5, 0.25});
  }
  const std::vector<Event> events = events_in(path);
  REQUIRE(events.size() == 4);
  CHECK(events[0].version == "brain.Event:2");
  CHECK(events[1].session_start);
  CHECK(events[1].step == 300);
  CHECK(events[2].step == 300);
  CHECK(events[2].scalars ==
        std::map<std::string, float>{{"loss", 2.5F}, {"lr", 1e-3F}, {"grad_norm", 0.5F}, {"tokens_per_s", 62208.36F}});
  CHECK(events[3].scalars ==
        std::map<std::string, float>{{"val_loss", 2.25F}, {"val_accuracy", 0.5F}, {"exact_match", 0.25F}});
}

TEST_CASE("a trace is a JSON array of events, whoever writes them") {
  const TemporaryFolder folder;
  const std::string path = folder.path("t/trace.json");
  {
    TraceWriter trace(path);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.emplace_back([&trace, rank] {
        trace.name_rank(rank, "rank");
        trace.name_stream(rank, 1, "communication");
        for (int i = 0; i < 100; ++i)
          trace.add(
              {rank, 1, "all_reduce \"u\"", "collective", 1.5 * i, 0.25, {{"bytes", 4096}}, {{"group", "replicate"}}});
      });
    for (std::thread& rank : ranks) rank.join();
  }
  const nlohmann::json events = nlohmann::json::parse(contents_of(path));
  CHECK(events.size() == 204);
  std::array<int, 2> slices{};
  for (const nlohmann::json& event : events) {
    if (event["ph"] != "X") continue;
    ++slices[event["pid"].get<std::size_t>()];
    CHECK(event["name"] == "all_reduce \"u\"");
    CHECK(event["tid"] == 1);
    CHECK(event["dur"] == 0.25);
    CHECK(event["args"] == nlohmann::json{{"bytes", 4096.0}, {"group", "replicate"}});
  }
  CHECK(slices == std::array<int, 2>{100, 100});
}

TEST_CASE("an arrow has two ends, a rank its label and place") {
  const TemporaryFolder folder;
  {
    TraceWriter trace(folder.path("trace.json"));
    trace.label_rank(3, "busy \"90%\"");
    trace.order_rank(3, 7);
    trace.add_arrow(12, "message", {0, 1, 2.5}, {1, 1, 4.25});
  }
  const nlohmann::json events = nlohmann::json::parse(contents_of(folder.path("trace.json")));
  REQUIRE(events.size() == 4);
  CHECK(events[0]["name"] == "process_labels");
  CHECK(events[0]["pid"] == 3);
  CHECK(events[0]["args"]["labels"] == "busy \"90%\"");
  CHECK(events[1]["args"]["sort_index"] == 7);
  CHECK(events[2] ==
        nlohmann::json{
            {"ph", "s"}, {"id", 12}, {"name", "message"}, {"cat", "arrow"}, {"pid", 0}, {"tid", 1}, {"ts", 2.5}});
  CHECK(events[3] == nlohmann::json{{"ph", "f"},
                                    {"bp", "e"},
                                    {"id", 12},
                                    {"name", "message"},
                                    {"cat", "arrow"},
                                    {"pid", 1},
                                    {"tid", 1},
                                    {"ts", 4.25}});
}

TEST_CASE("a trace without events is an empty array") {
  const TemporaryFolder folder;
  TraceWriter(folder.path("trace.json")).close();
  CHECK(nlohmann::json::parse(contents_of(folder.path("trace.json"))) == nlohmann::json::array());
}

TEST_CASE("a curve keeps its width whatever the number of steps") {
  Curve curve(4);
  CHECK(curve.text().empty());
  for (const double value : {8.0, 4.0, 2.0, 1.0}) curve.add(value);
  CHECK(curve.text() == "█▄▂▁");
  curve.add(1.0);  // (8 + 4)/2, (2 + 1)/2, 1
  CHECK(curve.text() == "█▂▁");
  curve.add(std::nan(""));
  for (int i = 0; i < 1000; ++i) curve.add(1.0);
  CHECK(curve.size() <= 4);
}

namespace {

// What the progress monitor writes, through a file; one second passes at every look at the clock.
std::string progress_text(bool terminal, std::int64_t every, const std::function<void(Monitor&)>& run) {
  const TemporaryFolder folder;
  const std::string path = folder.write("text", "");
  const int descriptor = ::open(path.c_str(), O_WRONLY);
  double now = 100;
  ProgressOptions options;
  options.every = every;
  options.descriptor = descriptor;
  options.terminal = terminal;
  options.seconds = [&now] { return now += 1; };
  run(*progress_monitor(options));
  ::close(descriptor);
  return contents_of(path);
}

}  // namespace

TEST_CASE("progress in a pipe is a line every so many steps and for the last, with the time left") {
  const std::string text = progress_text(false, 4, [](Monitor& monitor) { run(monitor, 0, 9); });
  CHECK(text ==
        "step 1/10: loss 5.0000, grad norm 0.5, lr 0.001, 62,208 tokens/s\n"
        "step 2: validation loss 4.5000\n"
        "step 4/10: loss 3.0000 (mean of 3 steps), grad norm 0.5, lr 0.001, 62,208 tokens/s, 6 s left\n"
        "step 4: validation loss 4.5000\n"
        "step 6: validation loss 4.5000\n"
        "step 8/10: loss -0.5000 (mean of 4 steps), grad norm 0.5, lr 0.001, 62,208 tokens/s, 2 s left\n"
        "step 8: validation loss 4.5000\n"
        "step 10/10: loss -3.5000 (mean of 2 steps), grad norm 0.5, lr 0.001, 62,208 tokens/s\n"
        "step 10: validation loss 4.5000\n");
}

TEST_CASE("progress on a terminal rewrites its line and lets messages stand") {
  const std::string text = progress_text(true, 4, [](Monitor& monitor) {
    monitor.step(step_record(0, 5));
    monitor.step(step_record(1, 4));
    monitor.message("resumed");
    monitor.checkpoint(2, "runs/step-00000002");
    monitor.step(step_record(2, 3));
  });
  CHECK(text ==
        "\rstep 1/10: loss 5.0000, 62,208 tokens/s\x1b[K"
        "\rstep 2/10: loss 4.0000, 62,208 tokens/s, 8 s left\x1b[K"
        "\r\x1b[Kresumed\n"
        "step 2: saved runs/step-00000002\n"
        "\rstep 3/10: loss 3.0000, 62,208 tokens/s, 7 s left\x1b[K\n");
}
