// Cells are read one by one; then what the whole of them lacks is looked for, chunk by chunk.
#include "strategies/pipeline/schedule_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "engine/core/error.h"
#include "engine/plan/simulate.h"

namespace trainer::strategies {
namespace {

using Kind = Action::Kind;

constexpr int kMostMicroBatches = 1 << 20, kMostChunks = 4096;

struct Place {
  int line = 0;
  std::size_t column = 0;  // from 1
};

class Reader {
 public:
  Reader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  GivenSchedule read() {
    int line = 0;
    for (std::size_t at = 0; at < text_.size();) {
      const std::size_t end = std::min(text_.find('\n', at), text_.size());
      read_line(text_.substr(at, end - at), ++line);
      at = end + 1;
    }
    if (stages_.empty()) throw DataError(path_ + ": has no stage; write a line for each, with cells such as F0.0,B0.0");
    place_chunks();
    if (divided_) divide_all();
    check_whole();
    if (const Simulation played = simulate({stage_of_chunk_, stages_}); !played.deadlock.empty())
      throw DataError(path_ + ": this schedule never ends: " + played.deadlock);
    return {{std::move(stage_of_chunk_), std::move(stages_)}, micro_batches_};
  }

 private:
  [[noreturn]] void fail(const Place& place, const std::string& what) const {
    throw DataError(fmt::format("{}:{}:{}: {}", path_, place.line, place.column, what));
  }

  void read_line(std::string_view line, int number) {
    line = line.substr(0, line.find('#'));
    std::vector<Action> actions;
    for (std::size_t at = 0; at <= line.size();) {
      const std::size_t end = std::min(line.find(',', at), line.size());
      const std::size_t first = line.find_first_not_of(" \t\r", at);
      if (first < end) {
        const std::string_view cell = line.substr(first, line.find_last_not_of(" \t\r", end - 1) - first + 1);
        const Place place{number, first + 1};
        actions.push_back(action_of(cell, place));
        add(actions.back(), place);
      }
      at = end + 1;
    }
    if (!actions.empty()) stages_.push_back(std::move(actions));
  }

  Action action_of(std::string_view cell, const Place& place) const {
    constexpr std::string_view kLetters = "FBIW";
    constexpr Kind kKinds[] = {Kind::forward, Kind::backward, Kind::backward_input, Kind::backward_weight};
    const std::size_t kind = kLetters.find(cell.front());
    const auto number = [](std::string_view digits, int most, int& out) {
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
      return error == std::errc() && end == digits.data() + digits.size() && out >= 0 && out < most;
    };
    Action action;
    const std::size_t dot = cell.find('.');
    if (kind == std::string_view::npos || dot == std::string_view::npos ||
        !number(cell.substr(1, dot - 1), kMostMicroBatches, action.micro_batch) ||
        !number(cell.substr(dot + 1), kMostChunks, action.chunk))
      fail(place,
           fmt::format("{} is no action; write F, B, I or W, the micro-batch, a dot and the chunk, as F0.1", cell));
    action.kind = kKinds[kind];
    return action;
  }

  static std::vector<Kind> parts_of(Kind kind) {
    if (kind == Kind::backward) return {Kind::backward_input, Kind::backward_weight};
    return {kind};
  }

  // What an action says of the whole.
  void add(const Action& action, const Place& place) {
    const auto stage = static_cast<int>(stages_.size());
    const auto [home, fresh] = homes_.try_emplace(action.chunk, stage);
    if (!fresh && home->second != stage)
      fail(place, fmt::format("{} runs on stage {}, but chunk {} is on stage {}", label(action, true), stage,
                              action.chunk, home->second));
    if (!places_.try_emplace({action.chunk, action.micro_batch, action.kind}, place).second)
      fail(place, label(action, true) + " is there twice");
    // Gradients are added micro-batch by micro-batch.
    for (const Kind part : parts_of(action.kind)) {
      int& next = next_[{action.chunk, part}];
      if (action.micro_batch != next)
        fail(place, fmt::format("{} is out of order: micro-batches pass a chunk one after the other, and {} is next",
                                label(action, true), label({action.kind, next, action.chunk}, true)));
      ++next;
    }
    micro_batches_ = std::max(micro_batches_, action.micro_batch + 1);
    divided_ = divided_ || action.kind == Kind::backward_input || action.kind == Kind::backward_weight;
  }

  void place_chunks() {
    const int chunks = homes_.rbegin()->first + 1;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const auto home = homes_.find(chunk);
      if (home == homes_.end()) throw DataError(fmt::format("{}: no stage runs chunk {}", path_, chunk));
      stage_of_chunk_.push_back(home->second);
    }
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      const auto own = std::ranges::count(stage_of_chunk_, static_cast<int>(stage));
      if (own * static_cast<std::ptrdiff_t>(stages_.size()) != chunks)
        throw DataError(fmt::format("{}: stage {} has {} of {} chunks; every stage must have equally many", path_,
                                    stage, own, chunks));
    }
  }

  // Either all backwards are in two parts or none.
  void divide_all() {
    for (std::vector<Action>& actions : stages_) {
      std::vector<Action> divided;
      for (const Action& action : actions) {
        divided.push_back(action);
        if (action.kind != Kind::backward) continue;
        divided.back().kind = Kind::backward_input;
        divided.push_back({Kind::backward_weight, action.micro_batch, action.chunk});
      }
      actions = std::move(divided);
    }
  }

  void check_whole() const {
    std::set<std::tuple<int, int, Kind>> there;
    for (const std::vector<Action>& actions : stages_)
      for (const auto& [kind, micro_batch, chunk] : actions) there.insert({chunk, micro_batch, kind});
    const std::vector<Kind> kinds = divided_ ? std::vector{Kind::forward, Kind::backward_input, Kind::backward_weight}
                                             : std::vector{Kind::forward, Kind::backward};
    for (int chunk = 0; chunk < static_cast<int>(stage_of_chunk_.size()); ++chunk)
      for (int micro_batch = 0; micro_batch < micro_batches_; ++micro_batch)
        for (const Kind kind : kinds)
          if (!there.contains({chunk, micro_batch, kind}))
            throw DataError(fmt::format("{}: stage {} lacks {}", path_,
                                        stage_of_chunk_[static_cast<std::size_t>(chunk)],
                                        label({kind, micro_batch, chunk}, true)));
  }

  const std::string_view text_;
  const std::string& path_;
  std::vector<std::vector<Action>> stages_;
  std::vector<int> stage_of_chunk_;
  std::map<int, int> homes_;  // of each chunk: its stage
  std::map<std::tuple<int, int, Kind>, Place> places_;
  std::map<std::pair<int, Kind>, int> next_;  // micro-batch
  int micro_batches_ = 0;
  bool divided_ = false;
};

}  // namespace

GivenSchedule read_schedule(std::string_view text, const std::string& path) { return Reader(text, path).read(); }

}  // namespace trainer::strategies
