#include "engine/compile/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace trainer {
namespace {

using cost::Candidate;
using cost::Scored;

std::string time_text(double us) { return us >= 1e6 ? fmt::format("{:.2f} s", us / 1e6) : us >= 1e3 ? fmt::format("{:.1f} ms", us / 1e3) : fmt::format("{:.0f} µs", us); }
std::string size_text(std::int64_t bytes) { return bytes >= (std::int64_t{1} << 30) ? fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30)) : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

struct Part {
  double us;
  std::string_view what;
};

std::array<Part, 6> parts(const Scored& s) {
  return {{{s.compute_us, "kernels that its smaller or more pieces make slower"},
           {s.recompute_us, "recomputation"},
           {s.tensor_us, "communication along the tensor axis, which nothing hides"},
           {s.data_us, "communication along the data axes that nothing hides"},
           {s.bubble_us, "stages that wait for each other"},
           {s.update_us, "the update, which more ranks do not share"}}};
}

std::string bound(const Finalist& winner) {
  const cost::RoleTimes& t = winner.times;
  const double all = std::max(1e-9, t.sum());
  const std::array<Part, 5> list{{{t.compute_us, "computing"}, {t.exposed_us, "communication that nothing hides"}, {t.bubble_us, "waiting for other stages"}, {t.optimizer_us, "the update"}, {t.input_us, "input"}}};
  std::string text;
  for (const Part& part : list)
    if (part.us / all >= 0.01) text += fmt::format("{}{:.0f}% {}", text.empty() ? "" : ", ", 100 * part.us / all, part.what);
  return text;
}

std::string family(const Candidate& c) {
  std::string text;
  if (c.tensor > 1) text += "t";
  if (c.pipeline > 1) text += "p";
  if (c.data_ranks() > 1) text += fmt::format("{}/{}", static_cast<int>(c.kind), c.kind == DataKind::fsdp ? static_cast<int>(c.sharding) : 0);
  return text;
}

}  // namespace

std::string why_not(const Finalist& loser, const Finalist& winner, std::int64_t limit_bytes, Goal goal) {
  const Scored &l = loser.scored, &w = winner.scored;
  if (!l.fits) return fmt::format("needs {}{} a rank, and there are {}", loser.exact ? "" : "about ", size_text(l.bytes), size_text(limit_bytes));
  if (goal == Goal::memory && l.bytes > w.bytes) return fmt::format("needs {} a rank, {} more", size_text(l.bytes), size_text(l.bytes - w.bytes));
  const double more = l.step_us / w.step_us - 1;
  if (more < 0 && !loser.exact) return fmt::format("scored {:.1f}% faster, and not planned: scores of its kind promised too little before", -100 * more);
  if (more <= cost::kEqual - 1) return more < 0 ? fmt::format("{:.1f}% faster, which is within 2%, and less simple", -100 * more) : fmt::format("{:.1f}% slower", 100 * more);
  const auto mine = parts(l), theirs = parts(w);
  std::size_t most = 0;
  for (std::size_t i = 1; i < mine.size(); ++i)
    if (mine[i].us - theirs[i].us > mine[most].us - theirs[most].us) most = i;
  return fmt::format("{:.0f}% slower: {} more of {}", 100 * more, time_text(std::max(0.0, mine[most].us - theirs[most].us)), mine[most].what);
}

std::string why(const Finalist& winner, const std::vector<Finalist>& others, const std::vector<std::string>& impossible, std::int64_t limit_bytes, Goal goal) {
  const Scored& w = winner.scored;
  std::string text = fmt::format("{}: a step of {} in {} of {} a rank", cost::text_of(w.candidate), time_text(w.step_us), size_text(w.bytes), size_text(limit_bytes));
  if (winner.exact) text += fmt::format(" ({})", bound(winner));
  text += ".";
  if (!w.fits) return text + " Nothing fits; this lacks least.";
  const auto fitting = std::find_if(others.begin(), others.end(), [](const Finalist& one) { return one.scored.fits; });
  if (fitting != others.end()) text += fmt::format(" Next best: {}: {}.", cost::text_of(fitting->scored.candidate), why_not(*fitting, winner, limit_bytes, goal));
  // The obvious ones: the best of each kind that is not the winner's.
  std::vector<std::string> told{family(w.candidate)};
  if (fitting != others.end()) told.push_back(family(fitting->scored.candidate));
  int count = 0;
  for (const Finalist& one : others) {
    const std::string kind = family(one.scored.candidate);
    if (std::find(told.begin(), told.end(), kind) != told.end()) continue;
    told.push_back(kind);
    text += fmt::format("{}{}: {}", count == 0 ? " Of other kinds, " : "; ", cost::text_of(one.scored.candidate), why_not(one, winner, limit_bytes, goal));
    if (++count == 4) break;
  }
  if (count > 0) text += ".";
  if (!impossible.empty()) text += fmt::format(" Not possible: {}.", impossible.front());
  return text;
}

}  // namespace trainer
