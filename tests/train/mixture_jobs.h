// A model of four layers of experts, jobs that train it, and what two runs have in common: what the tests of experts
// share.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "tests/train/tiny_jobs.h"

namespace trainer::tests {

inline constexpr double kBound = 1e-5;

inline constexpr const char* kMixture = R"(name: mixture
params: {shared: true, score: softmax, groups: 1, aux: 0.0, z: 0.0, capacity: null, balance: none, rate: 0.001, bound: 2.0}
inputs:
  tokens: {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: embed, op: embedding, input: tokens, rows: 32, dim: 16, init: {normal: 0.5}}
  - repeat: 4
    name: "h.{index}"
    block: Layer
    nodes:
      - {name: norm, op: rms_norm}
      - {name: gate, op: router, experts: 4, top_k: 2, score: "${score}", groups: "${groups}", aux: "${aux}", z: "${z}", balance: "${balance}", balance_rate: "${rate}", init: {normal: 0.5}}
      - {name: experts, op: experts, input: [norm, gate], hidden: 8, capacity_factor: "${capacity}", bound: "${bound}", init: {normal: 0.3}}
      - {name: up, op: linear, if: "${shared}", input: norm, out: 12, bias: false, init: {normal: 0.3}}
      - {name: act, op: silu, if: "${shared}"}
      - {name: down, op: linear, if: "${shared}", out: 16, bias: false, init: {normal: 0.3}}
      - {name: share, op: linear, if: "${shared}", input: norm, out: 1, bias: false, init: {normal: 0.3}}
      - {name: sigmoid, op: sigmoid, if: "${shared}"}
      - {name: weighed, op: weigh, if: "${shared}", input: [down, sigmoid]}
      - {name: both, op: add, if: "${shared}", input: [experts, weighed]}
      - {name: res, op: add, input: [block.input, both]}
  - {name: last, op: rms_norm}
  - {name: head, op: linear, out: 32, bias: false, init: {normal: 0.2}}
  - {name: loss, op: cross_entropy, input: [head, targets]}
outputs: {loss: loss, logits: head}
)";

/// kMixture with attention, which makes the ranks of a sequence differ, in front of the experts of each layer.
inline std::string attentive_mixture() {
  std::string text = kMixture;
  const auto put = [&](const std::string& what, const std::string& in_place_of) {
    const std::size_t at = text.find(in_place_of);
    REQUIRE(at != std::string::npos);
    text.replace(at, in_place_of.size(), what);
  };
  put("      - {name: ln, op: rms_norm}\n"
      "      - {name: qkv, op: linear, parallel: column, out: 48, bias: false, init: {normal: 0.3}}\n"
      "      - {name: attn, op: attention, heads: 2, causal: true}\n"
      "      - {name: proj, op: linear, parallel: row, out: 16, bias: false, init: {normal: 0.3}}\n"
      "      - {name: mixed, op: add, input: [block.input, proj]}\n"
      "      - {name: norm, op: rms_norm}\n",
      "      - {name: norm, op: rms_norm}\n");
  put("op: add, input: [mixed, both]", "op: add, input: [block.input, both]");
  return text;
}

/// The tiny job of tokens with that model.
struct Jobs : TinyJobs {
  Jobs() { write("mixture.yaml", kMixture); }
  LoadedJob job(const std::string& folder, const Overrides& overrides = {}) const {
    return load("gpt2", folder,
                both({"model={graph: " + path("mixture.yaml") + "}", "checkpoint.resume=none"}, overrides));
  }
  Trained train(const std::string& folder, const Overrides& overrides = {}) const {
    return run(job(folder, overrides));
  }
};

inline Overrides on(int ranks, const std::string& strategy, const Overrides& more = {}) {
  return both({"cluster.devices_per_node=" + std::to_string(ranks), "strategy=" + strategy}, more);
}

/// Steps, weights and states.
inline void check_same_training(const Trained& got, const Trained& want, double bound) {
  REQUIRE(got.loss.size() == want.loss.size());
  for (std::size_t step = 0; step < want.loss.size(); ++step) {
    CHECK(std::abs(got.loss[step] - want.loss[step]) < bound);
    CHECK(std::abs(got.grad_norm[step] - want.grad_norm[step]) < bound * std::fmax(1, want.grad_norm[step]));
  }
  CHECK(largest_difference(tensors_of(got.report.checkpoint), tensors_of(want.report.checkpoint)) < bound);
  CHECK(got.report.planned_peak_bytes == got.report.allocated_bytes);
}

/// Also what the log says of routers.
inline void check_same(const Trained& got, const Trained& want, double bound) {
  check_same_training(got, want, bound);
  REQUIRE(got.aux_loss.size() == want.aux_loss.size());
  for (std::size_t step = 0; step < want.aux_loss.size(); ++step)
    CHECK(std::abs(got.aux_loss[step] - want.aux_loss[step]) < bound);
  CHECK(got.dropped == want.dropped);
}

}  // namespace trainer::tests
