// What a plan holds and sends is what the textbook says of its strategy: bytes of parameters, gradients and states by
// the table of the papers (ZeRO, section 5; FSDP, section 3), bytes sent per step by the formulas of rings, of
// Megatron-LM's layers and of pipelines, for every job of the table of mixed jobs. (That ranks take and send what their
// plans say is equivalence_test.cpp's.)
//
// Padding: a tensor begins at a multiple of 32 elements, a unit's slice is a multiple of 64: of a unit of k tensors
// over n ranks at most 32 k + 64 n elements are padding.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/job/resolve.h"
#include "engine/plan/traffic.h"
#include "tests/train/mixed_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

// ---- Of a plan ----

std::int64_t persistent_bytes(const Role& role, Category category) {
  std::int64_t bytes = 0;
  for (std::size_t id = 0; id < role.buffers.size(); ++id)
    if (role.buffers[id].program < 0 && role.buffers[id].category == category &&
        static_cast<BufferId>(id) != role.scalars && static_cast<BufferId>(id) != role.applied)
      bytes += role.buffers[id].bytes;
  return bytes;
}

// The most bytes of a category that are alive at once in the step.
std::int64_t most_alive(const Role& role, Category category) {
  const auto& step = role.program(ProgramKind::step)->instructions;
  std::vector<std::int64_t> change(step.size() + 1, 0);
  std::vector<std::size_t> first(role.buffers.size(), step.size()), last(role.buffers.size(), 0);
  for (std::size_t i = 0; i < step.size(); ++i)
    for_each_access(step[i].instruction, [&](Access, const Region& region) {
      const auto id = static_cast<std::size_t>(region.buffer);
      first[id] = std::min(first[id], i);
      last[id] = i;
    });
  for (std::size_t id = 0; id < role.buffers.size(); ++id)
    if (role.buffers[id].category == category && role.buffers[id].program >= 0 && first[id] < step.size()) {
      change[first[id]] += role.buffers[id].bytes;
      change[last[id] + 1] -= role.buffers[id].bytes;
    }
  std::int64_t now = 0, most = 0;
  for (std::int64_t one : change) most = std::max(most, now += one);
  return most;
}

enum class Which { all, trained };
bool takes(Which which, const Unit& unit) { return which == Which::all || unit.trained(); }

// Elements of the matrices that Muon puts together; `cut`: those of units that the tensor axis cuts.
std::int64_t muon_elements(const CompiledJob& job, const Role& role, bool cut) {
  std::int64_t sum = 0;
  for (const Unit& unit : role.units) {
    if (!unit.trained() || job.optimizers[static_cast<std::size_t>(unit.optimizer)].name != OptimizerName::muon)
      continue;
    const bool is_cut =
        std::ranges::any_of(unit.tensors, [](const UnitTensor& tensor) { return tensor.spec.is_cut(Axis::tensor); });
    sum += !cut || is_cut ? unit.elements : 0;
  }
  return sum;
}

std::int64_t elements(const Role& role, Which which = Which::all) {
  std::int64_t sum = 0;
  for (const Unit& unit : role.units) sum += takes(which, unit) ? unit.elements : 0;
  return sum;
}

std::int64_t working_bytes(const Role& role, Which which) {
  std::int64_t sum = 0;
  for (const Unit& unit : role.units) sum += takes(which, unit) ? unit.elements * size_of(unit.compute) : 0;
  return sum;
}

std::int64_t largest_unit(const Role& role, Which which = Which::all) {
  std::int64_t largest = 0;
  for (const Unit& unit : role.units) largest = std::max(largest, takes(which, unit) ? unit.elements : 0);
  return largest;
}

std::int64_t sent(const Plan& plan, std::size_t role, const std::string& axis, const std::string& collective) {
  for (const Traffic& one : traffic_of(plan, role))
    if (one.axis == axis && one.collective == collective) return one.bytes;
  return 0;
}

// ---- Formulas ----

std::int64_t half_ring(std::int64_t bytes, std::int64_t n) { return bytes * (n - 1) / n; }
std::int64_t ring(std::int64_t bytes, std::int64_t n) { return 2 * bytes * (n - 1) / n; }

struct Sizes {
  explicit Sizes(const LoadedJob& loaded, const CompiledJob& job)
      : pipeline(job.plan.mesh.size(Axis::pipeline)),
        replicate(job.plan.mesh.size(Axis::replicate)),
        shard(job.plan.mesh.size(Axis::shard)),
        tensor(job.plan.mesh.size(Axis::tensor)),
        micro_batches(job.batch.micro_batches),
        width(size_of(loaded.job.precision.compute)),
        data(resolve(loaded.job.strategy.data, pipeline > 1)) {}
  std::int64_t pipeline, replicate, shard, tensor, micro_batches, width;
  ResolvedData data;

  std::int64_t reductions() const { return data.reduce == Reduce::step ? 1 : micro_batches; }
};

void check_data_axes(const Sizes& n, const CompiledJob& job) {
  for (std::size_t stage = 0; stage < job.plan.roles.size(); ++stage) {
    CAPTURE(stage);
    const Role& role = job.plan.roles[stage];
    // Where parameters are whole on every rank, only what an update has changed is gathered.
    const std::int64_t gradients = 4 * elements(role, Which::trained),
                       parameters = working_bytes(role, n.data.shard_parameters ? Which::all : Which::trained);
    const bool alone =
        n.pipeline == 1 && n.shard == 1;  // count and loss, f64, are summed over the data axes and the pipeline
    CHECK(sent(job.plan, stage, "replicate", "all_reduce") ==
          ring(gradients / n.shard, n.replicate) + (alone ? 2 * ring(8, n.replicate) : 0));
    // Momenta are gathered in f32, and updates scattered.
    const std::int64_t muon = n.data.shard_states ? half_ring(4 * muon_elements(job, role, false), n.shard) : 0;
    CHECK(sent(job.plan, stage, "shard", "reduce_scatter") == n.reductions() * half_ring(gradients, n.shard) + muon);
    const std::int64_t gathered = sent(job.plan, stage, "shard", "all_gather") - muon,
                       once = half_ring(parameters, n.shard);
    if (!n.data.shard_parameters || n.data.keep == Keep::step) {
      CHECK(gathered == (n.data.shard_states ? once : 0));
    } else {
      // What a pass does not read (an embedding's rows, backward), or what is still there from the pass before, is not
      // gathered.
      CHECK(gathered <= (n.data.keep == Keep::pass ? 1 : 2) * n.micro_batches * once);
      CHECK(gathered >= once);
    }
  }
}

std::int64_t sum_over_stages(const CompiledJob& job, const std::string& axis, const std::string& collective) {
  std::int64_t sum = 0;
  for (std::size_t stage = 0; stage < job.plan.roles.size(); ++stage) sum += sent(job.plan, stage, axis, collective);
  return sum;
}

// Bytes of a micro-batch's activations between layers.
std::int64_t layer_bytes(const std::string& line, const Sizes& n, const CompiledJob& job) {
  if (has_word(line, "mlp")) return job.batch.micro * 32 * n.width;
  return job.batch.micro * 8 * (has_word(line, "gpt") ? 16 : 32) * n.width;
}

// Megatron-LM: two all-reduces in each of 8 layers and both passes, one of the embedding and one of the head; under
// sequence parallelism an all-gather and a reduce-scatter instead of each. The loss gathers 5 numbers a row. The
// backward pass ends at the first layer that is trained, and a frozen embedding asks for no gradient.
void check_tensor_axis(const std::string& line, const Sizes& n, const CompiledJob& job) {
  const std::int64_t layers = has_word(line, "part") ? 2 : 8, sums = (2 * 8 + 1) + (2 * layers + 1),
                     gathers = sums - (has_word(line, "norms") || has_word(line, "part") ? 1 : 0);
  const std::int64_t bytes = layer_bytes(line, n, job),
                     statistics = half_ring(job.batch.micro * 8 * 5 * 4 * n.tensor, n.tensor);
  std::int64_t reduced = 0;
  for (const Role& role : job.plan.roles)
    for (const Unit& unit : role.units)
      for (const UnitRun& run : runs_of(unit, job.plan.mesh))
        if (!run.partial.empty()) reduced += n.reductions() * ring(run.elements.size() * 4, n.tensor);
  if (n.pipeline == 1 && (n.shard == 1 || !n.data.shard_states)) reduced += ring(8, n.tensor);  // the norm
  std::int64_t muon = 0;
  for (const Role& role : job.plan.roles) muon += half_ring(4 * muon_elements(job, role, true) * n.tensor, n.tensor);
  if (has_word(line, "sp")) {
    CHECK(sum_over_stages(job, "tensor", "all_reduce") == reduced);
    CHECK(sum_over_stages(job, "tensor", "reduce_scatter") ==
          n.micro_batches * sums * half_ring(bytes, n.tensor) + muon);
    CHECK(sum_over_stages(job, "tensor", "all_gather") ==
          n.micro_batches * (gathers * half_ring(bytes, n.tensor) + statistics) + muon);
  } else {
    CHECK(sum_over_stages(job, "tensor", "all_reduce") == n.micro_batches * sums * ring(bytes, n.tensor) + reduced);
    CHECK(sum_over_stages(job, "tensor", "reduce_scatter") == muon);
    CHECK(sum_over_stages(job, "tensor", "all_gather") == n.micro_batches * statistics + muon);
  }
}

// Between layers one value crosses, each micro-batch once in both passes; zb_v turns around on the last stage.
void check_pipeline_axis(const std::string& line, const LoadedJob& loaded, const Sizes& n, const CompiledJob& job) {
  const std::int64_t chunks = n.pipeline * loaded.job.strategy.pipeline.virtual_stages;
  const std::int64_t crossings = chunks - 1 - (has_word(line, "zb_v") ? 1 : 0),
                     cut = has_word(line, "sp") ? n.tensor : 1;
  CHECK(sum_over_stages(job, "pipeline", "send") == 2 * crossings * n.micro_batches * layer_bytes(line, n, job) / cut);
}

// Of a multilayer perceptron every other layer's result is cut by columns.
bool crosses_cut(const std::string& line, const Sizes& n) { return has_word(line, "mlp") && n.tensor > 1; }

bool recomputes(const std::string& line) {
  return has_word(line, "full") || has_word(line, "selective") || has_word(line, "every_2");
}

}  // namespace

TEST_CASE("every job sends what the textbook says") {
  const MixedJobs jobs;
  int tensor = 0, pipeline = 0;
  std::vector<std::string> lines = mixed_jobs();
  std::ranges::copy_if(frozen_jobs(), std::back_inserter(lines),
                       [](const std::string& line) { return !has_word(line, "c2"); });
  std::ranges::copy_if(muon_jobs(), std::back_inserter(lines),
                       [](const std::string& line) { return !has_word(line, "c2"); });
  for (const std::string& line : lines) {
    CAPTURE(line);
    const LoadedJob loaded = jobs.load(line, "run");
    const CompiledJob job = compiled(loaded);
    const Sizes n(loaded, job);
    check_data_axes(n, job);
    if (has_word(line, "lora")) continue;  // an adapter has sums of its own over the tensor axis
    if (n.tensor > 1 && !has_word(line, "mlp") && !recomputes(line) && ++tensor > 0) check_tensor_axis(line, n, job);
    if (n.pipeline > 1 && loaded.job.strategy.pipeline.split_policy != SplitPolicy::automatic &&
        !crosses_cut(line, n) && ++pipeline > 0)
      check_pipeline_axis(line, loaded, n, job);
  }
  CHECK(tensor >= 10);
  CHECK(pipeline >= 20);
}

// Of every layer and micro-batch the keys and values of all positions, forward; as many bytes of their gradients are
// reduced and scattered.
TEST_CASE("context parallelism gathers keys and values and scatters their gradients, no more") {
  const MixedJobs jobs;
  for (const auto& [line, ranks, kv] : {std::tuple("llama r4 ddp c4 m2 clip", 4, 16),
                                        {"packed r2 ddp c2 m4 drop ignore", 2, 16},
                                        {"gpt r2 ddp c2 m2 clip", 2, 16}}) {
    CAPTURE(line);
    const CompiledJob job = compiled(jobs.load(line, "run"));
    const std::int64_t layers = 8, bytes = job.batch.micro * 8 * kv * 4, passes = job.batch.micro_batches * layers * 2;
    CHECK(sent(job.plan, 0, "context", "all_gather") == passes * half_ring(bytes, ranks));
    CHECK(sent(job.plan, 0, "context", "reduce_scatter") == passes * half_ring(bytes, ranks));
    CHECK(sent(job.plan, 0, "context", "all_reduce") ==
          ring(4 * elements(job.plan.roles[0]), ranks) + 2 * ring(8, ranks));
  }
}

// Of every layer and micro-batch a rank sends its keys and values n − 1 times in each pass; their gradients, in f32, n
// times, of which the last one finds them complete.
TEST_CASE("a ring sends keys, values and their gradients to the next rank, no more") {
  const MixedJobs jobs;
  for (const auto& [line, ranks, kv, width] : {std::tuple("llama r4 ddp c4 ring m2 clip", 4, 16, 4),
                                               {"llama r4 ddp c4 ring m2 clip bf16", 4, 16, 2},
                                               {"packed r2 ddp c2 ring m4 drop ignore", 2, 16, 4},
                                               {"gpt r2 ddp c2 ring m2 clip", 2, 16, 4}}) {
    CAPTURE(line);
    const CompiledJob job = compiled(jobs.load(line, "run"));
    const std::int64_t part = job.batch.micro * 8 * kv / ranks, layers = job.batch.micro_batches * 8;
    CHECK(sent(job.plan, 0, "context", "shift") == layers * 2 * part * (2 * (ranks - 1) * width + ranks * 4));
    CHECK(sent(job.plan, 0, "context", "all_gather") == 0);
    CHECK(sent(job.plan, 0, "context", "all_reduce") ==
          ring(4 * elements(job.plan.roles[0]), ranks) + 2 * ring(8, ranks));
  }
}

// The plan's own peak: of two jobs that differ in the kind alone, the ring holds no keys and values of all positions.
TEST_CASE("a rank of a ring holds two parts of keys and values on their way") {
  const MixedJobs jobs;
  for (const auto& [line, ranks] : {std::pair("llama r4 ddp c4 ring m2", 4), {"gpt r2 ddp c2 ring m2", 2}}) {
    CAPTURE(line);
    const CompiledJob job = compiled(jobs.load(line, "run"));
    const Role& role = job.plan.roles[0];
    const std::vector<Issued>& step = role.programs[0].instructions;
    // From the shift that brings a part to its last reader.
    std::map<BufferId, std::pair<std::size_t, std::size_t>> lives;
    for (std::size_t i = 0; i < step.size(); ++i) {
      if (const auto* one = std::get_if<Collective>(&step[i].instruction);
          one != nullptr && one->kind == CollectiveKind::shift && step[i].why.phase == Provenance::Phase::forward)
        lives[one->output.region.buffer] = {i, i};
      for_each_access(step[i].instruction, [&](Access, const Region& region) {
        if (const auto at = lives.find(region.buffer); at != lives.end()) at->second.second = i;
      });
    }
    CHECK(lives.size() == static_cast<std::size_t>(job.batch.micro_batches * 8 * 2 * (ranks - 1)));
    std::size_t most = 0;
    for (std::size_t i = 0; i < step.size(); ++i) {
      std::size_t alive = 0;
      for (const auto& [buffer, life] : lives) alive += life.first <= i && i <= life.second ? 1 : 0;
      most = std::max(most, alive);
    }
    CHECK(most == static_cast<std::size_t>(ranks > 2 ? 4 : 2));  // k and v, at hand and arriving
  }
}

TEST_CASE("without prefetch a unit of FULL_SHARD is gathered for every pass that reads it") {
  const MixedJobs jobs;
  const std::string line = "llama r4 full_shard m2 prefetch:0 wrap:transformer bf16";
  const LoadedJob loaded = jobs.load(line, "run");
  const CompiledJob job = compiled(loaded);
  const Role& role = job.plan.roles[0];
  // The embedding, the first unit, is read forward alone.
  CHECK(sent(job.plan, 0, "shard", "all_gather") ==
        half_ring(2 * 2 * (2 * elements(role) - role.units[0].elements), 4));
}

// P over all N ranks and then, each time that a unit is read again, among the S ranks that share a copy; gradients over
// all of them. Of what is kept a rank has P/S.
TEST_CASE("with a secondary copy units cross all ranks once a step, and then those that share it") {
  const MixedJobs jobs;
  for (const auto& [sharing, micro_batches] : {std::pair(2, 1), {4, 1}, {2, 2}, {4, 2}})
    for (const std::int64_t width : {4, 2}) {
      const std::string line = "llama r8 full_shard secondary" + std::to_string(sharing) + " m" +
                               std::to_string(micro_batches) + " prefetch:0 wrap:transformer" +
                               (width == 2 ? " bf16" : "");
      CAPTURE(line);
      const CompiledJob job = compiled(jobs.load(line, "run"));
      const Role& role = job.plan.roles[0];
      const std::int64_t all = width * elements(role), read_once = width * role.units[0].elements;
      CHECK(sent(job.plan, 0, "replicate+shard", "all_gather") == half_ring(all, 8));
      // The embedding, the first unit, is read forward alone.
      CHECK(sent(job.plan, 0, "shard", "all_gather") ==
            half_ring((2 * micro_batches - 1) * all - micro_batches * read_once, sharing));
      CHECK(sent(job.plan, 0, "replicate+shard", "reduce_scatter") == micro_batches * half_ring(4 * elements(role), 8));
      CHECK(sent(job.plan, 0, "replicate", "all_reduce") == 0);
      std::int64_t kept = 0;
      for (const Buffer& buffer : role.buffers)
        if (role.name(buffer.name).ends_with(".secondary")) {
          CHECK(role.programs[static_cast<std::size_t>(buffer.program)].kind == ProgramKind::step);
          kept += buffer.bytes;
        }
      CHECK(kept == (all - (micro_batches == 1 ? read_once : 0)) / sharing);
      const std::int64_t copies = most_alive(role, Category::parameters);
      CHECK(copies >= kept);
      CHECK(copies <= kept + 3 * largest_unit(role) * width);
      CHECK(persistent_bytes(role, Category::optimizer) == 2 * 4 * elements(role) / 8);
    }
}

// Megatron-LM, section 4.2.2: what a layer's products read is gathered once more in the backward pass, and what is kept
// of it is 1/t.
TEST_CASE("sequence parallelism that keeps shards gathers the inputs of products a second time") {
  const MixedJobs jobs;
  for (const auto& [line, tensor] : {std::pair<std::string, std::int64_t>{"llama r2 ddp t2 sp m2", 2},
                                     {"llama r4 ddp t4 sp m1", 4},
                                     {"gpt r4 ddp t2 sp m2 bf16", 2}}) {
    CAPTURE(line);
    const LoadedJob loaded = jobs.load(line, "run");
    const CompiledJob whole = compiled(loaded), shards = compiled(jobs.load(line + " shards", "run"));
    const Sizes n(loaded, whole);
    const std::int64_t gathered = layer_bytes(line, n, whole);
    CHECK(sent(shards.plan, 0, "tensor", "all_gather") - sent(whole.plan, 0, "tensor", "all_gather") ==
          n.micro_batches * (2 * 8 + 1) * half_ring(gathered, tensor));
    CHECK(sent(shards.plan, 0, "tensor", "reduce_scatter") == sent(whole.plan, 0, "tensor", "reduce_scatter"));
    // Two inputs of each of 8 layers and that of the head, of which one is there at a time.
    const std::int64_t saved = most_alive(whole.plan.roles[0], Category::activations) -
                               most_alive(shards.plan.roles[0], Category::activations);
    CHECK(saved > (2 * 8 - 2) * gathered * (tensor - 1) / tensor);
    CHECK(shards.peak_bytes() < whole.peak_bytes());
  }
}

TEST_CASE("parameters, gradients and states divide as the papers say, within padding") {
  const MixedJobs jobs;
  struct Kind {
    const char* words;
    bool parameters, gradients, states;  // over the shard axis
    std::int64_t replicas = 1;
  };
  const std::vector<Kind> kinds{{"ddp", false, false, false},
                                {"no_shard", false, false, false},
                                {"zero1", false, false, true},
                                {"zero2", false, true, true},
                                {"zero3", true, true, true},
                                {"full_shard", true, true, true},
                                {"shard_grad_op", true, true, true},
                                {"hybrid2", true, true, true, 2},
                                {"full_shard reduce:step", true, false, true}};
  for (const Kind& kind : kinds)
    for (std::int64_t ranks : {2, 4, 8})
      for (std::int64_t width : {4, 2})
        for (const char* frozen : {"", " lora", " part"}) {
          const std::string line = "llama r" + std::to_string(ranks) + " " + kind.words + " m2 wrap:transformer" +
                                   frozen + (width == 2 ? " bf16" : "");
          CAPTURE(line);
          const CompiledJob job = compiled(jobs.load(line, "run"));
          const Role& role = job.plan.roles[0];
          const std::int64_t n = ranks / kind.replicas;
          std::int64_t padding = 0;
          for (const Unit& unit : role.units) padding += 32 * static_cast<std::int64_t>(unit.tensors.size()) + 64 * n;
          const std::int64_t trained = elements(role, Which::trained), others = elements(role) - trained;
          CHECK((std::string(frozen).empty() ? others == 0 : others > trained));
          CHECK(trained >= job.num_trained);
          CHECK(others >= job.num_parameters - job.num_trained);
          CHECK(elements(role) <= job.num_parameters + padding);

          // Of a frozen parameter there is what is computed with, and nothing else.
          const std::int64_t owned = kind.states ? trained / n : trained;
          const std::int64_t master = owned * 4, working = (kind.parameters ? trained / n : trained) * width,
                             kept_others = (kind.parameters ? others / n : others) * width;
          // In f32 the master is the working copy, or its slice in it.
          CHECK(persistent_bytes(role, Category::parameters) ==
                (width == 4 ? std::max(master, working) : master + working) + kept_others);
          CHECK(persistent_bytes(role, Category::optimizer) == 2 * 4 * owned);
          // Beside its slices of all gradients a rank has units whose gradients are just made, reduced or added.
          const std::int64_t kept = 4 * (kind.gradients ? trained / n : trained),
                             gradients = most_alive(role, Category::gradients);
          CHECK(gradients >= kept);
          CHECK(gradients <= kept + (kind.gradients ? 3 * 4 * largest_unit(role, Which::trained) : 0));
          // Of gathered copies it has the unit in use and the one ahead (zero3, full_shard), or the model
          // (shard_grad_op).
          const std::int64_t copies = most_alive(role, Category::parameters);
          if (!kind.parameters)
            CHECK(copies == 0);
          else if (std::string(kind.words) == "shard_grad_op")
            CHECK(copies <= elements(role) * width);
          else
            CHECK(copies <= 3 * largest_unit(role) * width);
        }
}
