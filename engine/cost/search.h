// Search: every way to spread a job over its ranks, scored without planning it. Profiles give the times and bytes of
// pieces; the schedule itself is played for the order of a pipeline; collectives of the data axes hide behind what can
// hide them. The best are then sketched (sketch.h), planned and played in full by whoever asked
// (engine/compile/choose.cpp): scores order candidates, they decide nothing that is close.
//
// Sources: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC
// 2021, section 3 (how the axes trade); Zheng et al., "Alpa", OSDI 2022 (pruning by lower bounds); Korthikanti et al.
// 2022, section 4 (memory of activations).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/cost/candidate.h"
#include "engine/cost/search_space.h"

namespace trainer::cost {

struct SearchResult {
  std::vector<Scored> scored;           ///< what fits first; then by the job's goal, equals by complexity
  std::vector<std::string> impossible;  ///< "tensor 16: …": degrees that the model or the batch refuse
};

/// Deterministic. Does not throw for a job that nothing fits: then no candidate `fits`, and the first is the one that
/// lacks least.
SearchResult search(const SearchSpace& space, ProfileSource& profiles);

/// What needs little memory, the least first: every mesh and schedule with the smallest micro-batch and the most
/// recomputation that the job allows. Among them may be some that `search` left out because they are slow.
std::vector<Scored> frugal(const SearchSpace& space, ProfileSource& profiles);

/// Some candidate that fits by its score, at the smallest micro-batch: the first in an order from the simple to the
/// intricate. A pipeline that the job does not ask for has at least as many micro-batches as stages. Nothing if none
/// does.
std::optional<Candidate> first_fit(const SearchSpace& space, ProfileSource& profiles);

/// What the goal makes small: µs of a step, or bytes. Devices are given, so cost goes by time.
double measure(Goal goal, const Scored& one);

/// Times within this share of each other are equal, however narrow the predicted interval is.
inline constexpr double kEqual = 0.02;
/// No choice gives up more of the predicted time than this.
inline constexpr double kMostTie = 0.05;
/// A share of a rank's memory that a plan leaves free, where that costs no more than what is a tie.
inline constexpr double kHeadroom = 0.1;

/// How much slower than the fastest a candidate may be and still be taken, `spread` being that of the fastest: as a
/// tie, half the spread; with fewer axes, all of it; kEqual to kMostTie in both cases. Predictions of one model on one
/// machine err in the same direction, so a tie is less than the interval; what another axis adds is predicted from
/// other figures, so its gain has to be more than that.
double tie_of(double spread);
double axis_tie_of(double spread);
bool has_headroom(const Scored& one, std::int64_t limit_bytes);

/// The one to take of a list that is not empty. Of those that fit:
/// 1. fewer axes (data, tensor, pipeline) are taken unless more of them are faster by more than axis_tie_of;
/// 2. the fastest of what is left and what is a tie with it, never more than kMostTie slower than the fastest of all;
/// 3. of those, the ones that leave kHeadroom of memory free, if there are any;
/// 4. of those the simplest, and of equally simple ones the fastest.
/// Memory as a goal takes the fastest of those within 2% of the least bytes. If none fits: the one that needs the least
/// memory.
std::size_t choose(Goal goal, std::int64_t limit_bytes, const std::vector<Scored>& scored);

/// The same of scores, as if each had the spread that predictions of GPUs have, about. REQUIRES: there are some.
const Scored& likeliest(Goal goal, std::int64_t limit_bytes, const SearchResult& found);

}  // namespace trainer::cost
