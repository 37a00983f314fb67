// fuse: neighbours that one kernel can do in one pass over memory become one node. The last pass over a graph before
// placement: after differentiation and recomputation, which know only the ops of graph files and their gradients.
#pragma once

#include "engine/core/signature.h"
#include "engine/graph/graph.h"

namespace trainer {

/// Rewrites, wherever it is sound and saves a pass:
///   s = a + b; y = norm(s)             to  y, s = norm(a, residual b)
///   dx = norm_grad(…); g = dx + other  to  g = norm_grad(…, residual other)
///   y = silu(gate) · up                to  y = glu(gate, up), and its gradients, which no longer read silu(gate), to
///                                          dgate, dup = glu_grad(dy, gate, up); the same of gelu
///   z = batch_norm(x); s = z + a; y = relu(s)  to  y = batch_norm(x, residual a, relu), with or without the sum
///   dz = relu_grad(dy, y); gradients of the norm in dz  to  gradients in dy with relu, which read neither y nor dz
///   loss, lse = cross_entropy(logits); dlogits = cross_entropy_grad(logits, lse)  to  loss, dlogits =
///                                      cross_entropy_and_grad(logits), in the backward pass, which has the seed
/// where the target's products add another tensor in their pass over the result
///   p = linear(x); y = p + other             to  y = linear(x, residual other)
///   p = linear_grad_input(dy); g = p + other  to  g = linear_grad_input(dy, residual other)
/// and where they take the activation as an epilogue
///   a = linear(x); y = gelu(a)         to  y, a = linear(x, gelu), without a where nothing else reads it
///   dy = linear_grad_input(…); dx = gelu_grad(dy, a)  to  dx = linear_grad_input(…, a, gelu)
/// Values, names and gradients stay, but for those that no node reads any more.
void fuse(Graph& graph, const Target& target);

}  // namespace trainer
