// A predicted step as blocks of time: what each instruction of a stage is for, and as many of them as a page can show
// at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/cost/predict.h"
#include "engine/plan/plan.h"
#include "engine/report/json.h"

namespace trainer::report {

/// What an instruction is for. `unit`: counts, packing of weights, adding up gradients; `update`: norm, optimizer and
/// what follows from it. Communication by the axes it runs along: tensor or pipeline alone, all else is of data.
enum class Task : std::uint8_t { forward, recompute, backward, weight, unit, update, tensor, data, pipeline, copy };
std::string_view name_of(Task task);

/// Of every instruction of the stage's step. An undivided backward is `backward` throughout, but for forward nodes that
/// it repeats.
std::vector<Task> tasks_of(const Plan& plan, std::size_t stage);

/// The timeline as page/charts.js reads it, at most `most_blocks` blocks: instructions one by one on as many stages as
/// that allows (the busiest first), on the others those of one action as one block, and where even that is too much
/// some stages are left out, evenly.
Json timeline_json(const Plan& plan, const cost::Prediction& prediction, std::size_t most_blocks);

}  // namespace trainer::report
