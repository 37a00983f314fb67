// Which of several candidates is taken: what is faster than others by less than predictions can tell is a tie, and of
// ties the simpler one wins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cost/search_space.h"

namespace trainer::cost {

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

/// Of predictions for GPUs, about, before there is one.
inline constexpr double kUsualSpread = 0.06;
/// The same of scores, as if each had this spread. REQUIRES: there are some.
const Scored& likeliest(Goal goal, std::int64_t limit_bytes, const std::vector<Scored>& scores);

}  // namespace trainer::cost
