// Section `strategy`: how the work is spread over ranks.
#include "engine/job/sections/sections.h"

#include <algorithm>
#include <iterator>

#include "engine/job/data_strategies.h"
#include "engine/job/pipeline_schedules.h"
#include "engine/job/rules.h"
#include "engine/job/sections/define.h"
#include "engine/job/values.h"

namespace trainer {
namespace {

using namespace form;

constexpr int kMostVirtualStages = 1000;  // no real job reaches it

Fields tensor_strategy() {
  const FieldDef sequence =
      optional("sequence_parallel", "Norms and dropout are cut along the sequence.", {flag(), word({"auto"})}, "false");
  const FieldDef keep =
      optional("keep",
               "What is kept for the backward pass of what sequence parallelism gathers: all of it, or a rank's shard, "
               "which is gathered again; auto: all of it where that fits.",
               {word(words<TensorKeep>())}, "auto");
  return {
      required("degree", "Ranks of a layer.", {integer(1, kMostRanks), word({"auto"})}),
      sequence.when_above("degree", 1),
      optional("sequence_parallel", "Norms and dropout are cut along the sequence.", {flag(), word({"auto"})}, "auto")
          .when("degree", {"auto"}),
      keep.when_above("degree", 1),
      optional("overlap",
               "Micro-batches go through the model in pairs: while the sums and gathers of one travel, the other "
               "computes. Needs an even number of micro-batches, and memory for the activations of both.",
               {flag()}, "false")
          .when_above("degree", 1),
      keep.when("degree", {"auto"}),
  };
}

Fields expert_strategy() {
  return {
      required("degree", "Ranks over which experts are cut; each has samples of its own. It divides their number.",
               {integer(1, kMostRanks)}),
  };
}

Fields context_strategy() {
  return {
      required("degree",
               "Ranks over which each sequence is cut. data.seq_len divides by it, and with `ring` by twice as much.",
               {integer(1, kMostRanks)}),
      optional("kind",
               "gather: the keys and values of all positions are gathered before attention. ring: they travel round "
               "the ranks while attention computes.",
               {word(words<ContextKind>())}, "gather"),
  };
}

FieldDef virtual_stages(Forms forms, std::string_view otherwise) {
  return optional("virtual_stages", "Chunks of the model on each stage.", std::move(forms), otherwise);
}

// One variant for each range of virtual stages, of the schedules that take it; where there is a choice, two are the
// default.
Fields virtual_stages_by_schedule() {
  Fields fields;
  for (const ScheduleRecord& record : kScheduleRecords) {
    const auto alike = [&](const ScheduleRecord& other) {
      return other.least_virtual_stages == record.least_virtual_stages &&
             other.most_virtual_stages == record.most_virtual_stages;
    };
    if (std::ranges::find_if(kScheduleRecords, alike) != &record) continue;
    Names schedules;
    for (const ScheduleRecord& other : kScheduleRecords)
      if (alike(other)) schedules.push_back(other.name);
    Forms forms{integer(record.least_virtual_stages, std::min(record.most_virtual_stages, kMostVirtualStages))};
    if (record.least_virtual_stages < record.most_virtual_stages) forms.push_back(word({"auto"}));
    fields.push_back(virtual_stages(std::move(forms), record.takes(2) ? "2" : "1")
                         .when_above("degree", 1)
                         .when("schedule", std::move(schedules)));
  }
  return fields;
}

Fields schedule_file() {
  return {required("file",
                   "A line for each stage with its actions in order, as F0.1,B0.1: F forward, B backward, I and W its "
                   "input and weight part; the micro-batch; the chunk.",
                   {text()})};
}

Fields pipeline_strategy() {
  const std::string_view order = "Order of the micro-batches' forward and backward passes.";
  const Forms open{word({"auto"}), integer(1, kMostVirtualStages)};
  Fields fields{
      required("degree", "Stages.", {integer(1, kMostRanks), word({"auto"})}),
      optional("schedule", order, {word(with_auto(words<PipelineSchedule>())), section(schedule_file())}, "1f1b")
          .when_above("degree", 1),
      optional("schedule", order, {word(with_auto(words<PipelineSchedule>()))}, "auto").when("degree", {"auto"}),
  };
  std::ranges::move(virtual_stages_by_schedule(), std::back_inserter(fields));
  fields.push_back(virtual_stages(open, "auto").when_above("degree", 1).when("schedule", {"auto"}));
  fields.push_back(virtual_stages(open, "auto").when("degree", {"auto"}));
  fields.push_back(optional("split",
                            "auto: chunks of equal cost. uniform: of equally many blocks. Or the nodes or blocks that "
                            "begin the chunks after the first.",
                            {word({"auto", "uniform"}), list(text(), 1)}, "auto")
                       .when_above("degree", 1));
  return fields;
}

Fields offload() {
  const std::vector<std::string_view> places = words<OffloadTo>();
  const auto dir = [] {
    return optional("dir", "A folder for the files, which go with the run; auto: checkpoint.dir.", {text()}, "auto");
  };
  return {
      optional("optimizer",
               "Where master weights and the optimizer's states are kept: on the device, in the memory of a GPU's "
               "host, or in a file of each rank.",
               {word(places)}, "none"),
      optional("gradients",
               "The same of gradients, from the backward pass to the update, of steps of one micro-batch without a "
               "pipeline.",
               {word(places)}, "none"),
      optional(
          "parameters",
          "The same of working copies, which come for each use; under zero3 and fsdp. In f32 they are the masters.",
          {word(places)}, "none"),
      optional("activations",
               "The same of what the backward pass needs of the forward pass, block by block; without a pipeline.",
               {word(places)}, "none"),
      optional("update",
               "Whose processor updates the weights: the GPU, to which masters and states come in parts, or its host, "
               "to which gradients go and from which the new working copies come.",
               {word(words<UpdateOn>())}, "device")
          .when("optimizer", {"host"}),
      dir().when("optimizer", {"disk"}),
      dir().when("optimizer", {"none", "host"}).when("gradients", {"disk"}),
      dir().when("optimizer", {"none", "host"}).when("gradients", {"none", "host"}).when("parameters", {"disk"}),
      dir()
          .when("optimizer", {"none", "host"})
          .when("gradients", {"none", "host"})
          .when("parameters", {"none", "host"})
          .when("activations", {"disk"}),
  };
}

Fields wrap() {
  return {
      optional("policy",
               "What becomes a unit: buckets, a kind of block, parts of some size, named parts, or the whole model.",
               {word(words<WrapPolicy>())}, "auto"),
      optional("block", "Kind of block that is a unit.", {text()}, "TransformerBlock").when("policy", {"transformer"}),
      optional("min_params", "Least number of parameters of a unit.", {integer(1)}, "100_000_000")
          .when("policy", {"size"}),
      required("names", "Nodes or blocks that are a unit each.", {list(text(), 1)}).when("policy", {"names"}),
      optional("excluded", "Globs over nodes that keep f32 under mixed precision.", {list(text(), 0)}, "[]"),
  };
}

DataStrategyJob bind_data_strategy(const Values& v, FreeParts& free) {
  const std::string at = "strategy.data.";
  DataStrategyJob data;
  free.data = !v.is_section("strategy.data") || v.is(at + "kind", "auto");
  if (!free.data) data.kind = v.word<DataKind>(at + "kind");
  for (const DataKey& key : data_keys())
    if (const std::string path = at + std::string(key.field.name); v.has(path) || v.is_section(path))
      key.read(v, path, data);
  return data;
}

TensorStrategyJob bind_tensor(const Values& v, FreeParts& free) {
  const std::string at = "strategy.tensor.";
  TensorStrategyJob tensor;
  if (v.has("strategy.tensor") && !v.is_section("strategy.tensor")) free.tensor = free.sequence_parallel = true;
  if (!v.is_section("strategy.tensor")) return tensor;
  free.tensor = v.is(at + "degree", "auto");
  if (!free.tensor) tensor.degree = v.integer(at + "degree");
  if (!v.has(at + "sequence_parallel")) return tensor;
  free.sequence_parallel = v.is(at + "sequence_parallel", "auto");
  if (!free.sequence_parallel) tensor.sequence_parallel = v.flag(at + "sequence_parallel");
  if (v.has(at + "keep")) tensor.keep = v.word<TensorKeep>(at + "keep");
  if (v.has(at + "overlap")) tensor.overlap = v.flag(at + "overlap");
  return tensor;
}

ExpertStrategyJob bind_expert(const Values& v) {
  ExpertStrategyJob expert;
  if (v.is_section("strategy.expert")) expert.degree = v.integer("strategy.expert.degree");
  return expert;
}

ContextStrategyJob bind_context(const Values& v) {
  ContextStrategyJob context;
  if (!v.is_section("strategy.context")) return context;
  context.degree = v.integer("strategy.context.degree");
  context.kind = v.word<ContextKind>("strategy.context.kind");
  return context;
}

PipelineStrategyJob bind_pipeline(Values& v, FreeParts& free) {
  const std::string at = "strategy.pipeline.";
  PipelineStrategyJob pipeline;
  if (v.has("strategy.pipeline") && !v.is_section("strategy.pipeline"))
    free.pipeline = free.schedule = free.virtual_stages = true;
  if (!v.is_section("strategy.pipeline")) return pipeline;
  free.pipeline = v.is(at + "degree", "auto");
  if (!free.pipeline) pipeline.degree = v.integer(at + "degree");
  if (pipeline.degree == 1 && !free.pipeline) return pipeline;
  if (v.is_section(at + "schedule")) {
    pipeline.schedule_file = *v.file(at + "schedule.file");
  } else {
    free.schedule = v.is(at + "schedule", "auto");
    if (!free.schedule) pipeline.schedule = v.word<PipelineSchedule>(at + "schedule");
    free.virtual_stages = v.is(at + "virtual_stages", "auto");
    if (!free.virtual_stages) pipeline.virtual_stages = v.integer(at + "virtual_stages");
  }
  if (free.pipeline) return pipeline;
  pipeline.split = v.texts(at + "split");
  pipeline.split_policy = pipeline.split.empty() ? v.word<SplitPolicy>(at + "split") : SplitPolicy::names;
  return pipeline;
}

OffloadJob bind_offload(Values& v) {
  const std::string at = "strategy.offload.";
  OffloadJob offload;
  if (!v.is_section("strategy.offload")) return offload;
  offload.optimizer = v.word<OffloadTo>(at + "optimizer");
  offload.gradients = v.word<OffloadTo>(at + "gradients");
  offload.parameters = v.word<OffloadTo>(at + "parameters");
  offload.activations = v.word<OffloadTo>(at + "activations");
  if (v.has(at + "update")) offload.update = v.word<UpdateOn>(at + "update");
  if (v.has(at + "dir") && !v.is(at + "dir", "auto")) offload.dir = *v.file(at + "dir");
  return offload;
}

WrapJob bind_wrap(const Values& v) {
  const std::string at = "strategy.wrap.";
  WrapJob wrap;
  wrap.policy = v.word<WrapPolicy>(at + "policy");
  if (v.has(at + "block")) wrap.block = v.text(at + "block");
  if (v.has(at + "min_params")) wrap.min_params = v.integer(at + "min_params");
  if (v.has(at + "names")) wrap.names = v.texts(at + "names");
  wrap.excluded = v.texts(at + "excluded");
  return wrap;
}

/// The short form: a kind of data strategy, or one axis that takes every device.
StrategyJob named_strategy(const std::string& name) {
  StrategyJob strategy;
  if (name == "auto") return strategy;
  strategy.free = {};
  if (name == "tensor") {
    strategy.tensor.degree.reset();
  } else if (name == "pipeline") {
    strategy.pipeline.degree.reset();
  } else {
    strategy.data.kind = value_named<DataKind>(name);
  }
  return strategy;
}

}  // namespace

Fields strategy_fields() {
  FieldDef data = part("data", "How parameters live over the data ranks.", data_strategy_fields(), "kind");
  data.forms.push_back(word({"auto"}));
  return {
      data,
      extra("tensor", "Layers cut over ranks.", {section(tensor_strategy(), "degree"), word({"auto"})}),
      extra("expert", "Experts over ranks, to which tokens travel.", {section(expert_strategy(), "degree")}),
      extra("context", "Sequences cut over ranks.", {section(context_strategy(), "degree")}),
      extra("pipeline", "The model cut into stages.", {section(pipeline_strategy(), "degree"), word({"auto"})}),
      extra("offload", "What is kept off the device while it is not used.", {section(offload(), "optimizer")}),
      part("wrap", "What becomes a unit of parameters.", wrap(), "policy"),
      optional("profile", "Of the network: fills in bucket_mb, compression and every of data where they are not given.",
               {word(words<Profile>())}, "none"),
  };
}

StrategyJob bind_strategy(Values& v) {
  if (!v.is_section("strategy")) return named_strategy(v.text("strategy"));
  StrategyJob strategy;
  strategy.free = {};
  strategy.profile = v.word<Profile>("strategy.profile");
  fill_in_profile(v.checked());
  strategy.data = bind_data_strategy(v, strategy.free);
  strategy.tensor = bind_tensor(v, strategy.free);
  strategy.expert = bind_expert(v);
  strategy.context = bind_context(v);
  strategy.pipeline = bind_pipeline(v, strategy.free);
  strategy.offload = bind_offload(v);
  strategy.wrap = bind_wrap(v);
  return strategy;
}

}  // namespace trainer
