// What a job trains of its model, on graphs: `trainable`, `adapter` and `train.objective`, and their mistakes where the
// job has them.
//
// Order: freeze a graph as it was read, let a tensor strategy cut its weights, then adapt it
// (engine/transform/adapter.h says why), then split tables of which some rows are trained.
#pragma once

#include <string>
#include <vector>

#include "engine/core/signature.h"
#include "engine/job/job.h"
#include "engine/transform/selection.h"
#include "engine/transform/transform.h"

namespace trainer {

/// Applies the job's `trainable`. Returns its mistakes; outside of Mode::train there are none, since such a graph may
/// lack a parameter that only training has.
std::vector<Diagnostic> freeze(const LoadedJob& loaded, Graph& graph, BuildOptions::Mode mode);

/// Adds the job's adapter, if it has one, to a graph read for `options`, and beside a loss what the job's objective
/// makes of it, and quantizes what is frozen where the job says so. Returns their mistakes; outside of Mode::train
/// targets that the graph lacks are none. Parameters are trainable as `freeze` left them.
std::vector<Diagnostic> adapt(const LoadedJob& loaded, Graph& graph, const BuildOptions& options);

/// Gives rows of embeddings that the job trains parameters of their own (engine/transform/trained_rows.h), in a graph
/// with its adapter. Returns the mistakes.
std::vector<Diagnostic> split_rows(const LoadedJob& loaded, Graph& graph);

/// Has the linears of blocks multiply in fp8, if the job does (engine/transform/fp8.h). Returns the mistakes.
std::vector<Diagnostic> with_fp8(const LoadedJob& loaded, Graph& graph, const Target& target);

/// The graph that a micro-batch of one trains, with all of it, cut by no strategy. Throws JobError.
Graph whole_graph(const LoadedJob& loaded);

/// Mistakes of selections as mistakes in the job. `prefix` and a mistake's key are the path of the job's value.
std::vector<Diagnostic> located(const LoadedJob& loaded, const std::string& prefix,
                                const std::vector<SelectionMistake>& mistakes);

/// Throws JobError if there are any.
void raise(std::vector<Diagnostic> mistakes);

}  // namespace trainer
