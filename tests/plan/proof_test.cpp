// The proof on plans of every strategy, and that it bites: whatever changes what is communicated is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/core/matrix_list.h"
#include "engine/core/random.h"
#include "engine/ops/op_def.h"
#include "engine/plan/memory.h"
#include "engine/plan/verify/verify.h"
#include "tests/plan/full_play.h"
#include "tests/temporary.h"

using namespace trainer;

namespace {

// Kernels that pack the weights of bf16 products and want some scratch memory.
class SomeTarget final : public Target {
 public:
  explicit SomeTarget(int streams) : streams_(streams) {}
  int communication_streams() const override { return streams_; }
  Layout preferred_layout(const Signature& signature, int index) const override {
    if (index != 1 || signature.operands[1].dtype != DType::bf16) return Layout::row_major;
    return signature.op == Op::linear              ? Layout::packed
           : signature.op == Op::linear_grad_input ? Layout::packed_transposed
                                                   : Layout::row_major;
  }
  std::int64_t bytes(const TensorDesc& tensor) const override { return (tensor.bytes() + 63) / 64 * 64; }
  std::int64_t workspace_bytes(const Signature& signature) const override {
    return signature.op == Op::linear_grad_weight ? 64 : 0;
  }

 private:
  int streams_;
};

constexpr std::string_view kGpt2 =
    "model: {graph: models/gpt2.yaml, with: {layers: 2, heads: 2, dim: 16, vocab: 32, context: 8, dropout: 0.0}}\n";
constexpr std::string_view kLlama =
    "model: {graph: models/llama.yaml, with: {layers: 2, heads: 4, kv_heads: 2, dim: 16, hidden: 24, vocab: 32, "
    "rope_theta: 100}}\n";
constexpr std::string_view kMlp =
    "model: {graph: models/mlp.yaml, with: {features: 6, hidden: 32, layers: 3, classes: 4, dropout: 0.0}}\n";
constexpr std::string_view kTokens =
    "data: {format: tokens, token_type: u16, train: tokens.bin, seq_len: 8, shuffle: true}\n";
constexpr std::string_view kTable =
    "data: {format: table, train: table.csv, target: -1, normalize: standard, shuffle: true}\n";
constexpr std::string_view kTraining =
    "train: {steps: 6, batch: {global: 8, micro: auto}, optimizer: {name: adamw, lr: 1.0e-2}, clip_norm: 1.0}\n"
    "precision: {params: f32, compute: f32, reduce: f32, loss_scale: none}\n";

class Jobs {
 public:
  Jobs() {
    std::string tokens, table;
    for (int i = 0; i < 8 * 40 + 1; ++i) tokens += {static_cast<char>(i % 32), '\0'};
    for (int i = 0; i < 40; ++i) table += "1,2,3,4,5,6," + std::to_string(i % 4) + "\n";
    folder_.write("tokens.bin", tokens);
    folder_.write("table.csv", table);
    for (const auto& [name, model, data] :
         {std::tuple("gpt2", kGpt2, kTokens), std::tuple("llama", kLlama, kTokens), std::tuple("mlp", kMlp, kTable)})
      folder_.write(std::string(name) + ".yaml", std::string(model) + std::string(data) + std::string(kTraining));
  }
  /// For a device that communicates on so many streams.
  Plan plan(const std::string& model, const std::vector<std::string>& overrides, int streams = 1) const {
    const LoadedJob loaded = load_job(folder_.path(model + ".yaml"), overrides,
                                      {.configs_dir = std::string(TRAINER_SOURCE_DIR) + "/configs"});
    const SomeTarget target(streams);
    return compile(loaded, {.target = &target, .memory_bytes = std::int64_t{64} << 30, .threads = 1}, Purpose::train)
        .plan;
  }

 private:
  tests::TemporaryFolder folder_;
};

std::string ranks(int number) { return "cluster.devices_per_node=" + std::to_string(number); }

constexpr const char* kBase = "model.init_from=base.safetensors";

struct Case {
  std::string model;
  std::vector<std::string> overrides;
};

const std::vector<Case> kCases{
    {"gpt2", {ranks(2), "strategy=ddp"}},
    {"gpt2", {ranks(4), "strategy=zero1"}},
    {"gpt2", {ranks(4), "strategy=zero1", "precision.compute=bf16"}},
    {"gpt2", {ranks(4), "strategy=zero2", "train.batch.micro=1"}},
    {"gpt2", {ranks(4), "strategy=zero3"}},
    {"gpt2", {ranks(4), "strategy=zero3", "precision.compute=bf16"}},
    {"gpt2", {ranks(4), "strategy=fsdp"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}}"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, sharding: shard_grad_op}}"}},
    {"gpt2", {ranks(2), "strategy=tensor"}},
    {"llama", {ranks(2), "strategy=tensor"}},
    {"llama", {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true}}"}},
    {"gpt2", {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true}}", "model.with.dropout=0.1"}},
    {"gpt2", {ranks(2), "strategy=pipeline"}},
    {"gpt2", {ranks(2), "strategy={pipeline: {degree: 2, schedule: gpipe}}"}},
    {"gpt2", {ranks(2), "strategy={pipeline: {degree: 2, schedule: zb_v, virtual_stages: 2}}", "model.with.layers=4"}},
    {"gpt2", {ranks(2), "strategy={pipeline: {degree: 2, schedule: zb_h1}}"}},
    {"gpt2",
     {ranks(2), "strategy={pipeline: {degree: 2, schedule: interleaved, virtual_stages: 2}}", "model.with.layers=4"}},
    {"gpt2",
     {ranks(8), "strategy={data: {kind: zero1}, tensor: {degree: 2}, pipeline: {degree: 2}}", "model.with.dropout=0.1",
      "train.clip_norm=1.0", "model.with.vocab=33", "train.batch.micro=2"}},
    {"gpt2",
     {ranks(8), "strategy={data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}, pipeline: {degree: 2}}",
      "activation_checkpointing={mode: full}"}},
    {"mlp", {ranks(4), "strategy={data: {kind: zero3}, pipeline: {degree: 2}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: local_sgd, every: 2}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: ddp, compression: bf16}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: ddp, compression: int8}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: ddp, compression: {top_k: 0.01}}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: zero1, compression: bf16}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: zero1, compression: int8}}"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: ddp, compression: int8}, tensor: {degree: 2}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: local_sgd, every: 2, delayed: true}}"}},
    {"gpt2",
     {ranks(2), "strategy={data: {kind: local_sgd, every: 2, outer: {lr: 0.7, momentum: 0.9}}}",
      "precision.compute=bf16"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: local_sgd, every: 2}, tensor: {degree: 2}}"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: local_sgd, every: 2}, pipeline: {degree: 2}}"}},
    {"gpt2", {ranks(4), "strategy={pipeline: {degree: 4}}", "model.with.layers=4", "train.batch.micro=1"}},
    {"gpt2", {ranks(4), "strategy={pipeline: {degree: 2, schedule: zb_h2}, tensor: {degree: 2}}"}},
    {"llama",
     {ranks(8),
      "strategy={pipeline: {degree: 2, schedule: looped_bfs, virtual_stages: 2}, tensor: {degree: 2}, data: {kind: "
      "zero2}}",
      "precision.compute=bf16", "model.with.layers=4"}},
    {"gpt2",
     {ranks(8), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}, tensor: {degree: 2}}",
      "precision.compute=bf16", "model.with.vocab=33"}},
    {"gpt2",
     {ranks(2), "strategy={data: {kind: ddp, bucket_mb: 0.01}}", "activation_checkpointing={mode: selective}",
      "model.with.dropout=0.1"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, sharding: no_shard}, tensor: {degree: 2}}"}},
    // Frozen parameters, and adapters beside them.
    {"gpt2", {ranks(2), "strategy=ddp", "adapter={rank: 3}", kBase}},
    {"llama",
     {ranks(4), "strategy=zero2", "adapter={rank: 3}", kBase, "trainable=[\"*norm*\"]", "precision.compute=bf16"}},
    {"gpt2",
     {ranks(4), "strategy={data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}}", "adapter={rank: 3}",
      kBase}},
    {"llama",
     {ranks(8), "strategy={data: {kind: zero1}, tensor: {degree: 2}, pipeline: {degree: 2}}", "adapter={rank: 3}",
      kBase, "train.batch.micro=1"}},
    {"gpt2",
     {ranks(4), "strategy={data: {kind: zero3}, context: {degree: 2}}", "trainable=[\"*mlp*\"]",
      "precision.compute=bf16"}},
    {"gpt2",
     {ranks(4), "strategy={data: {kind: ddp}, pipeline: {degree: 2}}", "trainable=[\"h.1.*\"]", "train.batch.micro=1"}},
    {"llama", {ranks(2), "strategy={context: {degree: 2}}"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: zero1}, context: {degree: 2}}", "precision.compute=bf16"}},
    {"llama",
     {ranks(8), "strategy={data: {kind: fsdp}, context: {degree: 2}, tensor: {degree: 2, sequence_parallel: true}}"}},
};

constexpr const char* kMuon = "train.optimizer={name: muon, others: {name: adamw, lr: 1.0e-2}}";
const std::vector<Case> kMuonCases{
    {"gpt2", {ranks(2), "strategy=ddp", kMuon}},
    {"gpt2", {ranks(4), "strategy=zero1", kMuon}},
    {"llama", {ranks(4), "strategy=zero3", kMuon, "precision.compute=bf16"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}}", kMuon}},
    {"llama", {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true}}", kMuon}},
    {"gpt2",
     {ranks(8), "strategy={data: {kind: zero2}, tensor: {degree: 2}, pipeline: {degree: 2}}", kMuon,
      "train.batch.micro=2"}},
    {"llama",
     {ranks(8), "strategy={data: {kind: fsdp}, context: {degree: 2}, tensor: {degree: 2, sequence_parallel: true}}",
      kMuon}},
    {"gpt2",
     {ranks(4), "strategy={data: {kind: zero1}, tensor: {degree: 2}}",
      "train.groups=[{match: [\"h.0.*\"], optimizer: {name: muon}}, {match: [\"*.bias\"], optimizer: {name: adamw, lr: "
      "2.0e-3}}]"}},
};

// All of them.
std::vector<Case> cases() {
  std::vector<Case> all = kCases;
  all.insert(all.end(), kMuonCases.begin(), kMuonCases.end());
  return all;
}

std::string text_of(const Case& one) {
  std::string text = one.model;
  for (const std::string& word : one.overrides) text += " " + word;
  return text;
}

}  // namespace

TEST_CASE("plans of every strategy hold, and so do their texts") {
  const Jobs jobs;
  for (const Case& one : cases())
    for (const auto& [evaluation, streams] :
         {std::pair("data.val=null", 1), std::pair("data.val={fraction: 0.2}", 1),
          std::pair("data.val={fraction: 0.2}", 2), std::pair("data.val={fraction: 0.2}", 3)}) {
      CAPTURE(text_of(one));
      CAPTURE(streams);
      std::vector<std::string> overrides = one.overrides;
      overrides.emplace_back(evaluation);
      const Plan plan = jobs.plan(one.model, overrides, streams);  // compile verifies
      const std::string text = print(plan);
      const Plan again = parse_plan(text);
      CHECK(print(again) == text);
      CHECK(violations(again) == std::vector<std::string>{});
    }
}

TEST_CASE(
    "buffers and workspaces begin at multiples of 256 bytes, operands at multiples of 64, and the proof refuses "
    "others") {
  const Jobs jobs;
  for (const Case& one : kCases) {
    CAPTURE(text_of(one));
    for (const Role& role : jobs.plan(one.model, one.overrides).roles)
      for (const Buffer& buffer : role.buffers) CHECK((buffer.offset == -1 || buffer.offset % 256 == 0));
  }
  const auto shifted = [&](std::int64_t by) {
    Plan plan = jobs.plan("gpt2", {});
    Role& role = plan.roles[0];
    for (const Issued& issued : role.programs[0].instructions) {
      const auto* launch = std::get_if<Launch>(&issued.instruction);
      if (launch == nullptr || launch->workspace.region.bytes == 0) continue;
      role.buffers[static_cast<std::size_t>(launch->workspace.region.buffer)].offset =
          role.total_bytes + by;  // clear of all others
      break;
    }
    role.total_bytes += 512;
    return violations(plan);
  };
  const auto mention = [](const std::vector<std::string>& found, std::string_view what) {
    return std::any_of(found.begin(), found.end(),
                       [&](const std::string& line) { return line.find(what) != std::string::npos; });
  };
  CHECK(shifted(256) == std::vector<std::string>{});
  CHECK(mention(shifted(128), "has a workspace at an address that is no multiple of 256"));
  CHECK(mention(shifted(128), "uses a buffer whose offset is no multiple of 256"));

  Plan moved = jobs.plan("gpt2", {});
  for (Issued& issued : moved.roles[0].programs[0].instructions)
    if (auto* launch = std::get_if<Launch>(&issued.instruction);
        launch != nullptr && moved.roles[0].signatures[static_cast<std::size_t>(launch->signature)].op == Op::linear) {
      std::get<Read>(launch->operands[0]).region.offset += 4;
      break;
    }
  CHECK(mention(violations(moved), "gives operand 0 an address that is no multiple of 64"));
}

// ---- Several streams of communication
// ------------------------------------------------------------------------------------

namespace {

bool mentions(const std::vector<std::string>& found, std::string_view what) {
  return std::any_of(found.begin(), found.end(),
                     [&](const std::string& line) { return line.find(what) != std::string::npos; });
}

bool on_background(const Issued& issued) { return issued.stream == Stream::background; }

// Where what stands on Stream::communication on a device with one is on a device with so many.
Stream expected(const Instruction& instruction, int streams) {
  const auto* collective = std::get_if<Collective>(&instruction);
  if (collective == nullptr || collective->axes.has(Axis::pipeline)) return Stream::communication;
  const bool of_layers = collective->axes == Axes::of(Axis::tensor) || collective->axes == Axes::of(Axis::context);
  if (streams > 1 && !of_layers && !collective->axes.has(Axis::tensor)) return Stream::background;
  return streams > 2 && of_layers ? Stream::tensor : Stream::communication;
}

const Case kTensorAndFsdp{"llama",
                          {ranks(4), "strategy={data: {kind: fsdp, prefetch: 1}, tensor: {degree: 2}}",
                           "model.with.layers=4", "data.val=null"}};

}  // namespace

TEST_CASE(
    "what only the data axes do is in the background, then what layers ask for has its own stream, and all else is the "
    "same") {
  const Jobs jobs;
  for (std::size_t number = 0; number < 2 * kCases.size(); ++number) {
    const Case& one = kCases[number / 2];
    const int streams = 2 + static_cast<int>(number % 2);
    CAPTURE(text_of(one));
    CAPTURE(streams);
    const Plan plan = jobs.plan(one.model, one.overrides, streams), single = jobs.plan(one.model, one.overrides, 1);
    for (std::size_t stage = 0; stage < plan.roles.size(); ++stage) {
      CHECK(plan.roles[stage].buffers == single.roles[stage].buffers);  // memory does not know of it
      for (std::size_t index = 0; index < plan.roles[stage].programs.size(); ++index) {
        const std::vector<Issued>&program = plan.roles[stage].programs[index].instructions,
              &other = single.roles[stage].programs[index].instructions;
        REQUIRE(program.size() == other.size());
        for (std::size_t i = 0; i < program.size(); ++i) {
          CHECK(program[i].instruction == other[i].instruction);
          CHECK(program[i].stream ==
                (other[i].stream == Stream::communication ? expected(other[i].instruction, streams) : other[i].stream));
        }
      }
    }
  }
}

TEST_CASE("a sum over the tensor axis waits for no gather ahead of it") {
  const Jobs jobs;
  for (int streams : {2, 3}) {
    const Plan plan = jobs.plan(kTensorAndFsdp.model, kTensorAndFsdp.overrides, streams);
    const std::vector<Issued>& step = plan.roles[0].programs[0].instructions;
    int passed = 0;
    std::int32_t gather = -1;  // the last one issued
    for (std::size_t i = 0; i < step.size(); ++i) {
      const auto* collective = std::get_if<Collective>(&step[i].instruction);
      if (collective == nullptr) continue;
      if (collective->kind == CollectiveKind::all_gather && collective->axes.has(Axis::shard)) {
        gather = static_cast<std::int32_t>(i);
      } else if (collective->axes == Axes::of(Axis::tensor) && gather >= 0 &&
                 step[i].after[static_cast<std::size_t>(Stream::background)] < gather) {
        // Nor does the kernel that it waits for.
        const std::int32_t maker = step[i].after[static_cast<std::size_t>(Stream::compute)];
        REQUIRE(maker >= 0);
        passed +=
            step[static_cast<std::size_t>(maker)].after[static_cast<std::size_t>(Stream::background)] < gather ? 1 : 0;
      }
    }
    CHECK(passed >= 4 * 2);  // each layer's sums forward at least
  }
}

TEST_CASE("a layer's sums over the tensor axis wait for no message between stages that is issued before them") {
  const Jobs jobs;
  const Plan plan = jobs.plan("llama",
                              {ranks(4), "strategy={pipeline: {degree: 2}, tensor: {degree: 2}}", "model.with.layers=4",
                               "train.batch.micro=2", "data.val=null"},
                              3);
  for (const Role& role : plan.roles) {
    const std::vector<Issued>& step = role.programs[0].instructions;
    std::int32_t message = -1;
    int sums = 0, free = 0;
    for (std::size_t i = 0; i < step.size(); ++i) {
      if (std::holds_alternative<Exchange>(step[i].instruction)) message = static_cast<std::int32_t>(i);
      if (step[i].stream != Stream::tensor || message < 0) continue;
      ++sums;
      free += step[i].after[static_cast<std::size_t>(Stream::communication)] < message ? 1 : 0;
    }
    CHECK(sums > 0);
    CHECK(free == sums);  // it is the kernel before that waits, where it does
  }
}

TEST_CASE("what breaks the order of two streams is refused by name") {
  const Jobs jobs;
  const Plan right = jobs.plan(kTensorAndFsdp.model, kTensorAndFsdp.overrides, 2);
  const auto broken = [&](const Plan& from, const std::function<void(Plan&)>& how) {
    Plan plan = from;
    how(plan);
    for (Role& role : plan.roles) derive_order(role, plan.mesh);
    return violations(plan);
  };
  const auto first = [](Plan& plan, const std::function<bool(const Issued&)>& is) -> Issued& {
    std::vector<Issued>& step = plan.roles[0].programs[0].instructions;
    return *std::find_if(step.begin(), step.end(), is);
  };
  CHECK(violations(right).empty());
  CHECK(mentions(broken(right, [&](Plan& plan) { first(plan, on_background).stream = Stream::communication; }),
                 "is of a group that communicates on the communication stream too"));
  CHECK(mentions(broken(right, [&](Plan& plan) { first(plan, on_background).stream = Stream::copy; }),
                 "communicates off the communication stream"));
  const auto joins = [](const Issued& one) {
    const auto* collective = std::get_if<Collective>(&one.instruction);
    return collective != nullptr && collective->axes.has(Axis::pipeline);
  };
  CHECK(mentions(broken(right, [&](Plan& plan) { first(plan, joins).stream = Stream::background; }),
                 "joins stages on the background stream"));

  // Stages that wait for each other across the two streams.
  const Plan piped =
      jobs.plan("gpt2", {ranks(4), "strategy={data: {kind: fsdp}, pipeline: {degree: 2}}", "data.val=null"}, 2);
  CHECK(violations(piped).empty());
  CHECK(tests::play_all_ranks(piped).empty());
  const auto exchanges = [](const Issued& one) { return std::holds_alternative<Exchange>(one.instruction); };
  CHECK(mentions(broken(piped, [&](Plan& plan) { first(plan, exchanges).stream = Stream::background; }),
                 "joins stages on the background stream"));
  const auto crossed = [&](Plan& plan) {
    std::vector<Issued>& step = plan.roles[0].programs[0].instructions;
    const auto message = std::find_if(step.begin(), step.end(), exchanges),
               count = std::find_if(step.begin(), step.end(), joins);
    REQUIRE(count < message);
    std::swap(message->instruction, count->instruction);
  };
  Plan stuck = piped;
  crossed(stuck);
  CHECK(!tests::play_all_ranks(stuck).empty());
  CHECK(!broken(piped, crossed).empty());
}

// ---- Mutants
// ---------------------------------------------------------------------------------------------------------

namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t key) : key_(key) {}
  std::size_t below(std::size_t bound) {
    return static_cast<std::size_t>(random_below(key_, 0, next_++, static_cast<std::uint64_t>(bound)));
  }

 private:
  std::uint64_t key_, next_ = 0;
};

bool communicates(const Instruction& instruction) {
  return std::holds_alternative<Collective>(instruction) || std::holds_alternative<Exchange>(instruction);
}

std::vector<std::size_t> communications(const Program& program) {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    if (communicates(program.instructions[i].instruction)) all.push_back(i);
  return all;
}

// One way to spoil communication number `at` of a program; false where it does not apply.
struct Mutation {
  std::string name;
  std::function<bool(const Plan&, Program&, std::size_t at)> apply;
};

template <typename T, typename Change>
std::function<bool(const Plan&, Program&, std::size_t)> change(Change how) {
  return [how](const Plan& plan, Program& program, std::size_t at) {
    auto* one = std::get_if<T>(&program.instructions[at].instruction);
    if (one == nullptr) return false;
    const T before = *one;
    return how(plan, *one) && !(*one == before);
  };
}

// The ranks that take part, as the mesh has them.
std::vector<int> members(const Plan& plan, const Collective& collective) {
  return plan.mesh.group(0, collective.axes, collective.stages);
}

auto with_axes(std::uint8_t flip) {
  return change<Collective>([flip](const Plan& plan, Collective& one) {
    const std::vector<int> before = members(plan, one);
    one.axes.mask ^= flip;
    return members(plan, one) != before;  // else it is the same group
  });
}

auto with_kind(CollectiveKind kind) {
  return change<Collective>([kind](const Plan& plan, Collective& one) {
    const auto n = static_cast<std::int64_t>(members(plan, one).size());
    const auto larger = one.input.region.bytes >= one.output.region.bytes ? one.input.region : one.output.region;
    const auto smaller = one.input.region.bytes >= one.output.region.bytes ? one.output.region : one.input.region;
    one.kind = kind;
    Region slice = smaller;
    if (smaller == larger)
      slice = one.axes == Axes::of(Axis::shard) ? own_slice(larger, one.axes, static_cast<int>(n))
                                                : Region(larger.buffer, larger.offset, larger.bytes / n);
    if (kind == CollectiveKind::reduce_scatter)
      one.input = {larger}, one.output = {slice};
    else if (kind == CollectiveKind::all_gather)
      one.input = {slice}, one.output = {larger};
    else
      one.input = {larger}, one.output = {larger};
    return true;
  });
}

auto with_dtype(DType dtype) {
  return change<Collective>([dtype](const Plan&, Collective& one) {
    one.dtype = dtype;
    return one.input.region.bytes % size_of(dtype) == 0 && one.output.region.bytes % size_of(dtype) == 0;
  });
}

auto with_regions(const std::function<void(Region&, std::int64_t width)>& how, bool input, bool output) {
  return [=](const Plan&, Program& program, std::size_t at) {
    if (auto* one = std::get_if<Collective>(&program.instructions[at].instruction)) {
      if (input) how(one->input.region, size_of(one->dtype));
      if (output) how(one->output.region, size_of(one->dtype));
      return true;
    }
    auto& one = std::get<Exchange>(program.instructions[at].instruction);
    if (input)
      for (auto& send : one.sends) how(send.region.region, 4);
    if (output)
      for (auto& receive : one.receives) how(receive.region.region, 4);
    return (input && !one.sends.empty()) || (output && !one.receives.empty());
  };
}

// The first part alone: all parts of an exchange are not to be shifted alike.
auto with_carried(const std::function<void(Carried&)>& how) {
  return change<Exchange>([how](const Plan&, Exchange& one) {
    how(one.sends.empty() ? one.receives.front().carried : one.sends.front().carried);
    return true;
  });
}

std::vector<Mutation> mutations() {
  const auto bit = [](Axis axis) { return Axes::of(axis).mask; };
  std::vector<Mutation> all{
      {"drop",
       [](const Plan&, Program& program, std::size_t at) {
         return program.instructions.erase(program.instructions.begin() + static_cast<std::ptrdiff_t>(at)), true;
       }},
      {"duplicate",
       [](const Plan&, Program& program, std::size_t at) {
         const Issued copy = program.instructions[at];
         return program.instructions.insert(program.instructions.begin() + static_cast<std::ptrdiff_t>(at), copy), true;
       }},
      {"swap",
       [](const Plan&, Program& program, std::size_t at) {
         const std::vector<std::size_t> order = communications(program);
         const auto next = std::upper_bound(order.begin(), order.end(), at);
         if (next == order.end() || program.instructions[at].instruction == program.instructions[*next].instruction)
           return false;
         std::swap(program.instructions[at], program.instructions[*next]);
         return true;
       }},
      {"fewer bytes", with_regions([](Region& region, std::int64_t width) { region.bytes -= width; }, true, true)},
      {"half the bytes", with_regions([](Region& region, std::int64_t) { region.bytes /= 2; }, true, true)},
      {"more bytes", with_regions([](Region& region, std::int64_t width) { region.bytes += width; }, true, true)},
      {"other input", with_regions([](Region& region, std::int64_t width) { region.offset += width; }, true, false)},
      {"other output", with_regions([](Region& region, std::int64_t width) { region.offset += width; }, false, true)},
      {"shifted",
       with_regions([](Region& region, std::int64_t width) { region.offset += width, region.bytes -= width; }, true,
                    true)},
      {"other slice",
       [](const Plan& plan, Program& program, std::size_t at) {
         const auto other = with_regions(
             [](Region& region, std::int64_t) {
               region.step = region.step == 0 ? 64 : 0, region.over = region.step == 0 ? Axes{} : kSliceAxes;
             },
             true, true);
         return plan.mesh.size(Axis::shard) > 1 && other(plan, program, at);
       }},
      {"peer", change<Exchange>([](const Plan&, Exchange& one) {
         for (auto& send : one.sends) send.peer = -send.peer;
         for (auto& receive : one.receives) receive.peer = -receive.peer;
         return true;
       })},
      {"axis of peer", change<Exchange>([](const Plan&, Exchange& one) {
         for (auto& send : one.sends) send.axis = Axis::tensor;
         for (auto& receive : one.receives) receive.axis = Axis::tensor;
         return true;
       })},
      {"send for receive", change<Exchange>([](const Plan&, Exchange& one) {
         const Exchange before = one;
         one.sends.clear(), one.receives.clear();
         for (const auto& send : before.sends)
           one.receives.push_back({send.axis, send.peer, {send.region.region}, send.carried});
         for (const auto& receive : before.receives)
           one.sends.push_back({receive.axis, receive.peer, {receive.region.region}, receive.carried});
         return true;
       })},
      {"one part less", change<Exchange>([](const Plan&, Exchange& one) {
         if (!one.sends.empty())
           one.sends.pop_back();
         else
           one.receives.pop_back();
         return true;
       })},
      {"carried micro-batch", with_carried([](Carried& carried) { ++carried.micro_batch; })},
      {"carried boundary", with_carried([](Carried& carried) { ++carried.boundary; })},
      {"carried direction", with_carried([](Carried& carried) { carried.backward = !carried.backward; })},
      {"carried value", with_carried([](Carried& carried) { ++carried.value; })},
      {"stages", change<Collective>([](const Plan& plan, Collective& one) {
         if (!one.axes.has(Axis::pipeline) || plan.roles.size() < 2) return false;
         if (one.stages.empty())
           for (std::size_t stage = 0; stage < plan.roles.size(); ++stage)
             one.stages.push_back(static_cast<std::int32_t>(stage));
         one.stages.pop_back();
         return true;
       })},
  };
  all.push_back({"stream", [](const Plan&, Program& program, std::size_t at) {
                   Stream& stream = program.instructions[at].stream;
                   stream = stream == Stream::background      ? Stream::communication
                            : stream == Stream::tensor        ? Stream::background
                            : stream == Stream::communication ? Stream::tensor
                                                              : stream;
                   return true;
                 }});
  for (Axis axis : kAxes) all.push_back({"axes", with_axes(bit(axis))});
  all.push_back({"axes", with_axes(bit(Axis::shard) | bit(Axis::tensor))});
  all.push_back({"axes", with_axes(bit(Axis::shard) | bit(Axis::replicate))});
  for (CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter, CollectiveKind::all_gather,
                              CollectiveKind::all_to_all, CollectiveKind::broadcast})
    all.push_back({"kind", with_kind(kind)});
  for (DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i32}) all.push_back({"dtype", with_dtype(dtype)});
  return all;
}

// Whether the two communications that a swap exchanged touch each other's bytes: if not, and all ranks still meet,
// nothing has changed.
bool independent(const Role& role, const Instruction& a, const Instruction& b) {
  bool apart = true;
  for_each_access(a, [&](Access first, const Region& one) {
    for_each_access(b, [&](Access second, const Region& other) {
      if (first == Access::read && second == Access::read) return;
      const auto begin = [&](const Region& region) {
        return role.buffer(region.buffer).offset + (region.step == 0 ? region.offset : 0);
      };
      const auto bytes = [&](const Region& region) {
        return region.step == 0 ? region.bytes : role.buffer(region.buffer).bytes;
      };  // slices of all ranks
      if (begin(one) < begin(other) + bytes(other) && begin(other) < begin(one) + bytes(one)) apart = false;
    });
  });
  return apart;
}

// Whether communication `at` may be on either stream: it joins no stages, and is all that its group does.
bool may_move(const Program& program, std::size_t at) {
  const auto* mine = std::get_if<Collective>(&program.instructions[at].instruction);
  if (mine == nullptr || mine->axes.has(Axis::pipeline)) return false;
  return std::count_if(program.instructions.begin(), program.instructions.end(), [&](const Issued& issued) {
           const auto* other = std::get_if<Collective>(&issued.instruction);
           return other != nullptr && other->axes == mine->axes;
         }) == 1;
}

// Whether a sum of gradients takes in, or leaves out, nothing but the zeros between and behind the tensors of its unit.
bool only_padding(const Role& role, const Instruction& before, const Instruction& after) {
  const auto *was = std::get_if<Collective>(&before), *is = std::get_if<Collective>(&after);
  if (was == nullptr || is == nullptr || was->kind != CollectiveKind::all_reduce ||
      is->kind != CollectiveKind::all_reduce)
    return false;
  const Region &a = was->input.region, &b = is->input.region;
  const std::string& name = role.name(was->name);
  for (const Unit& unit : role.units) {
    if ((name != unit.name && name != unit.name + ".partial") ||
        role.buffer(a.buffer).bytes != unit.elements * size_of(was->dtype))
      continue;
    const auto covers = [&](const Region& region, std::int64_t element) {
      return region.offset <= element * size_of(was->dtype) &&
             (element + 1) * size_of(was->dtype) <= region.offset + region.bytes;
    };
    for (const UnitTensor& tensor : unit.tensors)
      for (std::int64_t element = tensor.offset; element < tensor.offset + tensor.elements; ++element)
        if (covers(a, element) != covers(b, element)) return false;
    return true;
  }
  return false;
}

struct Tally {
  int refused = 0, equivalent = 0, accepted = 0;
};

}  // namespace

TEST_CASE("whatever changes what is communicated is refused, on one role or on all") {
  const Jobs jobs;
  const std::vector<Mutation> all = mutations();
  std::map<std::string, Tally> tallies;
  Dice dice(11);
  int stuck = 0;
  constexpr int kEach = 100;
  const std::vector<Case> from = cases();
  for (std::size_t number = 0; number < 2 * from.size(); ++number) {  // each on one stream and on several
    const Case& one = from[number / 2];
    std::vector<std::string> overrides = one.overrides;
    overrides.emplace_back("data.val={fraction: 0.2}");
    Plan plan = jobs.plan(one.model, overrides, number % 2 == 0 ? 1 : 2 + static_cast<int>(number / 2 % 2));
    const Plan right = plan;
    REQUIRE(tests::play_all_ranks(plan).empty());
    for (int mutant = 0; mutant < kEach; ++mutant) {
      const std::size_t stage = dice.below(plan.roles.size()), any = dice.below(plan.roles[stage].programs.size());
      const Program& program = right.roles[stage].programs[dice.below(3) == 0 ? any : 0];
      const auto index = static_cast<std::size_t>(&program - right.roles[stage].programs.data());
      const std::vector<std::size_t> order = communications(program);
      if (order.empty()) continue;
      const std::size_t turn = dice.below(order.size());
      const Mutation& mutation = all[dice.below(all.size())];
      const bool everywhere = plan.roles.size() > 1 && dice.below(2) == 0;
      bool changed = false, apart = true;
      for (std::size_t other = 0; other < plan.roles.size(); ++other) {
        if (!everywhere && other != stage) continue;
        Program& of = plan.roles[other].programs[index];
        const std::vector<std::size_t> their = communications(of);
        if (turn >= their.size()) continue;
        if (mutation.name == "swap" && turn + 1 < their.size())
          apart = apart && independent(plan.roles[other], of.instructions[their[turn]].instruction,
                                       of.instructions[their[turn + 1]].instruction);
        if (!mutation.apply(plan, of, their[turn])) continue;
        changed = true;
        // A number that both ends of a message change alike is still one of its own.
        if (everywhere && (mutation.name == "carried boundary" || mutation.name == "carried value")) continue;
        const bool bytes = mutation.name.ends_with("bytes");
        if (bytes)
          apart = apart && only_padding(plan.roles[other],
                                        right.roles[other].programs[index].instructions[their[turn]].instruction,
                                        of.instructions[their[turn]].instruction);
        else if (mutation.name == "stream")
          apart = apart && may_move(of, their[turn]);
        else if (mutation.name != "swap")
          apart = false;
        derive_order(plan.roles[other], plan.mesh);
      }
      if (changed) {
        const std::vector<std::string> found = violations(plan);
        Tally& tally = tallies[mutation.name];
        CAPTURE(text_of(one));
        CAPTURE(mutation.name);
        CAPTURE(everywhere);
        CAPTURE(std::string(name_of(program.kind)) + " #" + std::to_string(order[turn]) + " " +
                print(right.roles[stage], program.instructions[order[turn]].instruction));
        if (!found.empty())
          ++tally.refused;
        else if (apart)
          ++tally.equivalent;
        else {
          ++tally.accepted;
          CHECK_MESSAGE(false, "accepted");
        }
        // Where nothing else is wrong first, playing all ranks and playing one a role come to the same.
        const bool lonely = !found.empty() && std::all_of(found.begin(), found.end(), [](const std::string& line) {
          return line.ends_with("waits for ever") || line.ends_with("never joins");
        });
        if (lonely) {
          ++stuck;
          CHECK(!tests::play_all_ranks(plan).empty());
        }
        if (found.empty()) CHECK(tests::play_all_ranks(plan).empty());
      }
      plan = right;
    }
  }
  for (const auto& [name, tally] : tallies) {
    MESSAGE(name << ": " << tally.refused << " refused, " << tally.equivalent << " equivalent, " << tally.accepted
                 << " accepted");
    CHECK(tally.refused > 0);
  }
  CHECK(stuck > 20);
  MESSAGE(stuck << " of them refused for nothing but ranks that wait for ever");
}

namespace {

/// A mutant that must be refused.
void judge(const Plan& mutant, Tally& tally) {
  const bool refused = !violations(mutant).empty();
  ++(refused ? tally.refused : tally.accepted);
  CHECK_MESSAGE(refused, "accepted");
}

void tell(const std::map<std::string, Tally>& tallies) {
  for (const auto& [name, tally] : tallies) {
    MESSAGE(name << ": " << tally.refused << " refused, " << tally.accepted << " accepted");
    CHECK(tally.refused > 0);
  }
}

/// The specs of a plan that say how something lies: of parameters, of slots that stay, and of what the batch brings.
std::vector<Spec*> specs_of(Plan& plan) {
  std::vector<Spec*> specs;
  for (Role& role : plan.roles) {
    for (Unit& unit : role.units) {
      for (UnitTensor& tensor : unit.tensors) specs.push_back(&tensor.spec);
      for (Slot& slot : unit.slots)
        if (slot.persistent) specs.push_back(&slot.spec);
    }
    for (Field& field : role.fields)
      if (field.kind == Field::Kind::batch) specs.push_back(&field.spec);
  }
  return specs;
}

/// A wrong cut, a cut too many or too few, a wrong partial axis, a wrong order of cuts, another dtype or shape. False:
/// nothing changed.
bool change_spec(Spec& spec, const Mesh& mesh, Dice& dice, std::string& what) {
  const Spec before = spec;
  std::vector<Axis> axes;
  for (Axis axis : kAxes)
    if (mesh.size(axis) > 1 && axis != Axis::pipeline) axes.push_back(axis);
  const Axis axis = axes[dice.below(axes.size())];
  const std::vector<Cut> cuts(spec.cuts().begin(), spec.cuts().end());
  const auto kind = dice.below(6);
  if (kind == 0) {
    what = "cut";
    const auto dim = static_cast<int>(dice.below(static_cast<std::size_t>(spec.whole.rank())));
    spec.place(axis, Placement::shard(dim, 1 + static_cast<int>(dice.below(3))));
  } else if (kind == 1) {
    what = "no cut";
    spec.place(axis, Placement::replicate());
  } else if (kind == 2) {
    what = "partial axis";
    spec.place(axis, Placement::partial());
  } else if (kind == 3) {
    what = "order of cuts";
    int several = 0;  // of more than one rank: the order of others says nothing
    for (const Cut& cut : cuts) several += mesh.size(cut.axis) > 1;
    if (several < 2) return false;
    for (const Cut& cut : cuts) spec.place(cut.axis, Placement::replicate());
    for (std::size_t i = cuts.size(); i-- > 0;) spec.place(cuts[i].axis, cuts[i].as);
  } else if (kind == 4) {
    what = "dtype";
    spec.format = spec.dtype() == DType::f32 ? DType::f64 : DType::f32;
  } else {
    what = "shape";
    spec.whole[static_cast<int>(dice.below(static_cast<std::size_t>(spec.whole.rank())))] +=
        1 + static_cast<std::int64_t>(dice.below(64)) * 64;
  }
  return !(spec == before);
}

}  // namespace

TEST_CASE("whatever changes what a rank is said to hold is refused") {
  const Jobs jobs;
  std::map<std::string, Tally> tallies;
  Dice dice(23);
  int plans = 0, mutants = 0;
  for (const Case& one : cases()) {
    std::vector<std::string> overrides = one.overrides;
    overrides.emplace_back("data.val={fraction: 0.2}");
    const Plan right = jobs.plan(one.model, overrides, 1);
    if (right.mesh.world_size() == right.mesh.size(Axis::pipeline)) continue;
    ++plans;
    for (int mutant = 0; mutant < 24; ++mutant) {
      Plan plan = right;
      std::string what = "swapped slots";
      if (mutant % 8 == 0) {  // two slots of a unit, each in the place of the other
        Role& role = plan.roles[dice.below(plan.roles.size())];
        std::vector<Slot>& slots = role.units[dice.below(role.units.size())].slots;
        const std::size_t a = dice.below(slots.size()), b = dice.below(slots.size());
        if (slots[a].region == slots[b].region || !slots[a].persistent || !slots[b].persistent) continue;
        std::swap(slots[a].region, slots[b].region);
      } else {
        const std::vector<Spec*> specs = specs_of(plan);
        if (!change_spec(*specs[dice.below(specs.size())], plan.mesh, dice, what)) continue;
      }
      ++mutants;
      CAPTURE(text_of(one));
      CAPTURE(what);
      judge(plan, tallies[what]);
    }
  }
  tell(tallies);
  CHECK(plans >= 20);
  CHECK(mutants >= 200);
}

namespace {

/// Spoils one launch of a step that has several optimizers: what it reads, what it says of matrices and owners, whether
/// it is there at all. False: nothing changed.
bool change_update(Role& role, const Plan& plan, std::vector<Issued>& step, std::size_t at, Dice& dice,
                   std::string& what) {
  auto& launch = std::get<Launch>(step[at].instruction);
  Signature signature = role.signatures[static_cast<std::size_t>(launch.signature)];
  const auto put = [&] {
    role.signatures.push_back(signature);
    launch.signature = static_cast<std::int32_t>(role.signatures.size()) - 1;
  };
  const auto kind = dice.below(7);
  if (kind == 0) {
    what = "drop";
    step.erase(step.begin() + static_cast<std::ptrdiff_t>(at));
    return true;
  }
  if (kind == 1) {
    what = "duplicate";
    const Issued copy = step[at];
    step.insert(step.begin() + static_cast<std::ptrdiff_t>(at), copy);
    return true;
  }
  if (kind == 2) {
    what = "origin";
    const Axis axis = kAxes[dice.below(kAxes.size())];
    if (plan.mesh.size(axis) == 1 || signature.op == Op::muon_momentum) return false;  // its origin says nothing
    launch.origin.along(axis) += 1;
    return true;
  }
  if (kind == 3) {
    what = "rate";
    if (!definition(signature.op).update->has(UpdateDef::Operand::rate)) return false;
    for (Operand& operand : launch.operands)
      if (auto* read = std::get_if<Read>(&operand);
          read != nullptr && read->region.bytes == 4 && role.name(role.buffer(read->region.buffer).name) == "lr") {
        if (role.buffer(read->region.buffer).bytes == 4) return false;  // there is one
        read->region.offset = read->region.offset == 0 ? 4 : 0;
        return true;
      }
    return false;
  }
  if (signature.op != Op::muon_orthogonalize) return false;
  std::vector<OwnedMatrix> matrices = matrix_list(signature.attributes.text("matrices"));
  OwnedMatrix& one = matrices[dice.below(matrices.size())];
  if (kind == 4) {
    what = "matrix left out";
    matrices.erase(matrices.begin() + (&one - matrices.data()));
  } else if (kind == 5) {
    what = "shape of a matrix";
    if (one.rows == one.cols || one.rows % 2 != 0) return false;
    if (dice.below(2) == 0)
      std::swap(one.rows, one.cols);
    else
      one.rows /= 2, one.cols *= 2;
  } else {
    what = "owner or cut";
    if (dice.below(2) == 0)
      one.owner += plan.mesh.world_size();
    else
      one.cut = one.cut == OwnedMatrix::Cut::none   ? OwnedMatrix::Cut::rows
                : one.cut == OwnedMatrix::Cut::rows ? OwnedMatrix::Cut::columns
                                                    : OwnedMatrix::Cut::none;
  }
  signature.attributes.set("matrices", matrix_list_text(matrices));
  put();
  return true;
}

}  // namespace

TEST_CASE("whatever changes who orthogonalizes what, and by which rate it is taken, is refused") {
  const Jobs jobs;
  std::map<std::string, Tally> tallies;
  Dice dice(37);
  for (const Case& one : kMuonCases) {
    const Plan right = jobs.plan(one.model, one.overrides, 1);
    REQUIRE(violations(right).empty());
    for (int mutant = 0; mutant < 60; ++mutant) {
      Plan plan = right;
      Role& role = plan.roles[dice.below(plan.roles.size())];
      std::vector<Issued>& step = role.programs[0].instructions;
      std::vector<std::size_t> updates;
      for (std::size_t i = 0; i < step.size(); ++i)
        if (const auto* launch = std::get_if<Launch>(&step[i].instruction)) {
          const Op op = role.signatures[static_cast<std::size_t>(launch->signature)].op;
          if (definition(op).update) updates.push_back(i);
        }
      std::string what;
      if (!change_update(role, plan, step, updates[dice.below(updates.size())], dice, what)) continue;
      derive_order(role, plan.mesh);
      CAPTURE(text_of(one));
      CAPTURE(what);
      judge(plan, tallies[what]);
    }
  }
  tell(tallies);
}

namespace {

Launch* launch_of(Issued& issued) { return std::get_if<Launch>(&issued.instruction); }

using Of = UpdateDef::Operand;

/// The launches of a step whose op has such an operand, and which of their operands it is.
std::vector<std::pair<std::size_t, std::size_t>> launches_with(const Role& role, Of of) {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  const std::vector<Issued>& step = role.programs[0].instructions;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const auto* launch = std::get_if<Launch>(&step[i].instruction);
    if (launch == nullptr) continue;
    const auto& update = definition(role.signatures[static_cast<std::size_t>(launch->signature)].op).update;
    if (!update || !update->has(of)) continue;
    found.emplace_back(i, std::ranges::find(update->operands, of) - update->operands.begin());
  }
  return found;
}

Region& region_in(Operand& operand) {
  return std::visit([](auto& access) -> Region& { return access.region; }, operand);
}

/// Two units that lie alike take each other's updates.
bool swap_updates(Role& role) {
  std::vector<Issued>& step = role.programs[0].instructions;
  const auto found = launches_with(role, Of::taken);
  for (const auto& [a, at] : found)
    for (const auto& [b, same] : found) {
      Launch &one = *launch_of(step[a]), &other = *launch_of(step[b]);
      if (a >= b || one.signature != other.signature) continue;
      std::swap(region_in(one.operands[at]), region_in(other.operands[at]));
      return true;
    }
  return false;
}

/// Each rank takes its piece of a matrix for all of it: nothing is gathered or summed along the tensor axis.
bool leave_in_pieces(Role& role, const Mesh& mesh) {
  std::vector<Issued>& step = role.programs[0].instructions;
  if (mesh.size(Axis::tensor) == 1) return false;
  std::map<BufferId, Region> pieces;  // of the buffers that hold all pieces
  std::vector<Issued> rest;
  for (const Issued& issued : step) {
    const auto* collective = std::get_if<Collective>(&issued.instruction);
    const bool updates = issued.why.phase == Provenance::Phase::update;
    const bool joins = updates && collective != nullptr && collective->axes == Axes::of(Axis::tensor);
    if (joins && collective->kind == CollectiveKind::all_gather)
      pieces[collective->output.region.buffer] = collective->input.region;
    if (!joins) rest.push_back(issued);
  }
  step = rest;
  for (const auto& [at, operand] : launches_with(role, Of::changed)) {
    Launch& launch = *launch_of(step[at]);
    const auto piece = pieces.find(region_in(launch.operands[operand]).buffer);
    if (piece == pieces.end()) continue;
    region_in(launch.operands[operand]) = piece->second;
    Signature signature = role.signatures[static_cast<std::size_t>(launch.signature)];
    signature.operands[operand].shape[0] = 1;
    Axes owners;
    for (Axis axis : mesh.active(kSliceAxes))
      if (launch.origin.along(axis) != 0) owners = owners | axis;
    std::vector<OwnedMatrix> matrices = matrix_list(signature.attributes.text("matrices"));
    for (OwnedMatrix& matrix : matrices) matrix.owner %= mesh.group_size(owners);
    signature.attributes.set("matrices", matrix_list_text(matrices));
    launch.origin = origin_over(owners, 1, mesh);
    launch.signature = static_cast<std::int32_t>(role.signatures.size());
    role.signatures.push_back(signature);
  }
  return !pieces.empty();
}

/// What is updated in place is said to be read only, so that nothing waits for it.
bool only_read(Role& role, Of of) {
  const auto found = launches_with(role, of);
  if (found.empty()) return false;
  Operand& operand = launch_of(role.programs[0].instructions[found.front().first])->operands[found.front().second];
  operand = Read{region_of(operand)};
  return true;
}

}  // namespace

TEST_CASE("updates of other units, of pieces of matrices, and such as nothing waits for are refused") {
  const Jobs jobs;
  std::map<std::string, Tally> tallies;
  const std::vector<std::pair<std::string, std::function<bool(Role&, const Mesh&)>>> mutations{
      {"update of another unit", [](Role& role, const Mesh&) { return swap_updates(role); }},
      {"pieces for matrices", leave_in_pieces},
      {"master only read", [](Role& role, const Mesh&) { return only_read(role, Of::master); }},
      {"states only read", [](Role& role, const Mesh&) { return only_read(role, Of::states); }},
      {"update only read", [](Role& role, const Mesh&) { return only_read(role, Of::changed); }},
  };
  for (const Case& one : kMuonCases) {
    const Plan right = jobs.plan(one.model, one.overrides, 1);
    for (const auto& [name, mutate] : mutations) {
      Plan plan = right;
      int changed = 0;
      for (Role& role : plan.roles) changed += mutate(role, plan.mesh) ? 1 : 0;
      if (changed == 0) continue;
      for (Role& role : plan.roles) {
        plan_memory(role);
        derive_order(role, plan.mesh);
      }
      CAPTURE(text_of(one));
      CAPTURE(name);
      judge(plan, tallies[name]);
    }
  }
  CHECK(tallies.size() == mutations.size());
  tell(tallies);
}
