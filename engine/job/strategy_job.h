// The strategy of a job: how its work is spread over ranks, part by part. Part of job.h; apart from it for those who
// need no more of a job, and with the lists of words that code, schema and documents are made from.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/job/names.h"

namespace trainer {

/// Kinds of data strategies, and of compressions of their gradients, as jobs name them; messages list them in this
/// order. Their records are in data_strategies.cpp, their code is strategies/data/ and strategies/compression/.
#define TRAINER_DATA_KINDS(X) X(ddp) X(zero1) X(zero2) X(zero3) X(fsdp) X(local_sgd)
#define TRAINER_COMPRESSIONS(X) X(bf16) X(int8) X(top_k)
#define TRAINER_VALUE(name) name,

enum class DataKind : std::uint8_t { TRAINER_DATA_KINDS(TRAINER_VALUE) };
enum class Sharding : std::uint8_t { full_shard, shard_grad_op, no_shard, hybrid_shard };
enum class Keep : std::uint8_t { automatic, use, pass, step };
enum class Reduce : std::uint8_t { automatic, micro_batch, step };
/// How weights or gradients travel between slices: in their own dtype, or as codes of 8 bits (core/compression.h).
enum class SentAs : std::uint8_t { exact, int8 };

struct Compression {
  enum class Kind : std::uint8_t { none, TRAINER_COMPRESSIONS(TRAINER_VALUE) } kind = Kind::none;
  double fraction = 1;  ///< top_k: the part of the gradient that is sent
};

/// DiLoCo's outer optimizer: SGD on the averages, whose gradient is the way from the average back to where the round
/// began.
struct OuterJob {
  double lr = 0.7;
  double momentum = 0.9;
  bool nesterov = true;  ///< false where there is no momentum
  Compression compression{};
};

struct DataStrategyJob {
  DataKind kind = DataKind::ddp;
  Sharding sharding = Sharding::full_shard;  ///< fsdp
  std::optional<std::int64_t> replicate;     ///< fsdp; none: 1, or under hybrid_shard the number of nodes
  Keep keep = Keep::automatic;               ///< zero3, fsdp
  Reduce reduce = Reduce::automatic;         ///< ddp, zero3, fsdp
  SentAs gather = SentAs::exact;             ///< zero3, fsdp: working weights; exact: precision.compute
  SentAs reduce_dtype = SentAs::exact;       ///< zero2, zero3, fsdp: gradients; exact: precision.reduce
  /// zero3, fsdp full_shard: ranks that share a second copy of the working weights, out of which they gather after the
  /// first time in a step; 1: there is none.
  std::int64_t secondary = 1;
  static constexpr std::int64_t kOfNode = 0;  ///< in place of their number: those of a node
  std::int64_t prefetch = 1;                  ///< zero3, fsdp: units gathered ahead
  double bucket_mb = 25;                      ///< 2^20 bytes; units smaller than this share a collective
  Compression compression;
  std::int64_t every = 10;        ///< local_sgd: steps from one average to the next
  std::optional<OuterJob> outer;  ///< local_sgd; none: parameters and states are averaged, no more
  bool delayed = false;           ///< local_sgd: the average is applied one round late; then no `outer`
  std::int64_t parts = 1;         ///< local_sgd: of the model, each averaged at a step of its own; of several, `outer`

  /// Of what ranks send: gradients, or outer gradients.
  const Compression& compression_of_sums() const { return outer ? outer->compression : compression; }
  /// The step of a round after which a part is averaged: the last part's is the last.
  std::int64_t step_of_part(std::int64_t part) const { return (part + 1) * every / parts; }
};

/// What sequence parallelism keeps for the backward pass of what it gathers: all of it, or the rank's shard, which is
/// gathered again.
enum class TensorKeep : std::uint8_t { automatic, gathered, shard };

struct TensorStrategyJob {
  std::optional<std::int64_t> degree = 1;  ///< none: all devices (`strategy: tensor`)
  bool sequence_parallel = false;          ///< false where the degree is 1
  TensorKeep keep = TensorKeep::automatic;
  bool overlap = false;  ///< micro-batches go in pairs: what one of a pair sends travels while the other computes
};

/// How ranks that have a part of each sequence come to attend to all of it.
enum class ContextKind : std::uint8_t { gather, ring };

struct ContextStrategyJob {
  std::int64_t degree = 1;
  ContextKind kind = ContextKind::gather;
};

struct ExpertStrategyJob {
  std::int64_t degree = 1;
};

enum class PipelineSchedule : std::uint8_t {
#define TRAINER_SCHEDULE(schedule, ...) schedule,
#include "engine/job/pipeline_schedules.inc"
};
enum class SplitPolicy : std::uint8_t { automatic, uniform, names };

struct PipelineStrategyJob {
  std::optional<std::int64_t> degree = 1;  ///< none: all devices (`strategy: pipeline`)
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::string schedule_file;        ///< not empty: the schedule that stands there, which also says how many chunks
  std::int64_t virtual_stages = 1;  ///< chunks of a stage
  SplitPolicy split_policy = SplitPolicy::automatic;
  std::vector<std::string>
      split;  ///< names: the nodes or blocks that begin the chunks after the first, one less than chunks
};

/// Its name, or that of its file.
std::string schedule_name(const PipelineStrategyJob& pipeline);

enum class WrapPolicy : std::uint8_t { automatic, transformer, size, names, none };

/// What becomes a unit. automatic: named blocks where parameters are gathered for use or are averaged in parts, else
/// buckets of bucket_mb.
struct WrapJob {
  WrapPolicy policy = WrapPolicy::automatic;
  std::string block = "TransformerBlock";  ///< transformer: kind of block that is a unit
  std::int64_t min_params = 100'000'000;   ///< size: a unit has at least so many parameters
  std::vector<std::string> names;          ///< names: nodes or blocks that are a unit each
  std::vector<std::string> excluded;       ///< globs over nodes that keep f32 whatever precision.compute is
};

/// Where something is kept while it is not used: on the device, in the memory of its host, or in a file.
enum class OffloadTo : std::uint8_t { none, host, disk };

/// Whose processor updates the weights: the device's, or that of the host of a GPU.
enum class UpdateOn : std::uint8_t { device, host };

struct OffloadJob {
  OffloadTo optimizer = OffloadTo::none;  ///< masters and the optimizer's states
  OffloadTo gradients = OffloadTo::none, parameters = OffloadTo::none;
  OffloadTo activations = OffloadTo::none;  ///< what the backward pass needs of the forward pass
  UpdateOn update = UpdateOn::device;
  std::string dir;  ///< disk: where the files are

  struct Part {
    std::string_view key;
    OffloadTo place;
  };
  /// What a job may keep off the device, by its keys.
  std::array<Part, 4> parts() const {
    return {
        {{"optimizer", optimizer}, {"gradients", gradients}, {"parameters", parameters}, {"activations", activations}}};
  }
  bool any() const {
    return std::ranges::any_of(parts(), [](const Part& part) { return part.place != OffloadTo::none; });
  }
  bool uses_disk() const {
    return std::ranges::any_of(parts(), [](const Part& part) { return part.place == OffloadTo::disk; });
  }
};

enum class Profile : std::uint8_t { none, high_bandwidth, low_bandwidth };

/// Parts of a strategy that the search decides; what a person fixed beside them stands.
struct FreeParts {
  bool data = false;    ///< kind and its degrees
  bool tensor = false;  ///< degree
  bool sequence_parallel = false;
  bool pipeline = false;  ///< degree
  bool schedule = false;
  bool virtual_stages = false;
  bool context = false;  ///< degree
  bool expert = false;   ///< degree
  friend bool operator==(const FreeParts&, const FreeParts&) = default;
  bool any() const {
    return data || tensor || sequence_parallel || pipeline || schedule || virtual_stages || context || expert;
  }
};

struct StrategyJob {
  FreeParts free{true, true, true, true, true, true, true, true};  ///< `strategy: auto` is all of them
  DataStrategyJob data;
  TensorStrategyJob tensor;
  ExpertStrategyJob expert;
  ContextStrategyJob context;
  PipelineStrategyJob pipeline;
  OffloadJob offload;
  WrapJob wrap;
  Profile profile = Profile::none;  ///< what it fills in is in `data` already
};

ValueNames<DataKind> names_of(DataKind);
ValueNames<Sharding> names_of(Sharding);
ValueNames<Keep> names_of(Keep);
ValueNames<Reduce> names_of(Reduce);
ValueNames<SentAs> names_of(SentAs);
ValueNames<TensorKeep> names_of(TensorKeep);
ValueNames<Compression::Kind> names_of(Compression::Kind);
ValueNames<ContextKind> names_of(ContextKind);
ValueNames<PipelineSchedule> names_of(PipelineSchedule);
ValueNames<SplitPolicy> names_of(SplitPolicy);
ValueNames<WrapPolicy> names_of(WrapPolicy);
ValueNames<OffloadTo> names_of(OffloadTo);
ValueNames<UpdateOn> names_of(UpdateOn);
ValueNames<Profile> names_of(Profile);

#undef TRAINER_VALUE

}  // namespace trainer
