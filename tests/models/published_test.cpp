// The config.json of published models (tests/job/published, with their sources): each is read by its family, and the
// graph has as many parameters as the published weights.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/compile/hardware.h"
#include "engine/core/error.h"
#include "engine/transform/transform.h"
#include "kernels/cuda/target.h"

using namespace trainer;
namespace fs = std::filesystem;

namespace {

const std::string kSource = TRAINER_SOURCE_DIR;
const std::string kPublished = kSource + "/tests/job/published";
const LoadOptions kOptions{.configs_dir = kSource + "/configs"};

struct Published {
  std::string folder;
  std::int64_t parameters;
};

// Gemma 3 27B: 27,432,406,640 less the vision tower's 416,866,032 and its projector's 6,194,304.
const std::vector<Published> kModels{
    {"gemma-2-2b", 2'614'341'888},       {"gemma-2-9b", 9'241'705'984},       {"gemma-2-27b", 27'227'128'320},
    {"gemma-3-1b", 999'885'952},         {"gemma-3-27b", 27'009'346'304},     {"gpt2", 124'439'808},
    {"gpt2-medium", 354'823'168},        {"llama-3.1-8b", 8'030'261'248},     {"llama-3.1-70b", 70'553'706'496},
    {"llama-3.1-405b", 405'853'388'800}, {"llama-3.2-1b", 1'235'814'400},     {"llama-3.2-3b", 3'212'749'824},
    {"mistral-7b-v0.1", 7'241'732'096},  {"mistral-7b-v0.3", 7'248'023'552},  {"phi-3-mini-4k", 3'821'079'552},
    {"phi-3-mini-128k", 3'821'079'552},  {"phi-3-medium-4k", 13'960'238'080}, {"phi-3-medium-128k", 13'960'238'080},
    {"phi-4-mini", 3'836'021'760},       {"qwen2.5-0.5b", 494'032'768},       {"qwen2.5-1.5b", 1'543'714'304},
    {"qwen2.5-3b", 3'085'938'688},       {"qwen2.5-7b", 7'615'616'512},       {"qwen2.5-14b", 14'770'033'664},
    {"qwen2.5-32b", 32'763'876'352},     {"qwen2.5-72b", 72'706'203'648},     {"qwen3-0.6b", 596'049'920},
    {"qwen3-1.7b", 1'720'574'976},       {"qwen3-4b", 4'022'468'096},         {"qwen3-8b", 8'190'735'360},
    {"qwen3-14b", 14'768'307'200},       {"qwen3-32b", 32'762'123'264},       {"smollm2-135m", 134'515'008},
    {"deepseek-v3", 671'026'404'352},    {"mixtral-8x7b", 46'702'792'704},
};

CompiledJob planned(const std::string& folder, int nodes, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.end(), {"cluster.hardware=h100-sxm", "cluster.nodes=" + std::to_string(nodes)});
  LoadedJob loaded = load_job(kPublished + "/" + folder, overrides, kOptions);
  const cost::MachineModel machine = *resolve_cluster(loaded, kSource + "/configs/hardware");
  const kernels::cuda::CudaTarget target(machine.device.capability, machine.device.units);
  const auto on_node = static_cast<int>(*loaded.job.cluster.devices_per_node);
  return compile(loaded, {&target, machine.usable_bytes(), 1, &machine, on_node, machine.usable_bytes()},
                 Purpose::train);
}

}  // namespace

TEST_CASE("a published config.json gives a graph with the published number of parameters") {
  for (const Published& model : kModels) {
    CAPTURE(model.folder);
    const LoadedJob loaded = load_job(kPublished + "/" + model.folder, {}, kOptions);
    BuildOptions options;
    options.batch = 1;
    options.field_shapes = {{"tokens", {8}}, {"targets", {8}}};
    const Graph graph = read_graph(graph_tree(loaded), loaded.job.model.with, options);
    CHECK(graph.num_parameters() == model.parameters);
  }
  std::size_t folders = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(kPublished)) folders += entry.is_directory();
  CHECK(folders == kModels.size());
}

TEST_CASE("a multimodal config.json has the dtype and the positions of its text model") {
  const ModelFolder folder = read_model_folder(kPublished + "/gemma-3-27b", kOptions.configs_dir);
  CHECK(folder.dtype == DType::bf16);
  CHECK(folder.longest == 131072);
}

TEST_CASE(
    "models of 70 billion parameters fit on two nodes, where a pipeline that is cut by time has no room for them") {
  for (const char* folder : {"qwen2.5-72b", "llama-3.1-70b"}) {
    const CompiledJob compiled = planned(folder, 2);
    CHECK(compiled.fits);
    for (const MemoryReport& report : compiled.memory) CHECK(report.peak_bytes <= compiled.limit_bytes);
    CHECK(compiled.alternatives.front().text.find("cut for memory") != std::string::npos);
  }
}

TEST_CASE("a published model is planned for GPUs; one that is too large says how many nodes it needs") {
  CHECK(planned("qwen3-0.6b", 1).plan.mesh.world_size() == 8);
  std::string told;
  try {
    planned("llama-3.1-405b", 2);
  } catch (const JobError& error) {
    told = error.what();
  }
  CHECK_MESSAGE(told.find("at least 89 such ranks") != std::string::npos, told);
  CHECK_MESSAGE(told.find("cluster.nodes=") != std::string::npos, told);
}

TEST_CASE("tensor parallelism that would cut a head says what its degree has to divide") {
  std::string told;
  try {
    planned("gemma-3-1b", 1, {"strategy={tensor: {degree: 2}}"});
  } catch (const JobError& error) {
    told = error.what();
  }
  CHECK_MESSAGE(told.find("the heads of model.layers.0.self_attn.k_heads (1) cannot be split evenly over 2 ranks; "
                          "degrees that work: 1") != std::string::npos,
                told);
}
