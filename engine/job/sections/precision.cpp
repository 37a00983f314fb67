// Sections `precision` and `activation_checkpointing`: dtypes, and what is computed twice.
#include "engine/job/sections/sections.h"

#include "engine/core/check.h"
#include "engine/job/sections/define.h"
#include "engine/job/values.h"

namespace trainer {
namespace {

using namespace form;

// The largest is that whose inverse is a normal number of f32.
Form scale() { return number(1e-6, 0x1p126); }

/// A dynamic loss scale and its numbers: PyTorch's names and defaults.
Form dynamic_scale() {
  return section({
      optional("init_scale", "The scale of the first step.", {scale()}, "65536.0"),
      optional("growth_factor", "By which it grows after growth_interval steps in a row without overflow.",
               {between(1, 1e6, true, false)}, "2.0"),
      optional("backoff_factor", "By which it shrinks after a step that overflowed.", {between(0, 1, true, true)},
               "0.5"),
      optional("growth_interval", "Steps without overflow from one growth to the next.", {integer(1, 1e9)}, "2000"),
      optional("largest_scale", "It grows no further.", {scale()}, "16777216.0"),
      optional("smallest_scale", "It shrinks no further: a step that overflows even so is an error.", {scale()}, "1.0"),
  });
}

DType dtype(const Values& v, std::string_view path) {
  const std::optional<DType> dtype = dtype_named(v.text(path));
  CHECK(dtype.has_value(), v.text(path) + " is in the table of fields but no dtype");
  return *dtype;
}

LossScale bind_loss_scale(const Values& v) {
  using Mode = LossScale::Mode;
  const std::string at = "precision.loss_scale";
  LossScale scale;
  scale.mode = Mode::dynamic;
  scale.factor = 65536;
  if (v.is_section(at)) {
    scale.factor = v.number(at + ".init_scale");
    scale.growth_factor = v.number(at + ".growth_factor");
    scale.backoff_factor = v.number(at + ".backoff_factor");
    scale.growth_interval = v.integer(at + ".growth_interval");
    scale.largest = v.number(at + ".largest_scale");
    scale.smallest = v.number(at + ".smallest_scale");
    return scale;
  }
  if (v.is(at, "dynamic")) return scale;
  if (v.is(at, "none")) return {};
  return {Mode::fixed, v.number(at)};
}

}  // namespace

Fields precision_fields() {
  const Form dtype = word({"f32", "bf16", "f16"});
  const auto loss_scale = [](std::string_view otherwise) {
    return optional("loss_scale",
                    "A factor of the loss during the backward pass; dynamic: one that follows the gradients. Dynamic "
                    "by default where compute is f16.",
                    {word({"none", "dynamic"}), scale(), dynamic_scale()}, otherwise);
  };
  return {
      optional("params", "Dtype of master weights.", {dtype}, "f32"),
      optional("compute", "Dtype of activations and working weights.", {dtype}, "f32"),
      optional("reduce", "Dtype in which gradients of parameters are summed.", {dtype}, "f32"),
      optional("matmul",
               "fp8: linears in blocks multiply e4m3, in the backward pass e5m2 gradients with e4m3; on GPUs that have "
               "it, with compute: bf16.",
               {word(words<MatmulPrecision>())}, "none"),
      loss_scale("none").when("compute", {"f32", "bf16"}),
      loss_scale("dynamic").when("compute", {"f16"}),
  };
}

PrecisionJob bind_precision(const Values& v) {
  PrecisionJob precision;
  precision.params = dtype(v, "precision.params");
  precision.compute = dtype(v, "precision.compute");
  precision.reduce = dtype(v, "precision.reduce");
  precision.matmul = v.word<MatmulPrecision>("precision.matmul");
  precision.loss_scale = bind_loss_scale(v);
  return precision;
}

Fields activation_checkpointing_fields() {
  const std::string_view mode =
      "What is recomputed in the backward pass: nothing, blocks, all but matrix products, or every n-th block.";
  return {
      optional("mode", mode, {word(words<CheckpointingMode>())}, "none"),
      required("every", "Of so many consecutive blocks the first is recomputed.", {integer(1, 1e6)})
          .when("mode", {"every_n"}),
  };
}

ActivationCheckpointingJob bind_activation_checkpointing(const Values& v) {
  const std::string at = "activation_checkpointing.";
  ActivationCheckpointingJob out;
  out.mode = v.word<CheckpointingMode>(at + "mode");
  if (v.has(at + "every")) out.every = v.integer(at + "every");
  return out;
}

}  // namespace trainer
