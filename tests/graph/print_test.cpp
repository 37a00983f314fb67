// The text of graphs is a golden: a change of what is built shows as a change of this file. TRAINER_UPDATE_GOLDENS=1
// writes it anew.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "engine/transform/distribute.h"
#include "tests/transform/files.h"

namespace trainer {
namespace {

TEST_CASE("a tiny GPT, differentiated, selectively recomputed and placed on a data axis, prints as its golden") {
  const std::string path = std::string(TRAINER_SOURCE_DIR) + "/tests/graph/tiny_gpt.txt";
  Graph graph =
      test::model("gpt2", {{"layers", 1}, {"heads", 2}, {"dim", 8}, {"vocab", 11}, {"context", 6}, {"dropout", 0.1}},
                  test::text_options(3, 5, DType::bf16));
  differentiate(graph, DType::f32);
  recompute(graph, {RecomputePolicy::Mode::selective, 1});
  graph.mesh = {{Axis::replicate, 2}};
  for (ValueId input : graph.inputs) graph.value(input).spec.place(Axis::replicate, Placement::shard(0));
  propagate_placements(graph);
  const std::string text = print(graph);
  if (std::getenv("TRAINER_UPDATE_GOLDENS") != nullptr) std::ofstream(path) << text;
  std::stringstream golden;
  golden << std::ifstream(path).rdbuf();
  CHECK(text == golden.str());
}

TEST_CASE("placements print their dim and parts") {
  CHECK(Placement::replicate().str() == "Replicate");
  CHECK(Placement::partial().str() == "Partial");
  CHECK(Placement::shard(1).str() == "Shard(1)");
  CHECK(Placement::shard(2, 3).str() == "Shard(2, parts 3)");
}

}  // namespace
}  // namespace trainer
