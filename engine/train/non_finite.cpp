// How the first value that was not finite is located and described.
#include "engine/train/non_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/train/held_buffer.h"
#include "engine/train/staging.h"

namespace trainer {
namespace {

std::string to_text(const std::optional<NonFinite>& found) {
  if (!found) return "";
  return nlohmann::json{{"node", found->node},
                        {"value", found->value},
                        {"element", found->element},
                        {"micro_batch", found->micro_batch},
                        {"instruction", found->instruction}}
      .dump();
}

// Of all ranks the one that found it earliest has the cause: a reduction carries it to the others later.
std::string describe(const std::vector<std::string>& by_rank) {
  std::string where = "no single tensor shows it: a sum over tensors overflowed";
  std::int32_t earliest = std::numeric_limits<std::int32_t>::max();
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].empty()) continue;
    const nlohmann::json found = nlohmann::json::parse(by_rank[rank]);
    if (found["instruction"] >= earliest) continue;
    earliest = found["instruction"];
    where = fmt::format(
        "the first tensor that is not finite is {} (element {}), written by {} in micro-batch {} of rank {}",
        found["value"].get<std::string>(), found["element"].get<std::int64_t>(), found["node"].get<std::string>(),
        found["micro_batch"].get<int>(), rank);
  }
  return where;
}

// The place in a piece's order as an element of the whole tensor.
std::int64_t element_of(const Piece& piece, std::int64_t place) {
  return piece.global + place / piece.count * piece.global_stride + place % piece.count;
}

}  // namespace

std::string locate_non_finite(Executor& executor, std::int32_t step_program, ControlChannel& channel) {
  const std::vector<std::string> found = channel.to_first(to_text(executor.find_non_finite(step_program)));
  return channel.from_first(found.empty() ? "" : describe(found));
}

std::string non_finite_weight(const LoadedRank& loaded) {
  const Mesh& mesh = loaded.plan.mesh;
  std::vector<float> values;
  for (const Unit& unit : model_units(loaded.executor.role()))
    for (const UnitTensor& tensor : unit.tensors) {
      if (tensor.init.quantized) continue;  // of numbers that were finite
      const HeldBuffer buffer = parameters_of(loaded, unit);
      for (const Piece& piece : saved_pieces(unit, tensor, mesh, mesh.coordinates(loaded.rank)))
        for (const Piece& chunk : chunks_of(piece, kStagedElements)) {
          values.resize(static_cast<std::size_t>(chunk.elements()));
          buffer.read(chunk, values.data());
          const auto bad =
              std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
          if (bad != values.end())
            return fmt::format("{} (element {}) is {}", tensor.name, element_of(chunk, bad - values.begin()), *bad);
        }
    }
  return "";
}

std::string non_finite_weight(const LoadedRank& loaded, ControlChannel& channel) {
  std::string first;
  for (const std::string& found : channel.to_first(non_finite_weight(loaded)))
    if (first.empty()) first = found;
  return channel.from_first(first);
}

}  // namespace trainer
