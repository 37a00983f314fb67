// Every name that a job may use for a value, by enum.
#include "engine/job/job.h"

namespace trainer {

ValueNames<AdapterKind> names_of(AdapterKind) { return {{AdapterKind::lora, "lora"}}; }
ValueNames<Quantization> names_of(Quantization) {
  using enum Quantization;
  return {{none, "none"}, {int8, "int8"}, {nf4, "nf4"}};
}
ValueNames<DataFormat> names_of(DataFormat) {
  using enum DataFormat;
  return {{text, "text"},        {tokens, "tokens"},         {table, "table"},
          {idx, "idx"},          {tensors, "tensors"},       {documents, "documents"},
          {chat, "chat"},        {completion, "completion"}, {preference, "preference"},
          {labelled, "labelled"}};
}
ValueNames<Tokenizer> names_of(Tokenizer) { return {{Tokenizer::bytes, "bytes"}, {Tokenizer::chars, "chars"}}; }
ValueNames<TokenType> names_of(TokenType) { return {{TokenType::u16, "u16"}, {TokenType::u32, "u32"}}; }
ValueNames<Normalize> names_of(Normalize) { return {{Normalize::none, "none"}, {Normalize::standard, "standard"}}; }
ValueNames<TrainOn> names_of(TrainOn) {
  using enum TrainOn;
  return {{assistant, "assistant"}, {last, "last"}, {completion, "completion"}, {all, "all"}};
}
ValueNames<Packing> names_of(Packing) { return {{Packing::none, "none"}, {Packing::documents, "documents"}}; }
ValueNames<TooLong> names_of(TooLong) {
  using enum TooLong;
  return {{error, "error"}, {drop, "drop"}, {truncate, "truncate"}, {split, "split"}};
}
ValueNames<ObjectiveKind> names_of(ObjectiveKind) {
  return {{ObjectiveKind::automatic, "auto"}, {ObjectiveKind::dpo, "dpo"}};
}
ValueNames<OptimizerName> names_of(OptimizerName) {
  using enum OptimizerName;
  return {{sgd, "sgd"}, {adam, "adam"}, {adamw, "adamw"}, {lion, "lion"}, {muon, "muon"}};
}
ValueNames<Decay> names_of(Decay) { return {{Decay::matrices, "matrices"}, {Decay::all, "all"}}; }
ValueNames<States> names_of(States) { return {{States::f32, "f32"}, {States::bf16, "bf16"}, {States::int8, "int8"}}; }
ValueNames<MuonAdjust> names_of(MuonAdjust) {
  using enum MuonAdjust;
  return {{original, "original"}, {match_rms_adamw, "match_rms_adamw"}};
}
ValueNames<ScheduleName> names_of(ScheduleName) {
  using enum ScheduleName;
  return {{constant, "constant"}, {linear, "linear"}, {cosine, "cosine"}, {wsd, "wsd"}};
}
ValueNames<OnNan> names_of(OnNan) {
  using enum OnNan;
  return {{stop, "stop"}, {skip, "skip"}, {rollback, "rollback"}};
}
ValueNames<MatmulPrecision> names_of(MatmulPrecision) {
  return {{MatmulPrecision::none, "none"}, {MatmulPrecision::fp8, "fp8"}};
}
ValueNames<CheckpointingMode> names_of(CheckpointingMode) {
  using enum CheckpointingMode;
  return {{none, "none"}, {full, "full"}, {selective, "selective"}, {every_n, "every_n"}, {automatic, "auto"}};
}
ValueNames<DataKind> names_of(DataKind) {
#define TRAINER_NAMED(kind) {DataKind::kind, #kind},
  return {TRAINER_DATA_KINDS(TRAINER_NAMED)};
#undef TRAINER_NAMED
}
ValueNames<Sharding> names_of(Sharding) {
  using enum Sharding;
  return {{full_shard, "full_shard"},
          {shard_grad_op, "shard_grad_op"},
          {no_shard, "no_shard"},
          {hybrid_shard, "hybrid_shard"}};
}
ValueNames<Keep> names_of(Keep) {
  using enum Keep;
  return {{automatic, "auto"}, {use, "use"}, {pass, "pass"}, {step, "step"}};
}
ValueNames<Reduce> names_of(Reduce) {
  using enum Reduce;
  return {{automatic, "auto"}, {micro_batch, "micro_batch"}, {step, "step"}};
}
ValueNames<SentAs> names_of(SentAs) { return {{SentAs::exact, "exact"}, {SentAs::int8, "int8"}}; }
ValueNames<TensorKeep> names_of(TensorKeep) {
  using enum TensorKeep;
  return {{automatic, "auto"}, {gathered, "gathered"}, {shard, "shard"}};
}
ValueNames<Compression::Kind> names_of(Compression::Kind) {
#define TRAINER_NAMED(kind) {Compression::Kind::kind, #kind},
  return {TRAINER_NAMED(none) TRAINER_COMPRESSIONS(TRAINER_NAMED)};
#undef TRAINER_NAMED
}
ValueNames<ContextKind> names_of(ContextKind) { return {{ContextKind::gather, "gather"}, {ContextKind::ring, "ring"}}; }
ValueNames<PipelineSchedule> names_of(PipelineSchedule) {
  return {
#define TRAINER_SCHEDULE(schedule, name, ...) {PipelineSchedule::schedule, name},
#include "engine/job/pipeline_schedules.inc"
  };
}
ValueNames<SplitPolicy> names_of(SplitPolicy) {
  using enum SplitPolicy;
  return {{automatic, "auto"}, {uniform, "uniform"}, {names, "names"}};
}
ValueNames<WrapPolicy> names_of(WrapPolicy) {
  using enum WrapPolicy;
  return {{automatic, "auto"}, {transformer, "transformer"}, {size, "size"}, {names, "names"}, {none, "none"}};
}
ValueNames<OffloadTo> names_of(OffloadTo) {
  using enum OffloadTo;
  return {{none, "none"}, {host, "host"}, {disk, "disk"}};
}
ValueNames<UpdateOn> names_of(UpdateOn) {
  using enum UpdateOn;
  return {{device, "device"}, {host, "host"}};
}
ValueNames<Profile> names_of(Profile) {
  using enum Profile;
  return {{none, "none"}, {high_bandwidth, "high_bandwidth"}, {low_bandwidth, "low_bandwidth"}};
}
ValueNames<Device> names_of(Device) {
  using enum Device;
  return {{automatic, "auto"}, {cpu, "cpu"}, {cuda, "cuda"}};
}
ValueNames<Backend> names_of(Backend) {
  using enum Backend;
  return {{automatic, "auto"}, {threads, "threads"}, {mpi, "mpi"}, {nccl, "nccl"}};
}
ValueNames<CheckpointFormat> names_of(CheckpointFormat) {
  using enum CheckpointFormat;
  return {{full, "full"}, {sharded, "sharded"}};
}
ValueNames<Goal> names_of(Goal) { return {{Goal::time, "time"}, {Goal::memory, "memory"}, {Goal::cost, "cost"}}; }

std::string schedule_name(const PipelineStrategyJob& pipeline) {
  return pipeline.schedule_file.empty() ? std::string(name_of(pipeline.schedule)) : pipeline.schedule_file;
}

}  // namespace trainer
