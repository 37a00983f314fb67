// In this order: mesh, batch, graphs, units, assembly. With `micro: auto` the largest micro-batch that fits.
#include "engine/compile/fixed.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "engine/compile/graph_facts.h"
#include "engine/compile/hardware.h"
#include "engine/compile/mesh_of.h"
#include "engine/compile/model_graph.h"
#include "engine/compile/optimizers.h"
#include "engine/compile/resolve_strategy.h"
#include "engine/compile/trained.h"
#include "engine/core/check.h"
#include "engine/core/compression.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/glob.h"
#include "engine/job/data_strategies.h"
#include "engine/job/nearest_numbers.h"
#include "engine/job/resolve.h"
#include "engine/job/unsupported.h"
#include "engine/ops/op_def.h"
#include "engine/ops/refuse.h"
#include "engine/plan/assemble/assemble.h"
#include "engine/plan/verify/verify.h"
#include "engine/transform/cached.h"
#include "engine/transform/distribute.h"
#include "engine/transform/experts.h"
#include "engine/transform/fuse.h"
#include "engine/transform/transform.h"
#include "strategies/context/context_parallel.h"
#include "strategies/expert/expert_parallel.h"
#include "strategies/pipeline/chunks.h"
#include "strategies/pipeline/schedule_file.h"
#include "strategies/strategies.h"
#include "strategies/tensor/tensor_parallel.h"
#include "strategies/wrap.h"

namespace trainer {
namespace {

[[noreturn]] void fail(const LoadedJob& loaded, std::string_view path, const std::string& message) {
  throw JobError({loaded.at(path, message)});
}

// The candidates for the micro-batch, the most wanted first: large ones, but enough of them to fill a pipeline.
std::vector<BatchShape> batches(const LoadedJob& loaded, int data_ranks, int stages) {
  const BatchJob& batch = loaded.job.train.batch;
  if (batch.global % data_ranks != 0) {
    const std::int64_t below = batch.global / data_ranks * data_ranks;
    fail(loaded, "train.batch.global",
         fmt::format("{} samples do not divide over {} data ranks; the nearest that do are {}{}", batch.global,
                     data_ranks, below > 0 ? fmt::format("{} and ", below) : "", below + data_ranks));
  }
  const std::int64_t per_rank = batch.global / data_ranks;
  std::vector<std::int64_t> sizes = divisors(per_rank);
  if (batch.micro) {
    if (per_rank % *batch.micro != 0) {
      const auto above = std::upper_bound(sizes.begin(), sizes.end(), *batch.micro);
      std::string nearest = above == sizes.begin() ? "" : std::to_string(*std::prev(above));
      if (above != sizes.end()) nearest += (nearest.empty() ? "" : " and ") + std::to_string(*above);
      fail(loaded, "train.batch.micro",
           fmt::format("a rank's {} samples do not divide into micro-batches of {}; the nearest that do are {}",
                       per_rank, *batch.micro, nearest));
    }
    sizes = {*batch.micro};
  }
  std::vector<BatchShape> result;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size)
    result.push_back({batch.global, *size, static_cast<int>(per_rank / *size), data_ranks});
  std::stable_partition(result.begin(), result.end(),
                        [&](const BatchShape& shape) { return stages == 1 || shape.micro_batches >= 2 * stages; });
  return result;
}

strategies::ParameterGroups units_of(const LoadedJob& loaded, const Graph& graph,
                                     const std::function<std::int32_t(const std::string&)>& optimizer_of) {
  const WrapJob wrap = resolve_wrap(loaded.job.strategy, loaded.job.precision.reduce, graph);
  switch (wrap.policy) {
    case WrapPolicy::none:
      return strategies::wrap_all(graph);
    case WrapPolicy::automatic:
      return strategies::wrap_by_block(graph, "");
    case WrapPolicy::size:
      return strategies::wrap_by_size(
          graph, wrap.min_params,
          gathers(loaded.job.strategy.data) ? strategies::Counted::all : strategies::Counted::trained, optimizer_of);
    case WrapPolicy::transformer: {
      strategies::ParameterGroups groups = strategies::wrap_by_block(graph, wrap.block);
      if (groups.empty()) fail(loaded, "strategy.wrap.block", "the graph has no block of kind " + wrap.block);
      return groups;
    }
    case WrapPolicy::names: {
      std::vector<std::string> unmatched;
      strategies::ParameterGroups groups = strategies::wrap_by_names(graph, wrap.names, unmatched);
      if (!unmatched.empty())
        fail(loaded, "strategy.wrap.names", "no node with parameters matches " + unmatched.front());
      return groups;
    }
  }
  UNREACHABLE("a wrap policy without units");
}

// What a rank runs in a step is numbered in 32 bits (engine/run/places.h): half of that, as these are nodes of the
// graph and transfers come on top. What a plan lists, because no loops stand for it, takes a kilobyte each.
constexpr std::int64_t kMostOfStage = 1'000'000'000, kMostListed = 8'000'000;

// Tokens of a prompt that are worked on at once: enough for products at their full rate, few enough that a short prompt
// is not mostly padding.
constexpr std::int64_t kPromptBlock = 64;

class Compilation {
 public:
  Compilation(const LoadedJob& loaded, const Hardware& hardware, Purpose purpose)
      : loaded_(loaded),
        job_(loaded.job),
        hardware_(hardware),
        purpose_(purpose),
        tree_(graph_tree(loaded)),
        gathers_again_(job_.strategy.tensor.keep == TensorKeep::shard) {}

  CompiledJob run(Finish finish) {
    finish_ = finish;
    const std::unique_ptr<DataStrategy> data = lay_out();
    const int data_ranks = mesh_.group_size(kBatchAxes);
    const std::int64_t rows = purpose_ == Purpose::score ? job_.train.batch.micro.value_or(1) : 1;
    std::vector<BatchShape> candidates = purpose_ == Purpose::sample || purpose_ == Purpose::score
                                             ? std::vector<BatchShape>{{rows * data_ranks, rows, 1, data_ranks}}
                                             : batches_of_schedule();
    CompiledJob best = first_that_fits(candidates, *data);
    const bool gathers =
        purpose_ == Purpose::train && mesh_.size(Axis::tensor) > 1 && job_.strategy.tensor.sequence_parallel;
    if (!best.fits && gathers && job_.strategy.tensor.keep == TensorKeep::automatic) {
      gathers_again_ = true;
      best = first_that_fits(candidates, *data);
    }
    if (finish == Finish::proved) verify(best.plan);
    best.recompute = job_.activation_checkpointing;
    best.strategy_why = "the job asks for it";
    const bool decided = gathers_again_ && job_.strategy.tensor.keep == TensorKeep::automatic;
    if (decided && best.fits) best.strategy_why += "; strategy.tensor.keep is shard, since gathered inputs do not fit";
    return best;
  }

  std::int64_t least_bytes(const std::vector<int>& stages) {
    const std::unique_ptr<DataStrategy> data = lay_out();
    const BatchShape batch = batches_of_schedule().front();
    const Graphs graphs = graphs_of(batch);
    const std::unique_ptr<GradientCompression> compression = compression_of();
    const AssembleOptions options = options_of(graphs, batch, *data, compression.get());
    return trainer::least_bytes(options, stages);
  }

 private:
  CompiledJob first_that_fits(const std::vector<BatchShape>& batches, const DataStrategy& data) const {
    CompiledJob best;
    for (const BatchShape& batch : batches) {
      best = assemble_with(batch, data);
      if (best.fits) break;
    }
    return best;
  }

  // Sets the mesh.
  std::unique_ptr<DataStrategy> lay_out() {
    const std::vector<Diagnostic> refused = unsupported(loaded_);
    if (!refused.empty()) throw JobError(refused);
    const bool laid_out = purpose_ == Purpose::train || purpose_ == Purpose::score;
    mesh_ = laid_out ? mesh_of(loaded_) : Mesh{};
    if (purpose_ == Purpose::score && mesh_.group_size(kSequenceAxes) > 1)
      fail(loaded_, "strategy.context", "scoring does not cut sequences over ranks");
    if (mesh_.size(Axis::pipeline) > 1 && !job_.strategy.pipeline.schedule_file.empty()) read_schedule();
    return strategies::data_strategy(laid_out ? job_.strategy.data : DataStrategyJob{}, mesh_.size(Axis::pipeline) > 1);
  }

  void read_schedule() {
    const std::string& path = job_.strategy.pipeline.schedule_file;
    try {
      given_ = strategies::read_schedule(MappedFile(path).text(), path);
    } catch (const DataError& error) {
      fail(loaded_, "strategy.pipeline.schedule.file", error.what());
    }
    if (given_->stages() != mesh_.size(Axis::pipeline))
      fail(loaded_, "strategy.pipeline.schedule.file",
           fmt::format("{} has {} stages; strategy.pipeline.degree is {}", path, given_->stages(),
                       mesh_.size(Axis::pipeline)));
  }

  std::vector<BatchShape> batches_of_schedule() const {
    if (job_.strategy.offload.activations != OffloadTo::none && mesh_.size(Axis::pipeline) > 1)
      fail(loaded_, "strategy.offload.activations",
           "a stage of a pipeline keeps the activations of several micro-batches at once");
    std::vector<BatchShape> all =
        batches(loaded_, mesh_.group_size(kBatchAxes), mesh_.size(Axis::pipeline) * together());
    if (together() > 1) return in_pairs(std::move(all));
    if (purpose_ == Purpose::train && job_.strategy.offload.gradients != OffloadTo::none) return whole_batch(all);
    if (!given_) return all;
    const int wanted = given_->micro_batches, made = all.front().micro_batches;
    std::erase_if(all, [&](const BatchShape& batch) { return batch.micro_batches != wanted; });
    if (all.empty())
      fail(loaded_, "strategy.pipeline.schedule.file",
           fmt::format("{} has {} micro-batches; train.batch gives {}", job_.strategy.pipeline.schedule_file, wanted,
                       job_.train.batch.micro ? std::to_string(made) : "no such number"));
    return all;
  }

  /// AssembleOptions::together.
  int together() const { return purpose_ == Purpose::train && job_.strategy.tensor.overlap ? 2 : 1; }

  std::vector<BatchShape> in_pairs(std::vector<BatchShape> all) const {
    const std::string at = "strategy.tensor.overlap";
    if (given_) fail(loaded_, at, "a schedule from a file says itself in which order micro-batches come");
    const BatchShape any = all.front();
    std::erase_if(all, [](const BatchShape& batch) { return batch.micro_batches % 2 != 0; });
    if (!all.empty()) return all;
    fail(loaded_, at,
         fmt::format("micro-batches go in pairs, and the {} samples of a rank make {}; {}",
                     any.micro_batches * any.micro, any.micro_batches == 1 ? "one" : std::to_string(any.micro_batches),
                     any.micro_batches * any.micro % 2 == 0 ? "a smaller train.batch.micro makes an even number of them"
                                                            : "an even number of samples is needed"));
  }

  // Gradients that leave the device are those of a whole step.
  std::vector<BatchShape> whole_batch(std::vector<BatchShape> all) const {
    if (mesh_.size(Axis::pipeline) > 1)
      fail(loaded_, "strategy.offload.gradients", "stages of a pipeline keep the gradients of several micro-batches");
    const std::int64_t each = all.front().micro_batches * all.front().micro;
    std::erase_if(all, [](const BatchShape& batch) { return batch.micro_batches > 1; });
    if (all.empty())
      fail(
          loaded_, "strategy.offload.gradients",
          fmt::format("gradients that leave the device are those of one micro-batch, and train.batch.micro cuts the {} "
                      "samples of a rank into several; with {} there is one",
                      each, each));
    return all;
  }

  std::unique_ptr<GradientCompression> compression_of() const {
    return purpose_ == Purpose::train && mesh_.group_size(kTokenAxes) > 1
               ? strategies::compression(job_.strategy.data.compression_of_sums())
               : nullptr;
  }

  // What ranks of the tensor axis have alike becomes the same codes on all of them: no scale is shared, and no choice
  // of the largest made, with what each has a part of.
  void code_apart(AssembleOptions& options) const {
    const Compression::Kind kind = job_.strategy.data.compression_of_sums().kind;
    if (kind == Compression::Kind::int8) options.tensor_alignment = kInt8Block;
    options.cut_apart = kind == Compression::Kind::top_k;
  }

  // Then blocks that share a scale are of one tensor and of one slice: weights become the same codes on any number of
  // data ranks, whatever forms a unit.
  bool sends_int8() const {
    const ResolvedData data = resolve(job_.strategy.data, false);
    return mesh_.group_size(slice_axes(data.secondary)) > 1 && (data.int8_gathers || data.int8_reductions);
  }

  // What the purpose asks for, and what follows from reading the first.
  struct Graphs {
    std::optional<Graph> train, evaluate, sample, prompt;
    Optimizers optimizers;
    std::vector<std::string> begins;   // nodes that begin the chunks after the first
    std::vector<std::string> adapter;  // CompiledJob::adapter

    const Graph& any() const { return train ? *train : evaluate ? *evaluate : *sample; }
  };

  BuildOptions options_for(const BatchShape& batch, BuildOptions::Mode mode) const {
    BuildOptions options = build_options(job_, batch.micro * mesh_.group_size(kBatchAxes), mode);
    options.mesh = mesh_;
    options.sequence_parallel = job_.strategy.tensor.sequence_parallel;
    return options;
  }

  // A forward graph, its values laid over the mesh.
  Graph read(const BatchShape& batch, BuildOptions::Mode mode, Graphs& graphs) const {
    const BuildOptions options = options_for(batch, mode);
    Graph graph = read_graph(tree_, job_.model.with, options);
    if (job_.data.is_labelled() && mode != BuildOptions::Mode::score) check_labelled(graph);
    return laid(std::move(graph), options, graphs);
  }

  // A label is of a whole text, and the graph must know what of a row is padding.
  void check_labelled(const Graph& graph) const {
    bool padded = false;
    for (const ValueId id : graph.inputs) {
      const Value& input = graph.value(id);
      padded = padded || input.name == "lengths" || input.name == "documents";
      if (input.name == "targets" && input.shape().rank() != 1)
        fail(loaded_, "data.format",
             "a row has one label, and the model has targets " + input.shape().str() +
                 "; it needs a head for whole texts: a ...ForSequenceClassification folder, or `head: classes` or "
                 "`head: number` in model.with");
    }
    if (!padded)
      fail(loaded_, "data.format",
           "texts differ in length, and the graph reads neither `lengths` nor `documents`, which say what is padding");
  }

  // Graphs of the newest token and of a block of a prompt, in a sequence of the job's length. Every rank has a text of
  // its own, so their inputs are not cut over ranks.
  void read_generation(Graphs& graphs) const {
    BuildOptions options = build_options(job_, 1, BuildOptions::Mode::sample);
    const Graph whole = read_graph(tree_, job_.model.with, options);
    const auto newest = [&](std::int64_t tokens) {
      set_length(options, tokens);
      return laid(cached(read_graph(tree_, job_.model.with, options), whole), options, graphs);
    };
    graphs.sample = newest(1);
    if (const std::int64_t block = std::min(kPromptBlock, job_.data.seq_len); block > 1) graphs.prompt = newest(block);
  }

  Graph laid(Graph graph, const BuildOptions& options, Graphs& graphs) const {
    const BuildOptions::Mode mode = options.mode;
    raise(freeze(loaded_, graph, mode));
    if (mode == BuildOptions::Mode::train) check_excluded(graph);
    graph.mesh = mesh_;
    const bool first = mode == BuildOptions::Mode::train || mode == BuildOptions::Mode::score;
    if (first) graphs.begins = chunk_begins(loaded_, graph, num_chunks());
    strategies::assign_chunks(graph, graphs.begins);
    if (mode != BuildOptions::Mode::sample) cut_batch(graph);
    strategies::tensor_parallel(graph);
    const auto own = static_cast<ValueId>(graph.values.size());
    raise(adapt(loaded_, graph, options));
    // What is only read has no master beside the copy that kernels read. (Of an adapter's checkpoint the trained part
    // is told from its base by what the job trains.)
    if (purpose_ != Purpose::train && !job_.adapter)
      for (Parameter& parameter : graph.parameters) parameter.trainable = false;
    if (graphs.adapter.empty() && job_.adapter)
      for (const Parameter& parameter : graph.parameters)
        if (parameter.value >= own && parameter.init.copy_of.empty() && !parameter.init.quantized)
          graphs.adapter.push_back(graph.value(parameter.value).name);
    // A checkpoint has whole tables, but for one of an adapter.
    if (purpose_ == Purpose::train || job_.adapter) raise(split_rows(loaded_, graph));
    strategies::expert_parallel(graph, loaded_);
    strategies::context_parallel(graph, job_.strategy.context.kind);
    distribute(graph, job_.strategy.tensor.sequence_parallel ? Axes::of(Axis::tensor) : Axes{});
    return graph;
  }

  Graphs graphs_of(const BatchShape& batch) const {
    using enum BuildOptions::Mode;
    Graphs graphs;
    graphs.optimizers.used = {job_.train.optimizer};
    if (purpose_ == Purpose::train) {
      Graph& graph = graphs.train.emplace(read(batch, train, graphs));
      check_statistics(graph);
      graphs.optimizers = optimizers_of(loaded_, graph);
      differentiate(graph, job_.precision.reduce);
      propagate_placements(graph);
      multiply_in_fp8(graph);
      check_length(graph, batch, batch.micro_batches, kMostOfStage * mesh_.size(Axis::pipeline));
      recompute(graph, recompute_policy(job_.activation_checkpointing, gathers_again_));
    }
    if (purpose_ == Purpose::evaluate || (purpose_ == Purpose::train && job_.eval))
      multiply_in_fp8(graphs.evaluate.emplace(read(batch, evaluate, graphs)));
    if (purpose_ == Purpose::score) graphs.sample = read(batch, score, graphs);
    const bool answers =
        (purpose_ == Purpose::train || purpose_ == Purpose::evaluate) && job_.eval && job_.eval->generate;
    if (answers) check_answers();
    if (answers || purpose_ == Purpose::sample) read_generation(graphs);
    for (std::optional<Graph>* graph : {&graphs.train, &graphs.evaluate, &graphs.sample, &graphs.prompt})
      if (*graph) {
        make_rings(**graph, hardware_.device_bytes > 0);
        fuse(**graph, *hardware_.target);
      }
    return graphs;
  }

  // Generation and scores are in the compute dtype: a token is a row.
  void multiply_in_fp8(Graph& graph) const { raise(with_fp8(loaded_, graph, *hardware_.target)); }

  // A rank generates by itself: it has the whole model, if only for as long as it computes with it.
  void check_answers() const {
    const auto refuse = [&](Axes axes, const char* what) {
      if (mesh_.group_size(axes) > 1)
        fail(loaded_, "eval.generate.file",
             fmt::format("under {} parallelism no rank can generate answers; leave eval.generate out and use `trainer "
                         "eval`, which takes one rank, or train with a data strategy",
                         what));
    };
    refuse(Axes::of(Axis::pipeline), "pipeline");
    refuse(Axes::of(Axis::tensor), "tensor");
    refuse(kSequenceAxes, "context");
    refuse(Axes::of(Axis::expert), "expert");
  }

  // Running statistics are of all ranks' samples, which ranks that train apart do not share. One element has no
  // variance.
  void check_statistics(const Graph& graph) const {
    for (const Node& node : graph.nodes)
      if (node.op == Op::batch_norm_apply && integer(signature_of(graph, node), "count") == 1)
        throw JobError({mistake_at(node,
                                   "a channel has one element in a micro-batch, and so no variance to train with: "
                                   "a larger train.batch.micro (on each rank, without sync) gives it more")});
    if (!record_of(job_.strategy.data).averages) return;
    for (const GraphState& state : graph.states)
      if (state.initial && moves(graph, state))
        fail(loaded_, "strategy.data",
             fmt::format("ranks that train apart cannot keep {}, which is of the samples of all of them",
                         graph.value(state.value).name));
  }

  void check_parts(const Plan& plan) const {
    std::set<std::string> units;
    for (const Role& role : plan.roles)
      for (const Unit& unit : role.units)
        if (unit.trained()) units.insert(unit.name);
    const std::int64_t parts = job_.strategy.data.parts, have = std::ssize(units);
    if (parts > have)
      fail(loaded_, "strategy.data.parts",
           fmt::format("{} parts are made of units of parameters, and there {} only {}; strategy.wrap says what is one",
                       parts, have == 1 ? "is" : "are", have));
  }

  void check_excluded(const Graph& graph) const {
    for (const std::string& pattern : job_.strategy.wrap.excluded)
      if (std::none_of(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return glob_matches(pattern, node.name); }))
        fail(loaded_, "strategy.wrap.excluded", "no node matches " + pattern);
  }

  int num_chunks() const {
    if (given_) return given_->chunks();
    return mesh_.size(Axis::pipeline) *
           (mesh_.size(Axis::pipeline) > 1 ? static_cast<int>(job_.strategy.pipeline.virtual_stages) : 1);
  }

  Schedule schedule_of(const BatchShape& batch) const {
    if (given_) return given_->schedule;
    const int stages = mesh_.size(Axis::pipeline), virtual_stages = num_chunks() / stages;
    const strategies::PipelineEntry& entry = strategies::pipeline_schedule(job_.strategy.pipeline.schedule, stages);
    const int actions = batch.micro_batches / together();  // of a chunk's pass
    if (const auto why = entry.refuses(stages, virtual_stages, actions))
      fail(loaded_, "strategy.pipeline.schedule", *why);
    return entry.make(stages, virtual_stages, actions);
  }

  // A rank's samples are its own along the axes of the batch.
  void cut_batch(Graph& graph) const {
    for (Axis axis : kAxes)
      if (kBatchAxes.has(axis) && mesh_.size(axis) > 1)
        for (ValueId input : graph.inputs) graph.value(input).spec.place(axis, Placement::shard(0));
  }

  // Of `graphs`, which outlive it, as all else that it points to.
  AssembleOptions options_of(const Graphs& graphs, const BatchShape& batch, const DataStrategy& data,
                             const GradientCompression* compression) const {
    const auto pointer = [](const std::optional<Graph>& graph) { return graph ? &*graph : nullptr; };
    AssembleOptions options;
    options.train = pointer(graphs.train);
    options.evaluate = pointer(graphs.evaluate);
    options.sample = pointer(graphs.sample);
    options.prompt = pointer(graphs.prompt);
    if (graphs.train)
      options.optimizer_of = [&graphs](const std::string& name) { return graphs.optimizers.of_parameter.at(name); };
    options.optimizers.clear();
    for (const OptimizerJob& optimizer : graphs.optimizers.used)
      options.optimizers.push_back(optimizer_spec(optimizer));
    options.mesh = mesh_;
    options.groups = units_of(loaded_, graphs.any(), options.optimizer_of);
    options.reduce = job_.precision.reduce;
    options.compute = job_.precision.compute;
    options.micro_batch = batch.micro * job_.data.sequences();
    options.micro_batches = batch.micro_batches;
    options.clip_norm = job_.train.clip_norm.value_or(0);
    options.loss_scaling = loss_scaling(job_.precision.loss_scale);
    options.data = &data;
    options.compression = compression;
    const OffloadJob& offload = job_.strategy.offload;
    options.offload = {strategies::space_of(offload.optimizer),  strategies::space_of(offload.gradients),
                       strategies::space_of(offload.parameters), strategies::space_of(offload.activations),
                       offload.update == UpdateOn::host,         hardware_.offload_chunk};
    if (compression != nullptr) options.slice_alignment = kInt8Block;
    if (sends_int8()) options.slice_alignment = options.tensor_alignment = kInt8Block;
    if (compression != nullptr && mesh_.size(Axis::tensor) > 1) code_apart(options);
    options.together = together();
    options.schedule = schedule_of(batch);
    options.target = hardware_.target;
    options.limit_bytes = limit_bytes();
    if (graphs.train)
      options.on_list = [this, &graphs, &batch](int micro_batches) {
        check_length(*graphs.train, batch, micro_batches, kMostListed);
      };
    options.proved = false;
    options.loops = hardware_.loops;
    return options;
  }

  CompiledJob assemble_with(const BatchShape& batch, const DataStrategy& data) const {
    Graphs graphs = graphs_of(batch);
    const std::unique_ptr<GradientCompression> compression = compression_of();
    AssembleOptions options = options_of(graphs, batch, data, compression.get());

    CompiledJob result;
    if (finish_ == Finish::draft) options.instead_of_list = [&](std::int64_t least) { result.least_as_list = least; };
    result.plan = assemble(options);
    if (graphs.train) check_parts(result.plan);
    result.memory = report_memory(result.plan);
    result.limit_bytes = limit_bytes();
    result.host_limit_bytes = host_limit();
    const std::int64_t on_host = most_bytes(result.plan, Space::host);
    result.fits = result.peak_bytes() <= result.limit_bytes && on_host <= result.host_limit_bytes.value_or(on_host);
    result.host_bytes = host_bytes(result.peak_bytes(), on_host);
    result.batch = batch;
    result.strategy = resolve_strategy(job_, mesh_, graphs.any(), graphs.begins);
    result.strategy.tensor.keep = gathers_again_ ? TensorKeep::shard : TensorKeep::gathered;
    if (given_) result.strategy.pipeline.virtual_stages = given_->chunks() / given_->stages();
    result.schedule = std::move(options.schedule);
    result.chunks = chunks_of(graphs.any(), result.schedule);
    add_graph_facts(graphs.any(), result);
    result.counts_correct = graphs.evaluate && graphs.evaluate->loss.scores != kNone;
    result.optimizers = std::move(graphs.optimizers.used);
    result.adapter = std::move(graphs.adapter);
    if (job_.precision.matmul == MatmulPrecision::fp8 && (graphs.train || graphs.evaluate))
      result.fp8 = hardware_.target->fp8_scales();
    const double passes =
        static_cast<double>(batch.micro_batches) * batch.data_ranks * mesh_.group_size(kSequenceAxes | Axis::tensor);
    result.flops_per_step *= passes;
    result.model_flops_per_step *= passes;
    return result;
  }

  /// Memory of one rank.
  std::int64_t limit_bytes() const {
    return memory_limit(job_, hardware_, std::max<std::int64_t>(1, mesh_.world_size() / job_.cluster.nodes));
  }

  /// Beside an allocation of `taken` bytes on the device and `on_host` on its host. A processor's is the memory that
  /// the plan itself lies in; of a GPU's host that nothing describes all is taken to be free.
  std::int64_t host_bytes(std::int64_t taken, std::int64_t on_host) const {
    if (hardware_.device_bytes == 0) return std::max<std::int64_t>(0, limit_bytes() - taken);
    const std::optional<std::int64_t> host = host_limit();
    return host ? std::max<std::int64_t>(0, *host - on_host) : std::numeric_limits<std::int64_t>::max();
  }

  /// Of a rank on a GPU.
  std::optional<std::int64_t> host_limit() const {
    const std::int64_t host = hardware_.machine == nullptr ? 0 : hardware_.machine->host_memory_bytes;
    if (hardware_.device_bytes == 0 || host == 0) return {};
    return host * job_.cluster.nodes / std::max<std::int64_t>(1, mesh_.world_size());
  }

  void check_length(const Graph& graph, const BatchShape& batch, int micro_batches, std::int64_t most) const {
    const std::int64_t instructions = static_cast<std::int64_t>(graph.nodes.size()) * micro_batches;
    if (instructions <= most) return;
    fail(loaded_, "train.batch",
         fmt::format("{} micro-batches of {} samples make a step of some {} instructions in all stages together, of "
                     "which a plan holds {}; a larger train.batch.micro "
                     "or a smaller train.batch.global would help",
                     batch.micro_batches, batch.micro, instructions, most));
  }

  const LoadedJob& loaded_;
  const Job& job_;
  const Hardware& hardware_;
  const Purpose purpose_;
  const yaml::Node tree_;
  bool gathers_again_;  // TensorKeep::shard
  Finish finish_ = Finish::proved;
  Mesh mesh_;
  std::optional<strategies::GivenSchedule> given_;  // by a file
};

}  // namespace

LoadedJob as_compiled(const LoadedJob& loaded, const CompiledJob& compiled) {
  LoadedJob fixed = loaded;
  fixed.job.strategy = compiled.strategy;
  fixed.job.strategy.free = {};
  fixed.job.train.batch.micro = compiled.batch.micro;
  fixed.job.activation_checkpointing = compiled.recompute;
  return fixed;
}

CompiledJob compile_fixed(const LoadedJob& loaded, const Hardware& hardware, Purpose purpose, Finish finish) {
  return Compilation(loaded, hardware, purpose).run(finish);
}

std::int64_t least_bytes(const LoadedJob& loaded, const Hardware& hardware, const std::vector<int>& stages) {
  return Compilation(loaded, hardware, Purpose::train).least_bytes(stages);
}

void check_batch(const LoadedJob& loaded, const Mesh& mesh) {
  batches(loaded, mesh.group_size(kBatchAxes), mesh.size(Axis::pipeline));
}

}  // namespace trainer
