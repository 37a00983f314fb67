// Comparison: does a job under its strategy train as it does on one rank? Both run from the same start on the same
// samples. A strategy only changes the order of sums (and, in 16 bits, which neighbour a value is rounded to), so the
// two may differ by rounding and by nothing else. Bounds follow from numbers of the job, never from what was found:
//
//   u       unit roundoff of f32, 2^-24;  u'  of the compute dtype where it has 16 bits, else 0
//   n       terms of the longest sum: positions of the global batch, or the longest dim of a parameter
//   d       parameters of two or more dims: at most so many products follow one another
//   e(t) =  8 √n u (t + 1)   of a sum in either order; 8 is Higham and Mary's λ, which a sum exceeds once in 10^13;
//           steps add up
//   q       the most by which an optimizer state changes when it is rounded, from the second step on: 2^-8 in bf16,
//           0.45/64 in int8
//           (of the largest in its block, and ranks that have parts of a tensor have other blocks), else 0
//   c(t) =  √(k g G(t)) where ranks send codes, else 0: k is from one code to the next (2^-8 in bf16, 1/127 of the
//           largest in its block in int8, 1 of top_k, which sends all or nothing) and G the bound of the norms without
//           codes: a value that is G from where codes change has another code with probability G/k, and then it is k
//           off. g is 3.4445^steps of weights that muon makes and that are sent as codes (what its Newton-Schulz steps
//           make of G in the smallest singular values), else 1
//
//   losses, relative         2 (√d e(t) + (1 + √(d/n)) u' + √(d/n) (q + c(t − 1)))
//   gradient norms, relative 2 √d (e(t) + u' + q) + c(t)
//   sums                     2 √d (e(t) + u' + q): of ranks that send codes, the norm of what their gradients before
//                            any code make together, less the gradient of one rank, over the norm of that. Of routers
//                            in 16 bits the difference of the norms: a choice that rounding decides changes all of a
//                            token's gradient
//   weights, root mean square of the difference
//   over the way Σlr that they went
//                            2 rms(min(1, E s/(r + ε))) + 2 T u rms(w)/Σlr  for adam, adamw, lion, whose updates
//                            divide by the gradient's size: an element whose gradient r is small against its error,
//                            E s, may go either way. E is the bound of the norms at the last step, s the rms of r
//                            over the tensor (or the model, if that is more); r and w are those of one rank.
//                            For sgd, E and Σlr·norm.
//   weights, largest         twice the way that an element can go
//
// Source: Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41 (2019),
// theorem 2.4; √d by the same argument, for errors of products that follow one another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/compile/compile.h"

namespace trainer {

/// Makes a plan for this machine; throws JobError where it does not fit.
using Compiler = std::function<CompiledJob(const LoadedJob&)>;

struct Quantity {
  std::string name;  ///< losses, gradients, weights, weights_largest; replicas: how many tensors ranks should hold
                     ///< alike and do not, bound 0; of ranks that send codes, sums; where experts may leave out
                     ///< choices, dropped: by how many more one side did, bound 0
  double difference =
      0;  ///< of all steps and elements the one that comes nearest to its bound (or lies furthest above it)
  double bound = 0;
  bool holds() const { return difference <= bound; }  // not where either is NaN
};

struct Comparison {
  std::int64_t steps = 0;
  std::vector<Quantity> quantities;
  std::vector<std::string> different_replicas;  ///< the names of those tensors
  bool holds() const;
};

/// Whether `compare` holds it against a serial simulation in place of one rank: local SGD (serial_rounds.h), and codes
/// of gradients or weights (serial_steps.h).
bool is_simulated(const LoadedJob& ranks);

/// The job on ranks that are threads of this process, whatever launcher or nodes it asks for; nothing is logged, and no
/// checkpoint but those of `compare` written or resumed from. Throws JobError where what it asks for is by design not
/// the training of one rank and cannot be simulated either.
LoadedJob on_threads(const LoadedJob& loaded, const Compiler& compile);

/// Samples of a micro-batch on one rank that trains as these ranks do: as many, or where batch norms join the
/// statistics of ranks, those of all. Throws JobError where these would be several micro-batches of each rank.
std::int64_t micro_of_one_rank(const LoadedJob& ranks, const CompiledJob& compiled);

/// The same job on one rank: the global batch in micro-batches of `micro` samples.
LoadedJob on_one_rank(const LoadedJob& loaded, std::int64_t micro);

/// Trains both for min(steps, train.steps) steps and compares. Final weights go through a folder of their own under the
/// system's temporary one, gone at the end. REQUIRES: both come from on_threads or on_one_rank; equal optimizers.
Comparison compare(const LoadedJob& ranks, const LoadedJob& one, std::int64_t steps, const Compiler& compile);

}  // namespace trainer
