#include "engine/job/names.h"

namespace trainer {

template <>
const Names<AdapterKind>& names() {
  static const Names<AdapterKind> all{{AdapterKind::lora, "lora"}};
  return all;
}
template <>
const Names<DataFormat>& names() {
  static const Names<DataFormat> all{
      {DataFormat::text, "text"}, {DataFormat::tokens, "tokens"}, {DataFormat::table, "table"}, {DataFormat::idx, "idx"}};
  return all;
}
template <>
const Names<Tokenizer>& names() {
  static const Names<Tokenizer> all{{Tokenizer::bytes, "bytes"}, {Tokenizer::chars, "chars"}};
  return all;
}
template <>
const Names<TokenType>& names() {
  static const Names<TokenType> all{{TokenType::u16, "u16"}, {TokenType::u32, "u32"}};
  return all;
}
template <>
const Names<Normalize>& names() {
  static const Names<Normalize> all{{Normalize::none, "none"}, {Normalize::standard, "standard"}};
  return all;
}
template <>
const Names<OptimizerName>& names() {
  static const Names<OptimizerName> all{
      {OptimizerName::sgd, "sgd"}, {OptimizerName::adam, "adam"}, {OptimizerName::adamw, "adamw"}, {OptimizerName::lion, "lion"},
      {OptimizerName::muon, "muon"}};
  return all;
}
template <>
const Names<Decay>& names() {
  static const Names<Decay> all{{Decay::matrices, "matrices"}, {Decay::all, "all"}};
  return all;
}
template <>
const Names<States>& names() {
  static const Names<States> all{{States::f32, "f32"}, {States::bf16, "bf16"}, {States::int8, "int8"}};
  return all;
}
template <>
const Names<MuonAdjust>& names() {
  static const Names<MuonAdjust> all{{MuonAdjust::original, "original"}, {MuonAdjust::match_rms_adamw, "match_rms_adamw"}};
  return all;
}
template <>
const Names<ScheduleName>& names() {
  static const Names<ScheduleName> all{
      {ScheduleName::constant, "constant"}, {ScheduleName::linear, "linear"}, {ScheduleName::cosine, "cosine"}, {ScheduleName::wsd, "wsd"}};
  return all;
}
template <>
const Names<OnNan>& names() {
  static const Names<OnNan> all{{OnNan::stop, "stop"}, {OnNan::skip, "skip"}, {OnNan::rollback, "rollback"}};
  return all;
}
template <>
const Names<CheckpointingMode>& names() {
  using enum CheckpointingMode;
  static const Names<CheckpointingMode> all{
      {none, "none"}, {full, "full"}, {selective, "selective"}, {every_n, "every_n"}, {automatic, "auto"}};
  return all;
}
template <>
const Names<DataKind>& names() {
  using enum DataKind;
  static const Names<DataKind> all{{ddp, "ddp"},     {zero1, "zero1"}, {zero2, "zero2"},
                                   {zero3, "zero3"}, {fsdp, "fsdp"},   {local_sgd, "local_sgd"}};
  return all;
}
template <>
const Names<Sharding>& names() {
  using enum Sharding;
  static const Names<Sharding> all{
      {full_shard, "full_shard"}, {shard_grad_op, "shard_grad_op"}, {no_shard, "no_shard"}, {hybrid_shard, "hybrid_shard"}};
  return all;
}
template <>
const Names<Keep>& names() {
  static const Names<Keep> all{{Keep::automatic, "auto"}, {Keep::use, "use"}, {Keep::pass, "pass"}, {Keep::step, "step"}};
  return all;
}
template <>
const Names<Reduce>& names() {
  static const Names<Reduce> all{{Reduce::automatic, "auto"}, {Reduce::micro_batch, "micro_batch"}, {Reduce::step, "step"}};
  return all;
}
template <>
const Names<Compression::Kind>& names() {
  using enum Compression::Kind;
  static const Names<Compression::Kind> all{{none, "none"}, {bf16, "bf16"}, {int8, "int8"}, {top_k, "top_k"}};
  return all;
}
template <>
const Names<ContextKind>& names() {
  static const Names<ContextKind> all{{ContextKind::gather, "gather"}};
  return all;
}
template <>
const Names<PipelineSchedule>& names() {
  using enum PipelineSchedule;
  static const Names<PipelineSchedule> all{
      {gpipe, "gpipe"}, {one_f_one_b, "1f1b"}, {interleaved, "interleaved"}, {looped_bfs, "looped_bfs"}, {zb_h1, "zb_h1"},
      {zb_h2, "zb_h2"}, {zb_v, "zb_v"}};
  return all;
}
template <>
const Names<SplitPolicy>& names() {
  static const Names<SplitPolicy> all{{SplitPolicy::automatic, "auto"}, {SplitPolicy::uniform, "uniform"}, {SplitPolicy::names, "names"}};
  return all;
}
template <>
const Names<WrapPolicy>& names() {
  using enum WrapPolicy;
  static const Names<WrapPolicy> all{
      {automatic, "auto"}, {transformer, "transformer"}, {size, "size"}, {WrapPolicy::names, "names"}, {none, "none"}};
  return all;
}
template <>
const Names<Profile>& names() {
  static const Names<Profile> all{
      {Profile::none, "none"}, {Profile::high_bandwidth, "high_bandwidth"}, {Profile::low_bandwidth, "low_bandwidth"}};
  return all;
}
template <>
const Names<Device>& names() {
  static const Names<Device> all{{Device::automatic, "auto"}, {Device::cpu, "cpu"}, {Device::cuda, "cuda"}};
  return all;
}
template <>
const Names<Backend>& names() {
  static const Names<Backend> all{
      {Backend::automatic, "auto"}, {Backend::threads, "threads"}, {Backend::mpi, "mpi"}, {Backend::nccl, "nccl"}};
  return all;
}
template <>
const Names<CheckpointFormat>& names() {
  static const Names<CheckpointFormat> all{{CheckpointFormat::full, "full"}, {CheckpointFormat::sharded, "sharded"}};
  return all;
}

template <>
const Names<Goal>& names() {
  static const Names<Goal> all{{Goal::time, "time"}, {Goal::memory, "memory"}, {Goal::cost, "cost"}};
  return all;
}

namespace {

template <typename E>
std::string_view find_name(E value) {
  for (const auto& [other, name] : names<E>()) {
    if (other == value) return name;
  }
  fail_check("named", __FILE__, __LINE__, "an enum value without a name");
}

}  // namespace

std::string_view name_of(AdapterKind value) { return find_name(value); }
std::string_view name_of(DataFormat value) { return find_name(value); }
std::string_view name_of(Tokenizer value) { return find_name(value); }
std::string_view name_of(TokenType value) { return find_name(value); }
std::string_view name_of(Normalize value) { return find_name(value); }
std::string_view name_of(OptimizerName value) { return find_name(value); }
std::string_view name_of(Decay value) { return find_name(value); }
std::string_view name_of(States value) { return find_name(value); }
std::string_view name_of(MuonAdjust value) { return find_name(value); }
std::string_view name_of(ScheduleName value) { return find_name(value); }
std::string_view name_of(OnNan value) { return find_name(value); }
std::string_view name_of(CheckpointingMode value) { return find_name(value); }
std::string_view name_of(DataKind value) { return find_name(value); }
std::string_view name_of(Sharding value) { return find_name(value); }
std::string_view name_of(Keep value) { return find_name(value); }
std::string_view name_of(Reduce value) { return find_name(value); }
std::string_view name_of(Compression::Kind value) { return find_name(value); }
std::string_view name_of(ContextKind value) { return find_name(value); }
std::string_view name_of(PipelineSchedule value) { return find_name(value); }
std::string_view name_of(SplitPolicy value) { return find_name(value); }
std::string_view name_of(WrapPolicy value) { return find_name(value); }
std::string_view name_of(Profile value) { return find_name(value); }
std::string_view name_of(Device value) { return find_name(value); }
std::string_view name_of(Backend value) { return find_name(value); }
std::string_view name_of(CheckpointFormat value) { return find_name(value); }
std::string_view name_of(Goal value) { return find_name(value); }

}  // namespace trainer
