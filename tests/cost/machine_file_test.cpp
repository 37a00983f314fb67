// Hardware files: mistakes found at their places, every shipped file whole and with its sources, bases.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>

#include "engine/core/error.h"
#include "engine/cost/machine_fields.h"
#include "engine/cost/machine_model.h"
#include "engine/job/yaml.h"
#include "tests/job/bad_files.h"
#include "tests/temporary.h"

namespace trainer::cost {
namespace {

const std::string kFolder = std::string(TRAINER_SOURCE_DIR) + "/configs/hardware";

std::vector<Diagnostic> mistakes_of(const std::string& path) {
  try {
    load_machine(path, kFolder);
  } catch (const JobError& error) {
    return error.diagnostics();
  }
  return {};
}

TEST_CASE("every mistake of a hardware file is told at its line and column, with its key path and the nearest name") {
  const tests::TemporaryFolder folder;
  const std::vector<tests::BadFile> machines =
      tests::read_bad_files(std::string(TRAINER_SOURCE_DIR) + "/tests/cost/bad_machines.txt");
  CHECK(machines.size() >= 35);
  for (const tests::BadFile& one : machines) {
    const std::string path = folder.write("mine.yaml", one.text);
    tests::check_mistakes(one, path, mistakes_of(path));
  }
}

TEST_CASE("an out-of-range figure names its value and what is allowed") {
  const tests::TemporaryFolder folder;
  const std::vector<Diagnostic> found =
      mistakes_of(folder.write("mine.yaml", "base: h100-sxm\ndevice: {memory_bandwidth: 3350}\n"));
  REQUIRE(found.size() == 1);
  CHECK(found[0].value == "3350");
  CHECK(found[0].allowed.starts_with("a number from 100000000 to 1e+14"));
}

// ---- Shipped files ------------------------------------------------------------------------------------------------

/// Key paths of figures that say no source.
void unsourced(const std::vector<FieldDef>& fields, const yaml::Node& node, const std::string& prefix,
               std::vector<std::string>& out) {
  for (const FieldDef& field : fields) {
    const yaml::Node* value = node.find(field.name);
    if (value == nullptr || value->is_null()) continue;
    const std::string path = prefix + std::string(field.name);
    if (is_figure(field.forms)) {
      if (!value->is_mapping() || value->find("source") == nullptr) out.push_back(path);
    } else if (value->is_mapping()) {
      for (const Form& form : field.forms) unsourced(form.fields, *value, path + ".", out);
    }
  }
}

TEST_CASE("every shipped hardware file loads, and each of its figures has a source") {
  const std::vector<std::string> names = machine_names(kFolder);
  CHECK(names.size() >= 9);
  for (const std::string& name : names) {
    CAPTURE(name);
    const std::string path = kFolder + "/" + name + ".yaml";
    const MachineModel machine = load_machine(path, kFolder);
    CHECK(machine.name == name);
    CHECK(machine.description.size() > 20);
    CHECK(machine.usable_bytes() > 0);
    CHECK(machine.between.has_value());
    std::vector<std::string> without;
    unsourced(machine_fields(), yaml::read_file(path), "", without);
    std::string all;
    for (const std::string& one : without) all += one + " ";
    CAPTURE(all);
    CHECK(without.empty());
  }
}

TEST_CASE("the peak of a GPU's bf16 products is what its tensor cores do in a clock") {
  // FLOP a clock and streaming multiprocessor, by the architectures' white papers; that of the GeForce card is halved
  // where sums are f32.
  const std::map<std::string, double> per_clock{{"a100-40gb", 2048}, {"a100-80gb", 2048}, {"h100-sxm", 4096},
                                                {"h100-pcie", 4096}, {"h200", 4096},      {"b200", 8192},
                                                {"l40s", 1024},      {"rtx4090", 512}};
  for (const auto& [name, flops] : per_clock) {
    CAPTURE(name);
    const DeviceModel device = load_machine(kFolder + "/" + name + ".yaml", kFolder).device;
    CHECK(device.peak.at(DType::bf16).value == doctest::Approx(flops * device.units * device.clock_hz).epsilon(0.005));
  }
}

TEST_CASE("a damaged hardware file is mistakes or another machine, and never more") {
  std::mt19937 random(7);
  const auto below = [&](std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
  };
  const std::string pieces[] = {"0",
                                "-1",
                                "1e999",
                                ".nan",
                                "null",
                                "{",
                                "}",
                                "[",
                                "]",
                                ": ",
                                "\n  ",
                                "value",
                                "base: h100-sxm\n",
                                "80GiB",
                                "0x7fffffffffffffff",
                                "\"",
                                "\xff"};
  int num_wrong = 0;
  for (int i = 0; i < 1500; ++i) {
    const std::string name = std::vector<std::string>{"h100-sxm", "cpu-avx512", "cpu-amx"}[below(3)];
    std::ifstream file(kFolder + "/" + name + ".yaml");
    std::string text(std::istreambuf_iterator<char>(file), {});
    for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
      const std::size_t at = below(text.size()), length = below(2) == 0 ? 0 : below(12);
      text.replace(at, std::min(length, text.size() - at), below(3) == 0 ? "" : pieces[below(std::size(pieces))]);
    }
    CAPTURE(text);
    try {
      const MachineModel machine = parse_machine(text, kFolder + "/damaged.yaml", kFolder);
      CHECK(machine.usable_bytes() > 0);
      CHECK(machine.device.memory_bandwidth.value > 0);
      CHECK(machine.device.peak.contains(DType::f32));
    } catch (const JobError& error) {
      ++num_wrong;
      REQUIRE_FALSE(error.diagnostics().empty());
    }
  }
  CHECK(num_wrong > 300);
}

TEST_CASE("a computer that nobody measured has the figures of the shipped CPU that is like it") {
  for (const auto& [like, name] : {std::pair(ShippedCpu::avx2, "cpu-avx2"), std::pair(ShippedCpu::avx512, "cpu-avx512"),
                                   std::pair(ShippedCpu::amx, "cpu-amx")}) {
    CAPTURE(name);
    const MachineModel shipped = load_machine(kFolder + "/" + name + ".yaml", kFolder);
    const MachineModel here = builtin_cpu(
        {.cores = 3 * shipped.device.units, .memory_bytes = 1 << 30, .reserve_bytes = 1 << 20, .like = like});
    for (const DType dtype : {DType::f32, DType::bf16})
      CHECK(here.device.peak.at(dtype).value == doctest::Approx(3 * shipped.device.peak.at(dtype).value));
    CHECK(here.device.achievable.at("matmul").value == shipped.device.achievable.at("matmul").value);
    CHECK(here.description == std::to_string(here.device.units) + " cores by the figures of " + name);
  }
  const auto peak = [](const char* name, DType dtype) {
    return load_machine(kFolder + "/" + name + ".yaml", kFolder).device.peak.at(dtype).value;
  };
  CHECK(peak("cpu-avx2", DType::f32) < 0.6 * peak("cpu-avx512", DType::f32));
  CHECK(peak("cpu-avx2", DType::bf16) == peak("cpu-avx2", DType::f32));
  CHECK(builtin_cpu({.cores = 2, .memory_bytes = 1 << 30, .like = ShippedCpu::avx2, .arithmetic = 0.25}).description ==
        "2 cores by the figures of cpu-avx2, with 25% of its arithmetic");
}

// ---- Bases --------------------------------------------------------------------------------------------------------

TEST_CASE("a file with a base says only what differs, and half a link or figure is never mixed with another") {
  const tests::TemporaryFolder folder;
  const std::string path = folder.write("ours.yaml",
                                        "base: h100-sxm\ndevice: {memory: 64GiB}\ndevices_per_node: 4\n"
                                        "links:\n  inside: {latency_us: 3}\n  between: {kind: ethernet, bandwidth: "
                                        "12.5e9, latency_us: 20, achievable: 0.8}\n"
                                        "price_per_device_hour: 2.5\n");
  const MachineModel base = load_machine(kFolder + "/h100-sxm.yaml", kFolder), ours = load_machine(path, kFolder);
  CHECK(ours.name == "ours");
  CHECK(ours.device.memory_bytes == std::int64_t{64} << 30);
  CHECK(ours.device.memory_bandwidth.value == base.device.memory_bandwidth.value);
  CHECK(ours.devices_per_node == 4);
  CHECK(ours.inside.latency_us.value == 3);
  CHECK(ours.inside.latency_us.spread == 0);
  CHECK(ours.inside.bandwidth.value == base.inside.bandwidth.value);
  CHECK(ours.inside.reduces == base.inside.reduces);
  REQUIRE(ours.between);
  CHECK(ours.between->kind == "ethernet");
  CHECK(ours.between->bandwidth.value == 12.5e9);
  CHECK(ours.price_per_device_hour == 2.5);
}

TEST_CASE("a base may be a path and have a base; a null takes away what it had") {
  const tests::TemporaryFolder folder;
  folder.write("mid.yaml", "base: h100-sxm\ndevices_per_node: 2\n");
  const MachineModel machine =
      load_machine(folder.write("top.yaml", "base: ./mid.yaml\nlinks: {between: null}\n"), kFolder);
  CHECK(machine.devices_per_node == 2);
  CHECK_FALSE(machine.between);
}

TEST_CASE("a mistake in a base is told where it stands") {
  const tests::TemporaryFolder folder;
  const std::string base = folder.write("base.yaml", "base: h100-sxm\ndevice:\n  units: 0\n");
  const std::vector<Diagnostic> found = mistakes_of(folder.write("mine.yaml", "base: ./base.yaml\n"));
  REQUIRE(found.size() == 1);
  CHECK(found[0].file == base);
  CHECK(found[0].line == 3);
}

TEST_CASE("a file that is its own base is an error and no endless loop") {
  const tests::TemporaryFolder folder;
  const std::vector<Diagnostic> found = mistakes_of(folder.write("mine.yaml", "base: ./mine.yaml\n"));
  REQUIRE(found.size() == 1);
  CHECK(found[0].message.find("a base of itself") != std::string::npos);
}

TEST_CASE("a file that is not there is an input error") {
  CHECK_THROWS_AS(load_machine("/nowhere/machine.yaml"), IoError);
}

}  // namespace
}  // namespace trainer::cost
