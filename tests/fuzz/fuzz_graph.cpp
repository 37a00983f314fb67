// Any bytes as a graph file: an error that says so, or a graph that can be differentiated, recomputed, placed and
// printed.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/core/error.h"
#include "engine/transform/distribute.h"
#include "engine/transform/transform.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainer;
  if (size > 4096) return 0;
  BuildOptions options;
  options.batch = 2;
  options.seed = 1;
  options.field_shapes = {{"x", {4}}, {"y", {4}}};
  options.compute = size % 2 == 0 ? DType::f32 : DType::bf16;
  try {
    Graph graph =
        read_graph(yaml::parse(std::string(reinterpret_cast<const char*>(data), size), "fuzz.yaml"), {}, options);
    differentiate(graph, DType::f32);
    recompute(graph, {size % 3 == 0 ? RecomputePolicy::Mode::full : RecomputePolicy::Mode::selective, 1});
    graph.mesh = {{Axis::replicate, 2}};
    for (ValueId input : graph.inputs) graph.value(input).spec.place(Axis::replicate, Placement::shard(0));
    propagate_placements(graph);
    print(graph);
  } catch (const JobError&) {
  }
  return 0;
}
