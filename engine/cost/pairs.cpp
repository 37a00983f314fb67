// In each pass of a piece communication and what the piece computes hide behind each other. The nearer the two are in
// length, the worse the halves of the one fit the collectives of the other: a share of what could hide does not, which
// grows up to kUnhidden where both take equally long. (Fitted to plans of tests/cost/scores_test.cpp: within 1% with
// sequence parallelism, 4% without.)
#include "engine/cost/pairs.h"

#include <algorithm>

namespace trainer::cost {
namespace {

constexpr double kUnhidden = 0.09;

struct Pass {
  double compute_us, network_us;  // of both; of the network what nothing hides
};

Pass overlapped(const Pass& one, double slowdown) {
  const double compute = 2 * one.compute_us, network = 2 * one.network_us;
  if (network <= 0 || compute <= 0) return {compute, network};
  const double least = std::min(network, compute), most = std::max(network, compute),
               hidden = least * (1 - kUnhidden * least / most);
  return {compute + hidden * (1 - 1 / std::max(1.0, slowdown)), network - hidden};
}

Piece pair_of(const Piece& one, double slowdown) {
  const double network_back = one.network_us - one.network_forward_us;
  const Pass forward = overlapped({one.forward_us - one.network_forward_us, one.network_forward_us}, slowdown);
  const Pass back = overlapped({one.backward_us() - network_back, network_back}, slowdown);
  Piece pair = one;
  pair.forward_us = forward.compute_us + forward.network_us;
  pair.weight_us = 2 * one.weight_us + one.adding_us;  // the second adds to the first's
  pair.input_us = back.compute_us + back.network_us - 2 * one.weight_us;
  pair.network_forward_us = forward.network_us;
  pair.network_us = forward.network_us + back.network_us;
  pair.network_again_us = 0;
  pair.recompute_us = 2 * one.recompute_us;
  for (std::int64_t Piece::*bytes : {&Piece::saved_bytes, &Piece::freed_bytes, &Piece::handed_bytes,
                                     &Piece::transient_bytes, &Piece::boundary_bytes})
    pair.*bytes = 2 * one.*bytes;
  return pair;
}

}  // namespace

Profile in_pairs(const Profile& one, double slowdown) {
  Profile pairs = one;
  for (Piece& piece : pairs.pieces) piece = pair_of(piece, slowdown);
  return pairs;
}

}  // namespace trainer::cost
