// Convolutions and pools. Windows read single elements, rows apart.
#include "engine/core/records/define.h"

namespace trainer::records {
namespace {

AttributeDefs conv_attributes(bool in_file) {
  if (!in_file) return {integer("stride", 1), integer("padding", std::int64_t{0})};
  return {file(from(1, integer("out")), "channels of the output"),
          file(from(1, integer("kernel")), "length of the filter, which is as high as wide"),
          both(from(1, integer("stride", 1)), "pixels, or places, from one to the next"),
          both(integer("padding", std::int64_t{0}), "zeros on each side"), bias(true)};
}

AttributeDefs pool_attributes(bool in_file) {
  AttributeDefs all{from(1, integer("kernel")), from(1, integer("stride", "as kernel")),
                    integer("padding", std::int64_t{0})};
  if (!in_file) return all;
  return {both(all[0], "height and width of the window"),
          both(all[1], "pixels from one window to the next; as the kernel if not given"),
          both(all[2], "pixels around the image")};
}

OpRecord pool(Op op, Traits traits, Operands operands) {
  return {.op = op,
          .traits = traits,
          .operands = std::move(operands),
          .attributes = pool_attributes(traits.has(graph_file)),
          .work = WorkClass::own,
          .bandwidth = 0.7};
}

}  // namespace

OpRecord conv2d(Op op) {
  return {.op = op,
          .traits = {graph_file, costly, scratch},
          .operands = {in("x", "c [n, in, h, w]"), param("weight", "c [out, in, kh, kw]"),
                       param("bias", "c [out]", "bias"), out("y", "c [n, out, oh, ow]")},
          .attributes = conv_attributes(true),
          .work = WorkClass::convolution};
}

OpRecord conv1d(Op op) {
  return {.op = op,
          .traits = {graph_file, costly, scratch},
          .operands = {in("x", "c [n, in, l]"), param("weight", "c [out, in, k]"), param("bias", "c [out]", "bias"),
                       out("y", "c [n, out, ol]")},
          .attributes = conv_attributes(true),
          .work = WorkClass::convolution};
}

OpRecord conv2d_grad_input(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("dy", "c"), param("weight", "c"), out("dx", "c")},
          .attributes = conv_attributes(false),
          .work = WorkClass::convolution};
}
OpRecord conv1d_grad_input(Op op) { return conv2d_grad_input(op); }

OpRecord conv2d_grad_weight(Op op) {
  AttributeDefs attributes = conv_attributes(false);
  attributes.push_back(bias(false));
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("x", "c"), in("dy", "c"), sum("dweight", "r"), sum("dbias", "r [out]", "bias")},
          .attributes = attributes,
          .work = WorkClass::convolution};
}
OpRecord conv1d_grad_weight(Op op) { return conv2d_grad_weight(op); }

OpRecord max_pool2d(Op op) {
  return pool(
      op, {graph_file},
      {in("x", "c [n, ch, h, w]"), out("y", "c"), out("index", "i32 of y's shape (position in the h·w plane)")});
}

OpRecord max_pool2d_grad(Op op) {
  return pool(op, {backward, scratch}, {in("dy", "c"), in("index", "i32"), out("dx", "c [n, ch, h, w]")});
}

OpRecord avg_pool2d(Op op) {
  OpRecord record = pool(op, {graph_file}, {in("x", "c [n, ch, h, w]"), out("y", "c")});
  record.note = "padding counts as zeros, as PyTorch's default";
  return record;
}

OpRecord avg_pool2d_grad(Op op) { return pool(op, {backward}, {in("dy", "c"), out("dx", "c [n, ch, h, w]")}); }

}  // namespace trainer::records
