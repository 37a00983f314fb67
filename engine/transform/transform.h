// Transforms: graph files to graphs, and the passes over them that come before planning.
//   read_graph  a file's tree (YAML) to a forward Graph of concrete shapes
//   set_trainable, add_lora  (trainable.h, adapter.h) say what is trained
//   differentiate  appends the backward nodes
//   recompute  applies an activation checkpointing policy
//   fuse  (fuse.h) makes one node of neighbours that one kernel does in one pass over memory
//   distribute, propagate_placements  (distribute.h) give every value its spec on the mesh, collectives where they are
//   needed
#pragma once

#include <map>
#include <optional>
#include <string>

#include "engine/graph/graph.h"
#include "engine/job/expression.h"
#include "engine/job/yaml.h"

namespace trainer {

/// What a graph is built for.
struct BuildOptions {
  std::int64_t batch = 1;  ///< samples of one micro-batch of one rank
  /// Shape of one sample of each field of the data ("tokens": [seq]). One without dims is a scalar, or not known before
  /// the data is read: then the graph's shape is taken.
  std::map<std::string, Shape> field_shapes;
  std::vector<std::string> offered{};  ///< of these fields, those that the graph need not read
  DType compute = DType::f32;
  std::vector<std::string>
      excluded{};           ///< globs over node paths (engine/core/glob.h): nodes that compute in f32 all the same
  std::uint64_t seed = 0;   ///< of dropout keys
  bool any_fields = false;  ///< the fields of the data are not known: they are what the graph needs
  std::optional<std::int64_t> seq{};  ///< `seq` of data whose fields do not say it
  /// Dropout only in train. sample: no loss, the logits are the output. score: neither, but the statistics of every row
  /// of logits (cross_entropy_stats) as Graph::logits, from which the log-probability of its target follows.
  enum class Mode { train, evaluate, sample, score } mode = Mode::train;
  Mesh mesh{};                     ///< over whose expert axis experts are to be cut (strategies/expert)
  bool sequence_parallel = false;  ///< the ranks of the mesh's tensor axis are to have rows of their own between layers
  /// Groups that are left out, each with one before it whose values stand for its own.
  std::map<std::string, std::string> stand_ins{};
};

/// Reads a graph: the nodes that the loss needs, or in Mode::sample those that `logits` needs. `with` replaces its
/// params. Throws JobError with every mistake found, each at its place in the file.
Graph read_graph(const yaml::Node& file, const Variables& with, const BuildOptions& options);

/// Appends the gradient of the loss with respect to every trainable parameter that reaches it. Activations used several
/// times get their gradients added; a parameter used several times gets one `gradient` value for each use. Where
/// nothing is trained the graph stays forward, without a seed.
void differentiate(Graph& graph, DType reduce);

/// What is kept between forward and backward. See strategies of activation checkpointing in the job.
struct RecomputePolicy {
  enum class Mode { none, full, selective, every_n } mode = Mode::none;
  std::int64_t every = 1;  ///< every_n: of n consecutive blocks the first is recomputed
  Axes gathers{};          ///< gathers along these axes are repeated too, whatever the mode: a rank keeps its part
};

/// Rewrites a differentiated graph so that backward nodes read recomputed copies, placed just before their first use.
/// full: of each block only its inputs are kept. selective: matrix products and attention are kept, the rest is
/// repeated (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022; of gathers
/// section 4.2.2).
void recompute(Graph& graph, const RecomputePolicy& policy);

}  // namespace trainer
