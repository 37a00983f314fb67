// Kernels that are timed one by one, as `trainer calibrate --device cuda` does, and what predictions make of the times.
// On the emulated GPU the times say nothing about a GPU: tests check that there are some, for the right kernel.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/cost/cost_model.h"
#include "engine/cost/work.h"
#include "engine/run/cuda_device.h"
#include "engine/run/gpu_bench.h"
#include "tests/cuda/gpu_jobs.h"
#include "tools/calibrate/gpu_calibration.h"
#include "tools/calibrate/operands.h"

namespace trainer {
namespace {

GpuBench::Case case_of(const Signature& signature) {
  GpuBench::Case one{signature, {}, tools::fresh_of(signature), 1 << 20, 1};
  for (std::size_t k = 0; k < signature.operands.size(); ++k)
    one.contents.push_back(tools::contents_of(signature, static_cast<int>(k)));
  return one;
}

Signature linear(std::int64_t rows, std::int64_t in, std::int64_t out) {
  return {
      Op::linear, {{"bias", false}}, {{DType::bf16, {rows, in}}, {DType::bf16, {out, in}}, {DType::bf16, {rows, out}}}};
}

// The first kernel takes one microsecond, the second two, and so on.
class CountingBench final : public GpuBench {
 public:
  std::vector<double> kernel_us(const Case& one) override {
    if (one.signature.op == Op::layer_norm) return {};
    if (one.signature.op == Op::embedding) throw DataError("no such id");
    const double us = static_cast<double>(++kernels);
    return {us, us, us, us, us};
  }
  std::vector<double> copy_us(std::int64_t bytes, bool to_device) override {
    return {static_cast<double>(bytes) / (to_device ? 50e3 : 40e3)};
  }
  int kernels = 0;
};

cost::MachineModel h100_with(const tools::GpuFigures& figures) {
  return cost::parse_machine(tools::gpu_hardware_text(figures, "h100-sxm", "measured"), "measured.yaml",
                             std::string(TRAINER_SOURCE_DIR) + "/configs/hardware");
}

}  // namespace

TEST_CASE("a kernel is timed over operands at several places, and a copy both ways") {
  const std::unique_ptr<GpuBench> bench = gpu_bench(0);
  const TensorDesc x{DType::bf16, {64, 128}}, flat{DType::f32, {1000}}, w{DType::bf16, {128}}, stat{DType::f32, {64}};
  for (const Signature& signature : {linear(64, 128, 32), Signature{Op::rms_norm, {{"eps", 1e-5}}, {x, w, x, stat}},
                                     Signature{Op::embedding, {}, {{DType::i32, {64}}, {DType::bf16, {100, 128}}, x}},
                                     Signature{Op::sum_squares, {}, {flat, {DType::f64, {1}}}}}) {
    CAPTURE(name_of(signature.op));
    const std::vector<double> us = bench->kernel_us(case_of(signature));
    CHECK(us.size() >= 5);
    for (const double one : us) CHECK(one > 0);
  }
  for (const bool to_device : {true, false})
    for (const double us : bench->copy_us(1 << 20, to_device)) CHECK(us > 0);
}

TEST_CASE("what a kernel does not take is an error, and what does not fit is not measured") {
  const std::unique_ptr<GpuBench> bench = gpu_bench(0);
  const Signature lookup{Op::embedding, {}, {{DType::i32, {64}}, {DType::bf16, {100, 128}}, {DType::bf16, {64, 128}}}};
  GpuBench::Case one = case_of(lookup);
  const std::vector<std::int32_t> wrong(64, 100);
  one.contents[0] = std::as_bytes(std::span(wrong));
  CHECK_THROWS_AS(bench->kernel_us(one), DataError);
  CHECK_FALSE(bench->kernel_us(case_of(lookup)).empty());  // the fault is gone
  CHECK(bench->kernel_us(case_of(linear(std::int64_t{1} << 20, 1 << 10, 1 << 20))).empty());
}

TEST_CASE("all kernels of a job are measured, each by a name of its own") {
  const tests::TinyJobs jobs;
  const tests::GpuJob job = tests::gpu_job(jobs, "gpt2", "bench", {"checkpoint.resume=none"});
  const std::vector<Signature>& kernels = job.compiled.plan.roles.front().signatures;
  const std::unique_ptr<GpuBench> bench = gpu_bench(0);
  const tools::GpuFigures figures = tools::measure_gpu(*bench, kernels, 1 << 20);
  CHECK(figures.left_out.empty());
  CHECK(figures.host_link.value > 0);
  REQUIRE(figures.works.size() == kernels.size());
  std::set<std::string> names;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const cost::MeasuredWork& one = figures.works[i];
    CHECK(one.rate.value > 0);
    CHECK(one.work == cost::exact_name(kernels[i]));
    CHECK(one.sizes == cost::work_of(kernels[i]).sizes);
    CHECK(names.insert(one.work).second);
  }
}

TEST_CASE("predictions have the measured times of these kernels, and the model's of others") {
  CountingBench bench;
  const TensorDesc x{DType::bf16, {64, 128}}, stat{DType::f32, {64}}, w{DType::bf16, {128}};
  const Signature norm{Op::layer_norm, {{"eps", 1e-5}, {"bias", true}}, {x, w, w, x, stat, stat}},
      lookup{Op::embedding, {}, {{DType::i32, {64}}, {DType::bf16, {100, 128}}, x}},
      expert{Op::expert_linear,
             {{"parts", std::int64_t{8}}, {"filled", 1.0}},
             {{DType::bf16, {1, 8, 64, 128}},
              {DType::i32, {1, 8, 64}},
              {DType::bf16, {8, 256, 128}},
              {DType::bf16, {1, 8, 64, 256}}}};
  const tools::GpuFigures figures =
      tools::measure_gpu(bench, {linear(4096, 512, 256), norm, lookup, expert, linear(4096, 1024, 256)}, 1 << 20);
  CHECK(figures.works.size() == 2);
  REQUIRE(figures.left_out.size() == 3);
  CHECK(figures.left_out[0].find("do not fit") != std::string::npos);
  CHECK(figures.left_out[1].find("no such id") != std::string::npos);
  CHECK(figures.left_out[2].find("depends on ids") != std::string::npos);
  CHECK(figures.host_link.value == doctest::Approx(40e9));  // the slower direction

  const cost::MachineModel machine = h100_with(figures), base = h100_with({{}, {1e9, 0}, {}});
  CHECK(machine.measured_here);
  CHECK(machine.host_link.value == doctest::Approx(40e9).epsilon(1e-3));
  CHECK(machine.device.peak.at(DType::bf16).value == base.device.peak.at(DType::bf16).value);
  const cost::CostModel model({&machine, Mesh{}, 1, 0}), before({&base, Mesh{}, 1, 0});
  const auto us = [](const cost::CostModel& of, const Signature& signature) { return of.kernel(signature).us; };
  CHECK(us(model, linear(4096, 512, 256)) == doctest::Approx(1).epsilon(2e-3));
  CHECK(us(model, linear(4096, 1024, 256)) == doctest::Approx(2).epsilon(2e-3));
  Signature activated = linear(4096, 512, 256), in_fp8 = activated;
  activated.attributes.set("gelu", true);
  activated.operands.push_back(activated.operands.back());
  in_fp8.attributes.set("fp8", std::string("tensor"));
  for (const Signature& other : {linear(4096, 768, 256), linear(2048, 512, 256), norm, in_fp8, activated})
    CHECK(us(model, other) == us(before, other));
}

}  // namespace trainer
