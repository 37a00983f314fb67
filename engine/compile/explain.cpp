// The sentences: which part of a step the winner is bound by, and by which rule each other candidate lost.
#include "engine/compile/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/core/amounts.h"
#include "engine/cost/ranking.h"

namespace trainer {
namespace {

using cost::Candidate;
using cost::Scored;

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
  const std::array<Part, 6> list{{{t.compute_us, "computing"},
                                  {t.exposed_us, "communication that nothing hides"},
                                  {t.bubble_us, "waiting for other stages"},
                                  {t.optimizer_us, "the update"},
                                  {t.input_us, "input"},
                                  {t.offload_us, "moves to and from where the device keeps the rest"}}};
  std::string text;
  for (const Part& part : list)
    if (part.us / all >= 0.01)
      text += fmt::format("{}{:.0f}% {}", text.empty() ? "" : ", ", 100 * part.us / all, part.what);
  return text;
}

// Why what is faster was not taken, by the rules of cost::choose.
std::string why_not_faster(const Scored& loser, const Scored& winner, std::int64_t limit_bytes) {
  if (loser.candidate.num_axes() > winner.candidate.num_axes())
    return "within the spread of the prediction, and spread along more axes";
  if (cost::has_headroom(winner, limit_bytes) && !cost::has_headroom(loser, limit_bytes))
    return fmt::format("a tie, and it leaves only {} free", bytes_text(limit_bytes - loser.bytes));
  return "a tie, and less simple";
}

}  // namespace

std::string why_not(const Finalist& loser, const Finalist& winner, std::int64_t limit_bytes, Goal goal) {
  const Scored &l = loser.scored, &w = winner.scored;
  if (!l.fits)
    return fmt::format("needs {}{} a rank, and there are {}", loser.basis == Basis::plan ? "" : "about ",
                       bytes_text(l.bytes), bytes_text(limit_bytes));
  if (goal == Goal::memory && l.bytes > w.bytes)
    return fmt::format("needs {} a rank, {} more", bytes_text(l.bytes), bytes_text(l.bytes - w.bytes));
  const double more = l.step_us / w.step_us - 1;
  if (more < 0)
    return fmt::format("{:.1f}% faster{}, {}", -100 * more,
                       loser.basis == Basis::score   ? " by its score"
                       : loser.basis == Basis::draft ? " if it fits"
                                                     : "",
                       why_not_faster(l, w, limit_bytes));
  if (more <= cost::kEqual) return fmt::format("{:.1f}% slower", 100 * more);
  const auto mine = parts(l), theirs = parts(w);
  std::size_t most = 0;
  for (std::size_t i = 1; i < mine.size(); ++i)
    if (mine[i].us - theirs[i].us > mine[most].us - theirs[most].us) most = i;
  return fmt::format("{:.0f}% slower: {} more of {}", 100 * more,
                     time_text(std::max(0.0, mine[most].us - theirs[most].us)), mine[most].what);
}

std::string why(const Finalist& winner, const std::vector<Finalist>& others, const std::vector<std::string>& impossible,
                std::int64_t limit_bytes, Goal goal) {
  const Scored& w = winner.scored;
  std::string text = fmt::format("{}: a step of {} in {} of {} a rank", cost::text_of(w.candidate),
                                 time_text(w.step_us), bytes_text(w.bytes), bytes_text(limit_bytes));
  if (winner.basis != Basis::score) text += fmt::format(" ({})", bound(winner));
  text += ".";
  if (!w.fits) return text + " No strategy fits on these devices; this one needs the least memory.";
  const auto fitting = std::find_if(others.begin(), others.end(), [](const Finalist& one) { return one.scored.fits; });
  if (fitting != others.end())
    text += fmt::format(" Next best: {}: {}.", cost::text_of(fitting->scored.candidate),
                        why_not(*fitting, winner, limit_bytes, goal));
  if (!impossible.empty()) text += fmt::format(" Not possible: {}.", impossible.front());
  return text;
}

}  // namespace trainer
