// Which values are worth a look, axis by axis.
#include "engine/cost/domains.h"

#include <algorithm>
#include <utility>

#include "engine/job/data_strategies.h"
#include "engine/job/nearest_numbers.h"

namespace trainer::cost {
namespace {

constexpr std::int64_t kShortestPart = 4096;  // positions of a part of a sequence that is looked at
constexpr std::int64_t kLongSequence = 65536;

std::vector<int> divisors_up_to(std::int64_t number, std::int64_t most) {
  std::vector<int> result;
  for (const std::int64_t divisor : divisors(number))
    if (divisor <= most) result.push_back(static_cast<int>(divisor));
  return result;
}

}  // namespace

void Refusals::add(const std::string& what, int degree, const std::string& why) {
  add(what + " " + std::to_string(degree) + ": " + why);
}

void Refusals::add(const Refusals& others) {
  for (const std::string& text : others.texts_) add(text);
}

void Refusals::add(const std::string& text) {
  if (seen_.insert(text).second) texts_.push_back(text);
}

// Tokens travel within a node, unless there are as many experts as ranks of several.
std::vector<int> Domains::experts(Refusals& refusals) const {
  const auto fixed = static_cast<int>(job_.strategy.expert.degree);
  if (space_.world_size % fixed != 0)
    refusals.add("expert", fixed, "does not divide the " + std::to_string(space_.world_size) + " ranks");
  if (!free_.expert) return {fixed};
  std::vector<int> result{1};
  const std::int64_t all = goes_with_experts() ? profiles_.experts() : 1;
  for (int degree = 2; degree <= std::min<std::int64_t>(all, space_.world_size); ++degree)
    if (all % degree == 0 && space_.world_size % degree == 0 && fills_nodes(degree)) result.push_back(degree);
  return result;
}

bool Domains::goes_with_experts() const {
  return !(job_.eval && job_.eval->generate) && (free_.data || !record_of(job_.strategy.data).averages);
}

// Parts of a sequence are worth gathering for where they are long, and within a node. Of a sequence so long that its
// parts hide what crosses nodes, or that a node cannot hold, they may be more; and only then do both they and experts
// have ranks, since together they take those of several nodes.
std::vector<int> Domains::contexts(int expert, Refusals& refusals) const {
  const auto fixed = static_cast<int>(job_.strategy.context.degree);
  const int ranks = space_.world_size / expert;
  if (ranks % fixed != 0) {
    refusals.add("context", fixed, "does not divide the " + std::to_string(ranks) + " ranks");
    return {};
  }
  if (!free_.context) return {fixed};
  std::vector<int> result{1};
  if (expert > 1 && !long_sequences()) return result;
  const int most = long_sequences() ? ranks : space_.ranks_per_node;
  for (int degree = 2; cuts_sequences() && degree <= most; degree *= 2)
    if (fills_nodes(degree) && ranks % degree == 0 && job_.data.seq_len % degree == 0 &&
        job_.data.seq_len / degree >= kShortestPart)
      result.push_back(degree);
  return result;
}

// A ring computes chunk by chunk, of which a part has two: it is looked at where these are long.
std::vector<ContextKind> Domains::context_kinds(int context) const {
  if (context == 1) return {ContextKind::gather};
  if (!free_.context) return {job_.strategy.context.kind};
  if (job_.data.seq_len / (2 * context) < kShortestPart) return {ContextKind::gather};
  return {ContextKind::gather, ContextKind::ring};
}

bool Domains::long_sequences() const { return job_.data.seq_len >= kLongSequence; }

// Whether so many ranks are a part of a node, or nodes.
bool Domains::fills_nodes(int ranks) const {
  return space_.ranks_per_node % ranks == 0 || ranks % space_.ranks_per_node == 0;
}

bool Domains::cuts_sequences() const { return job_.data.is_text() && job_.train.objective.kind != ObjectiveKind::dpo; }

// Beyond a node its collectives, which nothing hides, would cross the slowest links.
std::vector<int> Domains::tensors(int context) const {
  const std::int64_t world = space_.world_size / context;
  if (!free_.tensor) return {static_cast<int>(job_.strategy.tensor.degree.value_or(world))};
  std::vector<int> result;
  for (int degree : divisors_up_to(world, space_.ranks_per_node))
    if (space_.ranks_per_node % degree == 0 && fills_nodes(degree * context) &&
        (long_sequences() || degree * context <= space_.ranks_per_node))
      result.push_back(degree);
  return result;
}

std::vector<int> Domains::pipelines(int context, int tensor, Refusals& refusals) const {
  const int world = space_.world_size / context, rest = world / tensor;
  if (world % tensor != 0) {
    refusals.add("tensor", tensor, "does not divide the " + std::to_string(world) + " ranks");
    return {};
  }
  if (!free_.pipeline) {
    const auto degree = static_cast<int>(job_.strategy.pipeline.degree.value_or(rest));
    if (rest % degree == 0) return {degree};
    refusals.add("pipeline", degree,
                 "does not divide the " + std::to_string(rest) + " ranks that tensor " + std::to_string(tensor) +
                     " leaves of " + std::to_string(world));
    return {};
  }
  std::vector<int> result;
  for (int degree : divisors_up_to(rest, 4096))
    if (!profiles_.cut(degree, 1).empty()) result.push_back(degree);
  return result;
}

// Whether the model can be cut so: routers with losses or capacities are of whole samples, and rows have to divide.
bool Domains::cuts_rows(int expert, int tensor) const {
  Candidate candidate;
  candidate.mesh.set(Axis::expert, expert);
  candidate.mesh.set(Axis::tensor, tensor);
  candidate.sequence_parallel = true;
  candidate.micro = job_.train.batch.micro.value_or(1);
  return profiles_.profile(candidate) != nullptr;
}

std::vector<bool> Domains::sequences(int expert, int tensor) const {
  const bool asked = job_.strategy.tensor.sequence_parallel;
  if (tensor == 1) return {false};
  if (expert > 1 && free_.sequence_parallel) return {cuts_rows(expert, tensor)};
  return free_.sequence_parallel ? std::vector<bool>{false, true} : std::vector<bool>{asked};
}

std::vector<std::int64_t> Domains::micros(int context, int tensor, const std::vector<int>& stages,
                                          Refusals& refusals) const {
  if (job_.train.batch.micro) return {*job_.train.batch.micro};
  std::set<std::int64_t> result;
  for (int pipeline : stages) {
    const int data = space_.world_size / context / tensor / pipeline;
    if (divides(data, refusals))
      for (int size : divisors_up_to(job_.train.batch.global / data, 4096)) result.insert(size);
  }
  return {result.begin(), result.end()};
}

std::vector<bool> Domains::in_pairs(const Candidate& c) const {
  if (c.size(Axis::tensor) == 1) return {false};
  const bool even = c.micro_batches % 2 == 0;
  if (job_.strategy.tensor.overlap) return even ? std::vector<bool>{true} : std::vector<bool>{};
  const OffloadJob& offload = job_.strategy.offload;
  const bool goes = free_.tensor && even && space_.machine->device.kind != DeviceKind::cpu &&
                    offload.activations == OffloadTo::none && offload.gradients == OffloadTo::none;
  return goes ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

std::vector<Candidate> Domains::recomputed(Candidate c) const {
  std::vector<Candidate> result;
  for (const ActivationCheckpointingJob& mode : recomputations()) {
    c.recompute = mode;
    for (const bool again : gathers_again(c)) {
      c.gathers_again = again;
      result.push_back(c);
    }
  }
  return result;
}

// Blocks that are recomputed gather again anyway. Of every n-th it is looked at where the job asks for just that.
std::vector<bool> Domains::gathers_again(const Candidate& c) const {
  const TensorKeep keep = job_.strategy.tensor.keep;
  if (!c.sequence_parallel || keep == TensorKeep::gathered) return {false};
  if (keep == TensorKeep::shard) return {true};
  const CheckpointingMode mode = c.recompute.mode, asked = job_.activation_checkpointing.mode;
  const bool keeps = mode == CheckpointingMode::none || (mode == CheckpointingMode::every_n && asked == mode);
  return keeps ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

std::vector<ActivationCheckpointingJob> Domains::recomputations() const {
  if (job_.activation_checkpointing.mode != CheckpointingMode::automatic) return {job_.activation_checkpointing};
  return {{CheckpointingMode::none, 1},
          {CheckpointingMode::selective, 1},
          {CheckpointingMode::every_n, 4},
          {CheckpointingMode::every_n, 2},
          {CheckpointingMode::full, 1}};
}

std::vector<int> Domains::virtual_stages(const ScheduleRecord& record) const {
  if (!free_.virtual_stages) return {static_cast<int>(job_.strategy.pipeline.virtual_stages)};
  std::vector<int> result;
  for (int v : {1, 2, 3, 4, 6, 8})
    if (record.takes(v) && (v > 1 || record.most_virtual_stages == 1)) result.push_back(v);
  return result;
}

bool Domains::divides(int data, Refusals& refusals) const {
  const std::int64_t global = job_.train.batch.global;
  if (global % data == 0) return true;
  const std::int64_t below = global / data * data;
  refusals.add("data", data,
               "a batch of " + std::to_string(global) + " samples does not divide over " + std::to_string(data) +
                   " data ranks; " + (below > 0 ? std::to_string(below) + " and " : "") + std::to_string(below + data) +
                   " do");
  return false;
}

}  // namespace trainer::cost
