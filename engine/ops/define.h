// The declarations behind definition(op): one function an op, grouped by the file that holds it. ops.cpp lists them
// all; nothing else calls them.
#pragma once

#include "engine/ops/op_def.h"

namespace trainer::define {

// embedding.cpp
OpDef embedding();
OpDef embedding_grad();
OpDef positions();
OpDef positions_grad();
// linear.cpp
OpDef linear();
OpDef linear_grad_input();
OpDef linear_grad_weight();
// norm.cpp
OpDef layer_norm();
OpDef layer_norm_grad();
OpDef rms_norm();
OpDef rms_norm_grad();
// attention.cpp
OpDef attention();
OpDef attention_grad();
// activation.cpp
OpDef gelu();
OpDef gelu_grad();
OpDef relu();
OpDef relu_grad();
OpDef silu();
OpDef silu_grad();
OpDef tanh();
OpDef tanh_grad();
OpDef sigmoid();
OpDef sigmoid_grad();
// elementwise.cpp
OpDef add();
OpDef mul();
OpDef sum_leading();
// dropout.cpp
OpDef dropout();
// shape.cpp
OpDef reshape();
OpDef flatten();
// conv.cpp
OpDef conv2d();
OpDef conv2d_grad_input();
OpDef conv2d_grad_weight();
// pool.cpp
OpDef max_pool2d();
OpDef max_pool2d_grad();
OpDef avg_pool2d();
OpDef avg_pool2d_grad();
// loss.cpp
OpDef cross_entropy();
OpDef cross_entropy_grad();
OpDef cross_entropy_count();
OpDef correct_count();
OpDef cross_entropy_stats();
OpDef cross_entropy_gathered();
OpDef correct_count_gathered();
OpDef mse();
OpDef mse_grad();
OpDef mse_count();
// collective.cpp
OpDef replicate();
OpDef all_reduce();
OpDef all_gather();
OpDef reduce_scatter();
// step.cpp
OpDef zero();
OpDef cast();
OpDef pack_weight();
OpDef loss_seed();
OpDef sum_squares();
OpDef update_scalars();
OpDef sgd();
OpDef adam();
OpDef adamw();
OpDef lion();

}  // namespace trainer::define
