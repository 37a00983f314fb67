// Weights: the parameters and optimizer states of a loaded role by their global names, as they start, are loaded and saved.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/checkpoint/checkpoint.h"
#include "engine/run/executor.h"

namespace trainer {

/// Draws every master weight by (seed, name, element) and clears the states. `threads` draw at once.
void draw_weights(Executor& executor, std::uint64_t seed, int threads);

/// Reads every master weight by name. Raises DataError that lists every name and shape that does not fit; `source` names
/// the tensors' origin. Floats of another dtype are converted. `exact`: tensors that the model lacks do not fit either.
void load_weights(Executor& executor, const checkpoint::TensorStore& tensors, const std::string& source, bool exact);

/// The same from a path: a step directory, a directory of them (its newest whole one), or a .safetensors file, whose names must
/// be just the model's. Returns the checkpoint that was read, if it was one.
std::optional<checkpoint::Manifest> load_weights_from(Executor& executor, const std::string& path);

/// Reads every optimizer state and the number of applied updates. Raises DataError like load_weights.
void load_states(Executor& executor, const checkpoint::TensorStore& tensors, const std::string& source);

/// Sets {factor, loss_scale, grad_norm, loss} for the first step.
void set_scalars(Executor& executor, float loss_scale);

/// Which units a rank writes.
struct Ownership {
  int owner = 0;       ///< this rank's place among those that write; -1: it writes nothing
  int num_owners = 1;

  bool owns(std::size_t unit) const { return owner >= 0 && static_cast<int>(unit % static_cast<std::size_t>(num_owners)) == owner; }
};

/// Writes this rank's part of the checkpoint of `step` into `dir`: model and optimizer files. The caller frames it with
/// Store::begin and commit.
void write_weights(const Executor& executor, const std::string& dir, std::int64_t step, const Ownership& ownership);

}  // namespace trainer
