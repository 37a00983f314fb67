// Profile: what one micro-batch of a model costs on a rank, piece by piece. A piece is a run of nodes that a pipeline
// does not cut: an outermost block, or what lies between two. Read off the same graph that a plan is made of, by the
// same times of instructions; a search adds pieces up where planning every candidate would take too long.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/signature.h"
#include "engine/cost/cost_model.h"
#include "engine/graph/graph.h"

namespace trainer::cost {

/// Of one micro-batch, or of the parameters; bytes and elements are this rank's.
struct Piece {
  double forward_us = 0;
  double input_us = 0;            ///< backward, without the gradients of parameters; recomputation is in it
  double weight_us = 0;           ///< the rest of the backward pass
  double adding_us = 0;           ///< more than weight_us where gradients are added to those of earlier micro-batches
  double network_us = 0;          ///< how much of all three is communication along the axes of the graph
  double network_forward_us = 0;  ///< how much of forward_us
  double network_again_us = 0;    ///< how much gathers again, in the backward pass, what waits for nothing there
  double recompute_us = 0;        ///< how much else is done a second time
  std::int64_t saved_bytes = 0;   ///< kept from the forward pass to the backward pass
  std::int64_t freed_bytes =
      0;  ///< of those, what the gradients of parameters do not need: a split backward frees it early
  std::int64_t handed_bytes = 0;     ///< what a split backward keeps from its input part to its weight part
  std::int64_t transient_bytes = 0;  ///< the most that is alive beside that while the piece runs
  std::int64_t boundary_bytes = 0;   ///< passed on to the next piece
  std::int64_t parameters = 0;       ///< elements
  std::int64_t trained = 0;          ///< of those, what is not frozen
  std::int64_t own_parameters = 0;   ///< of those, a rank's experts, which the expert axis neither slices nor sums
  std::int64_t own_trained = 0;      ///< likewise

  double backward_us() const { return input_us + weight_us; }
};

struct Profile {
  std::vector<Piece> pieces;
  std::int64_t input_bytes = 0;  ///< of the batch's fields
};

/// What each piece passes on to the next: a forward value that a later piece reads passes every boundary up to it.
/// `graph` is not fused yet, for nothing is fused across the place where a pipeline is cut.
std::vector<std::int64_t> boundary_bytes(const Graph& graph, const std::vector<std::string>& begins);

/// All of it but boundary_bytes. `graph`: differentiated, recomputed and fused, of one rank, its nodes in one chunk.
/// `begins`: the forward nodes that begin the pieces, the first included.
Profile profile_of(const Graph& graph, const std::vector<std::string>& begins, const CostModel& model,
                   const Target& target);

}  // namespace trainer::cost
