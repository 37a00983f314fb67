// Times on a CPU: what a table of measured rates says between and at its points, which class of work each kernel of a
// plan is, and that a hardware file keeps what was measured.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "engine/compile/compile.h"
#include "engine/cost/measured_times.h"
#include "engine/cost/work.h"
#include "kernels/cpu/table.h"
#include "tests/temporary.h"
#include "tools/calibrate/cases.h"
#include "tools/calibrate/hardware_text.h"
#include "tools/calibrate/operands.h"

namespace trainer::cost {
namespace {

using tools::calibration_cases;
using tools::Effort;

MachineModel machine() {
  MachineModel out;
  out.description = "a \"machine\" of round figures \\ for tests";
  out.device.memory_bytes = std::int64_t{16} << 30;
  out.device.reserve_bytes = std::int64_t{1} << 30;
  out.device.memory_bandwidth = {30e9, 0.1};
  out.device.cache_bytes = 4 << 20;
  out.device.units = 2;
  out.device.launch_us = {1.5, 0.2};
  out.device.peak = {{DType::f32, {3e11, 0.05}}};
  out.device.achievable = {{"matmul", {1, 0}}, {"memory", {1, 0}}};
  out.inside.kind = "memory";
  out.inside.bandwidth = {30e9, 0};
  out.inside.latency_us = {90, 0.1};
  out.inside.achievable = {1, 0};
  out.overlap_slowdown = 4;
  out.host_memory_bytes = out.device.memory_bytes;
  out.measured_here = true;
  return out;
}

// Rates of a grid that lacks its costliest corner.
MachineModel measured() {
  MachineModel out = machine();
  double rate = 1e11;
  for (std::int64_t rows : {64, 1024})
    for (std::int64_t in : {128, 512})
      for (std::int64_t width : {128, 2048})
        if (rows * in * width < std::int64_t{1024} * 512 * 2048)
          out.device.measured.push_back({"linear", DType::f32, 2, 1, {rows, in, width}, {rate *= 1.1, 0.03}});
  for (std::int64_t bytes : {1024, 1 << 20})
    out.collectives.push_back({"all_reduce", "threads", 2, bytes, {bytes == 1024 ? 50.0 : 400.0, 0.05}});
  return out;
}

Work linear(std::int64_t rows, std::int64_t in, std::int64_t out) {
  return {"linear", DType::f32, {rows, in, out}, 2.0 * static_cast<double>(rows * in * out)};
}

double rate(const MeasuredTimes& times, const Work& work, int threads = 2, int ranks = 1) {
  const auto time = times.kernel(work, threads, ranks);
  REQUIRE(time);
  return work.amount / time->us * 1e6;
}

}  // namespace

TEST_CASE("a measured size has the rate that was measured there") {
  const MachineModel model = measured();
  const MeasuredTimes times(model);
  for (const MeasuredWork& row : model.device.measured)
    CHECK(rate(times, linear(row.sizes[0], row.sizes[1], row.sizes[2])) ==
          doctest::Approx(row.rate.value).epsilon(1e-12));
  CHECK(times.collective("all_reduce", 1024, 2, 1)->us == doctest::Approx(50));
  CHECK(times.collective("all_reduce", 1 << 20, 2, 1)->us == doctest::Approx(400));
}

TEST_CASE("between two measured sizes rates are monotone, and halfway by logarithms they are the geometric mean") {
  const MeasuredTimes times(measured());
  double before = rate(times, linear(64, 128, 128));
  for (std::int64_t out : {160, 256, 512, 1024, 1500, 2048}) {
    const double now = rate(times, linear(64, 128, out));
    CHECK(now >= before);
    before = now;
  }
  CHECK(rate(times, linear(256, 128, 128)) ==
        doctest::Approx(std::sqrt(rate(times, linear(64, 128, 128)) * rate(times, linear(1024, 128, 128)))));
  double time = 0;
  for (std::int64_t bytes : {256, 1024, 5000, 100000, 1 << 20, 1 << 24}) {
    CHECK(times.collective("all_reduce", bytes, 2, 1)->us >= time);
    time = times.collective("all_reduce", bytes, 2, 1)->us;
  }
}

TEST_CASE("beyond the outermost sizes a rate stays, also where the grid lacks a corner") {
  const MeasuredTimes times(measured());
  CHECK(rate(times, linear(8, 16, 16)) == doctest::Approx(rate(times, linear(64, 128, 128))));
  CHECK(rate(times, linear(4096, 128, 4096)) == doctest::Approx(rate(times, linear(1024, 128, 2048))));
  CHECK(rate(times, linear(1024, 512, 2048)) == doctest::Approx(rate(times, linear(1024, 512, 128))));  // the corner
  CHECK(times.collective("all_reduce", 1 << 22, 2, 1)->us == doctest::Approx(1600));
}

// As `calibrate` measures wide heads at rows that no other shape has.
TEST_CASE("rows that were measured for other shapes only do not stand for all") {
  MachineModel model = measured();
  for (std::int64_t width : {64, 256, 512, 1024})  // so that one is few
    model.device.measured.push_back({"linear", DType::f32, 2, 1, {64, 128, width}, {1e11, 0.03}});
  const double before = rate(MeasuredTimes(model), linear(256, 512, 512));
  model.device.measured.push_back({"linear", DType::f32, 2, 1, {256, 128, 32768}, {3e10, 0.03}});
  const MeasuredTimes times(model);
  CHECK(rate(times, linear(256, 512, 512)) == doctest::Approx(before));
  CHECK(rate(times, linear(256, 128, 512)) > 1e11);
  CHECK(rate(times, linear(256, 128, 32768)) == doctest::Approx(3e10));
}

TEST_CASE("ranks that have more threads than there are cores take turns") {
  MachineModel model = machine();
  model.device.measured = {{"add", DType::f32, 2, 1, {1024}, {40e9, 0}}, {"add", DType::f32, 1, 2, {1024}, {15e9, 0}}};
  const MeasuredTimes times(model);
  const Work add{"add", DType::f32, {1024}, 3 * 4096};
  CHECK(rate(times, add, 2, 1) == doctest::Approx(40e9));
  CHECK(rate(times, add, 1, 2) == doctest::Approx(15e9));
  CHECK(rate(times, add, 1, 4) == doctest::Approx(7.5e9));
  CHECK_FALSE(times.kernel({"mul", DType::f32, {1024}, 1}, 2, 1));
  CHECK_FALSE(times.kernel({"add", DType::bf16, {1024}, 1}, 2, 1));
}

TEST_CASE(
    "operands that no cache holds take the time that was measured from memory, and part of it where caches hold a "
    "part") {
  MachineModel model = machine();
  model.device.measured = {{"add", DType::f32, 2, 1, {1024}, {40e9, 0}},
                           {"add@memory", DType::f32, 2, 1, {1024}, {10e9, 0}},
                           {"mul@memory", DType::f32, 2, 1, {1024}, {10e9, 0}}};
  const MeasuredTimes times(model);
  const Work add{"add", DType::f32, {1024}, 4e4};
  CHECK(times.kernel(add, 2, 1, 0)->us == doctest::Approx(1));
  CHECK(times.kernel(add, 2, 1, 0.5)->us == doctest::Approx(2.5));
  CHECK(times.kernel(add, 2, 1, 1)->us == doctest::Approx(4));
  CHECK_FALSE(times.kernel({"mul", DType::f32, {1024}, 1}, 2, 1, 1));  // never measured in caches: the roofline has it
}

TEST_CASE("every kernel of the plans of configs/ is of a class that calibrate measures") {
  std::set<std::pair<std::string, DType>> covered;
  for (const Signature& signature : calibration_cases(Effort::full, {})) {
    const Work work = work_of(signature);
    CAPTURE(std::string(work.name));
    CHECK(tools::knows_contents(signature));  // else it is left out
    covered.emplace(work.name, work.dtype);
  }
  const std::string configs = std::string(TRAINER_SOURCE_DIR) + "/configs";
  for (const auto& entry : std::filesystem::directory_iterator(configs)) {
    if (entry.path().extension() != ".yaml") continue;
    const LoadedJob loaded = load_job(entry.path().string(), {}, {.configs_dir = configs});
    const kernels::cpu::CpuTarget target({.isa = kernels::cpu::Isa::avx512_bf16, .threads = 2});
    const CompiledJob compiled =
        compile(loaded, {.target = &target, .memory_bytes = std::int64_t{16} << 30, .threads = 2}, Purpose::train);
    for (const Role& role : compiled.plan.roles)
      for (const Signature& signature : role.signatures) {
        const Work work = work_of(signature);
        CAPTURE(entry.path().filename().string());
        CAPTURE(std::string(work.name));
        CHECK(covered.contains({std::string(work.name), work.dtype}));
        CHECK(work.amount > 0);
        for (std::int64_t size : work.sizes) CHECK(size > 0);
      }
  }
}

TEST_CASE("what calibrate measures is of the sizes that its classes of work count") {
  for (Effort effort : {Effort::quick, Effort::full}) {
    std::map<std::tuple<std::string, DType, std::vector<std::int64_t>>, int> seen;
    for (bool from_memory : {false, true})
      for (const Signature& signature :
           from_memory ? tools::cases_from_memory(effort, {}) : calibration_cases(effort, {})) {
        const Work work = work_of(signature);
        CAPTURE(std::string(work.name));
        CHECK(work.amount > 0);
        CHECK(++seen[{std::string(work.name) + (from_memory ? "@memory" : ""), work.dtype, work.sizes}] == 1);
        CHECK_NOTHROW(kernels::cpu::prepare(signature, {.isa = kernels::cpu::detect_isa(), .threads = 1}));
      }
  }
}

TEST_CASE("a hardware file keeps what was measured") {
  const MachineModel wrote = measured();
  const tests::TemporaryFolder folder;
  const MachineModel read = load_machine(folder.write("this.yaml", tools::hardware_text(wrote)));
  CHECK(read.description == wrote.description);
  CHECK(read.measured_here);
  CHECK(read.device.memory_bytes == wrote.device.memory_bytes);
  CHECK(read.device.units == wrote.device.units);
  CHECK(read.device.memory_bandwidth.value == doctest::Approx(wrote.device.memory_bandwidth.value));
  CHECK(read.overlap_slowdown == doctest::Approx(wrote.overlap_slowdown));
  REQUIRE(read.device.measured.size() == wrote.device.measured.size());
  for (std::size_t i = 0; i < read.device.measured.size(); ++i) {
    const MeasuredWork &a = read.device.measured[i], &b = wrote.device.measured[i];
    CHECK(a.work == b.work);
    CHECK(a.dtype == b.dtype);
    CHECK(a.threads == b.threads);
    CHECK(a.ranks == b.ranks);
    CHECK(a.sizes == b.sizes);
    CHECK(a.rate.value == doctest::Approx(b.rate.value).epsilon(1e-3));  // four digits
    CHECK(a.rate.spread == doctest::Approx(b.rate.spread));
  }
  REQUIRE(read.collectives.size() == wrote.collectives.size());
  CHECK(read.collectives[1].us.value == doctest::Approx(wrote.collectives[1].us.value));
}

}  // namespace trainer::cost
