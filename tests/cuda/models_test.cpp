// Whole models with the GPU's own kernels against the CPU's: on the emulated GPU, and on a GPU where there is one.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "engine/comm/host_communicator.h"
#include "engine/run/cuda_device.h"
#include "tests/cuda/gpu_jobs.h"
#include "tests/cuda/orders.h"
#include "tests/temporary.h"

using namespace trainer;
using tests::Overrides;
using tests::TinyJobs;
using tests::Trained;

namespace {

const TinyJobs& jobs() {
  static const TinyJobs one;
  return one;
}

Overrides with(Overrides overrides, const Overrides& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

// Half of the steps that f32 trains for: on the emulated GPU they take their time.
const Overrides kFew{"train.steps=10"};
const Overrides kPlain{"checkpoint.resume=none", "strategy=ddp", "train.batch.micro=2", "train.steps=20"};

Trained on_gpu(const std::string& name, const Overrides& more = {}, std::uint64_t order = 0) {
  const tests::GpuJob job = tests::gpu_job(jobs(), name, "gpu", with({"checkpoint.resume=none"}, more));
  kernels::test::set_order(order);
  Trained trained = tests::run(tests::from_the_start(job.loaded), job.compiled);
  kernels::test::set_order(0);
  return trained;
}

Trained on_cpu(const std::string& name, const Overrides& more = {}) {
  TrainOptions options;
  options.threads = 1;
  return tests::run(tests::from_the_start(jobs().load(name, "cpu", with(kPlain, more))), {}, options);
}

double largest_relative(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::isfinite(a[i]) ? std::abs(a[i] - b[i]) / std::abs(b[i]) : INFINITY);
  return worst;
}

void check_same_bits(const Trained& a, const Trained& b) {
  for (std::size_t i = 0; i < std::min(a.loss.size(), b.loss.size()); ++i) {
    CAPTURE(i);
    CHECK(a.loss[i] == b.loss[i]);
    CHECK(a.grad_norm[i] == b.grad_norm[i]);
  }
  CHECK(tests::files_of(a.report.checkpoint)["model.safetensors"] ==
        tests::files_of(b.report.checkpoint)["model.safetensors"]);
}

}  // namespace

TEST_CASE("models in f32 follow the CPU's losses over 20 steps within 2e-4, and their gradients' norms within 1e-3") {
  for (const char* name : {"gpt2", "llama", "mlp"})
    for (const Overrides& more :
         {Overrides{}, Overrides{"train.clip_norm=0.5", "activation_checkpointing={mode: full}"}}) {
      CAPTURE(name);
      const Trained cpu = on_cpu(name, more), gpu = on_gpu(name, more);
      CHECK(gpu.loss.size() == 20);
      CHECK(largest_relative(gpu.loss, cpu.loss) <= 2e-4);
      CHECK(largest_relative(gpu.grad_norm, cpu.grad_norm) <= 1e-3);
    }
}

TEST_CASE("dropout drops on a GPU what it drops on the CPU, and held-out data has the CPU's loss") {
  const Overrides more{"model.with.dropout=0.1", "data.val={fraction: 0.2}", "eval={every: 10, batches: 2}"};
  const Trained cpu = on_cpu("gpt2", more), gpu = on_gpu("gpt2", more);
  CHECK(largest_relative(gpu.loss, cpu.loss) <= 2e-4);
  REQUIRE(gpu.evaluations.size() == 2);
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(gpu.evaluations[i].val_loss == doctest::Approx(cpu.evaluations[i].val_loss).epsilon(2e-4));
}

TEST_CASE("a layer that predicts a further token trains on a GPU as on the CPU, in f32 and bf16") {
  const Overrides more = with(
      kFew,
      {"model={graph: models/decoder.yaml, with: {layers: 2, heads: 4, kv_heads: 2, head_dim: 4, dim: 16, hidden: 24, "
       "vocab: 32, mtp: true, mtp_weight: 0.5}}"});
  const Trained cpu = on_cpu("llama", more), gpu = on_gpu("llama", more);
  CHECK(largest_relative(gpu.loss, cpu.loss) <= 2e-4);
  CHECK(largest_relative(gpu.grad_norm, cpu.grad_norm) <= 1e-3);
  REQUIRE(gpu.figures.size() == 10);
  for (std::size_t step = 0; step < 10; ++step) {
    REQUIRE(gpu.figures[step].at(0).first == "mtp_loss");
    CHECK(gpu.figures[step][0].second == doctest::Approx(cpu.figures[step].at(0).second).epsilon(2e-4));
  }
  CHECK(largest_relative(on_gpu("llama", with(more, {"precision.compute=bf16"})).loss, cpu.loss) <= 0.02);
}

TEST_CASE("models in bf16 follow the CPU's losses within 2%, those in f16 with a dynamic scale the CPU's in f32") {
  for (const char* name : {"gpt2", "llama", "mlp"}) {
    CAPTURE(name);
    const Overrides bf16 = with(kFew, {"precision.compute=bf16"});
    CHECK(largest_relative(on_gpu(name, bf16).loss, on_cpu(name, bf16).loss) <= 0.02);
    const Trained half = on_gpu(name, with(kFew, {"precision.compute=f16", "precision.loss_scale=dynamic"}));
    const Trained whole = on_cpu(name, kFew);
    REQUIRE(half.loss.size() == 10);
    // A step that overflowed made no update: the rest is one behind.
    if (half.skipped.empty())
      CHECK(largest_relative(half.loss, whole.loss) <= 0.02);
    else
      CHECK(half.loss.back() < half.loss.front());
  }
}

TEST_CASE("a model in fp8 trains as one in bf16, within 5%, gives the same bits again, and is held out in fp8 too") {
  int major = 0, minor = 0;
  REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess);
  if (major != 9 || minor != 0) {
    MESSAGE("skipped: the plans here have the scales of compute capability 9.0");
    return;
  }
  const Overrides held_out = with(kFew, {"data.val={fraction: 0.2}", "eval={every: 5, batches: 2}"});
  const Trained plain = on_gpu("gpt2", with({"precision.compute=bf16"}, held_out));
  const Overrides fp8 = with({"precision={compute: bf16, matmul: fp8}"}, held_out);
  const Trained trained = on_gpu("gpt2", fp8);
  CHECK(trained.loss.size() == 10);
  CHECK(largest_relative(trained.loss, plain.loss) <= 0.05);
  CHECK(trained.loss != plain.loss);
  REQUIRE(trained.evaluations.size() == 2);
  CHECK(trained.evaluations[1].val_loss == doctest::Approx(plain.evaluations[1].val_loss).epsilon(0.05));
  CHECK(trained.evaluations[1].val_loss != plain.evaluations[1].val_loss);
  check_same_bits(trained, on_gpu("gpt2", fp8, kernels::test::num_orders() - 1));
}

TEST_CASE("every optimizer follows the CPU's") {
  for (const char* optimizer :
       {"sgd, lr: 0.05, momentum: 0.9, nesterov: true", "adam, lr: 0.01, eps: 1.0e-3", "lion, lr: 1.0e-3"}) {
    CAPTURE(optimizer);
    const Overrides more = with(kFew, {"train.optimizer={name: " + std::string(optimizer) + "}"});
    // Lion takes the sign of a sum, which rounding may turn where it is next to nothing.
    CHECK(largest_relative(on_gpu("gpt2", more).loss, on_cpu("gpt2", more).loss) <=
          (optimizer[0] == 'l' ? 2e-3 : 2e-4));
  }
}

TEST_CASE("a run gives the same bits again, in whatever order the device goes on") {
  for (const char* compute : {"precision.compute=f32", "precision.compute=bf16"}) {
    const Overrides few{compute, "model.with.dropout=0.1", "train.steps=4"};
    const Trained first = on_gpu("gpt2", few);
    for (std::uint64_t order = 0; order < kernels::test::num_orders(); ++order)
      check_same_bits(first, on_gpu("gpt2", few, order));
  }
}

TEST_CASE("a captured step is an issued one to the bit") {
  const Overrides few{"precision.compute=bf16", "train.steps=5"};
  const Trained captured = on_gpu("llama", few);
  const tests::EnvironmentSetting off("TRAINER_CUDA_GRAPH", "0");
  check_same_bits(captured, on_gpu("llama", few));
}

TEST_CASE("scratch memory that starts as NaN changes nothing") {
  const Trained plain = on_gpu("gpt2", {"train.steps=3"});
  const tests::EnvironmentSetting on("TRAINER_POISON", "1");
  check_same_bits(plain, on_gpu("gpt2", {"train.steps=3"}));
}

TEST_CASE("the device counts what was planned, within 2%") {
  // On a GPU of a size at which what it rounds up to does not count.
  const bool large = kernels::test::num_orders() == 1;
  const tests::GpuJob job = tests::gpu_job(
      jobs(), "gpt2", "gpu",
      large ? Overrides{"model.with.dim=1024", "model.with.heads=16", "model.with.layers=8"} : Overrides{});
  const auto communicators = thread_communicators(1);
  const auto executor = cuda_device({})->load(job.compiled.plan, 0, *communicators[0]);
  const double planned = static_cast<double>(job.compiled.plan.roles[0].total_bytes);
  CHECK(static_cast<double>(executor->allocated_bytes()) == planned);
  CHECK(static_cast<double>(executor->counted_bytes()) >= planned);
  CHECK(static_cast<double>(executor->counted_bytes()) <= 1.02 * planned);
}

TEST_CASE("a GPU generates the ids that the CPU does, a token at a time and beyond the sequence") {
  for (const std::string name : {"gpt2", "llama"}) {
    CAPTURE(name);
    const std::string checkpoint = on_cpu(name).report.checkpoint;
    const SampleOptions options{.prompt = "1 2 3 1 2", .num_tokens = 12, .drawing = {.temperature = 0}};
    const auto ids_of = [&](const LoadedJob& loaded, const CompiledJob& plan) {
      return sample(loaded, std::span(&plan, 1), checkpoint, options, [](const std::string&) {}).ids;
    };
    const LoadedJob on_processor = jobs().load(name, "cpu", kPlain);
    const std::vector<std::int32_t> wanted = ids_of(on_processor, tests::compiled(on_processor, Purpose::sample));
    REQUIRE(wanted.size() == 17);
    for (std::uint64_t order : {0, 1}) {
      const tests::GpuJob job = tests::gpu_job(jobs(), name, "gpu", {"checkpoint.resume=none"}, 1, Purpose::sample);
      kernels::test::set_order(order);
      CHECK(ids_of(job.loaded, job.compiled) == wanted);
      kernels::test::set_order(0);
    }
  }
}

TEST_CASE(
    "products chosen by time keep the losses, and the next run computes the same bits by the choices that are kept") {
  const tests::TemporaryFolder folder, copy;
  const Trained first = on_gpu("gpt2", kFew);
  REQUIRE(setenv("TRAINER_CUDA_TUNE", "1", 1) == 0);
  REQUIRE(setenv("TRAINER_CACHE", folder.path().c_str(), 1) == 0);
  const Trained chosen = on_gpu("gpt2", kFew);
  // From another folder they are read from the file, as another process reads them.
  REQUIRE(std::filesystem::exists(folder.path("products")));
  std::filesystem::copy(folder.path("products"), copy.path("products"));
  REQUIRE(setenv("TRAINER_CACHE", copy.path().c_str(), 1) == 0);
  const Trained again = on_gpu("gpt2", kFew, 1);
  REQUIRE(setenv("TRAINER_CUDA_TUNE", "0", 1) == 0);
  REQUIRE(unsetenv("TRAINER_CACHE") == 0);
  CHECK(largest_relative(chosen.loss, first.loss) <= 2e-4);
  CHECK(largest_relative(chosen.grad_norm, first.grad_norm) <= 1e-3);
  check_same_bits(again, chosen);
}
