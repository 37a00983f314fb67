// How a candidate is scored: compute and pipeline first, then the communication that nothing hides, then memory.
#include "engine/cost/score.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "engine/core/compression.h"
#include "engine/core/dtype.h"
#include "engine/cost/codes.h"
#include "engine/cost/cut.h"
#include "engine/cost/pairs.h"
#include "engine/job/data_strategies.h"
#include "engine/job/resolve.h"
#include "engine/plan/simulate.h"
#include "strategies/strategies.h"

namespace trainer::cost {
namespace {

Piece sum_of(const std::vector<Piece>& pieces, std::size_t first, std::size_t last) {
  Piece sum;
  for (std::size_t i = first; i < last; ++i) {
    const Piece& piece = pieces[i];
    sum.forward_us += piece.forward_us;
    sum.input_us += piece.input_us;
    sum.weight_us += piece.weight_us;
    sum.adding_us += piece.adding_us;
    sum.network_us += piece.network_us;
    sum.network_forward_us += piece.network_forward_us;
    sum.network_again_us += piece.network_again_us;
    sum.saved_bytes += piece.saved_bytes;
    sum.freed_bytes += piece.freed_bytes;
    sum.handed_bytes += piece.handed_bytes;
    sum.transient_bytes = std::max(sum.transient_bytes, piece.transient_bytes);
    sum.parameters += piece.parameters;
    sum.trained += piece.trained;
    sum.own_parameters += piece.own_parameters;
    sum.own_trained += piece.own_trained;
    sum.boundary_bytes = piece.boundary_bytes;
  }
  return sum;
}

std::int64_t largest(const std::vector<Piece>& units, std::int64_t Piece::*elements) {
  std::int64_t most = 0;
  for (const Piece& unit : units) most = std::max(most, unit.*elements);
  return most;
}

std::int64_t gradient_bytes(const Job& job, const Candidate& candidate, const ResolvedData& data, const Piece& stage,
                            const std::vector<Piece>& units) {
  const std::int64_t reduce = size_of(job.precision.reduce);
  if (job.strategy.offload.gradients != OffloadTo::none)  // one leaves while the next is made
    return std::min(stage.trained, 2 * largest(units, &Piece::trained)) * reduce;
  return data.shard_gradients && data.reduce == Reduce::micro_batch
             ? (candidate.sliced(stage.trained, stage.own_trained) +
                std::min(stage.trained, 2 * largest(units, &Piece::trained))) *
                   reduce
             : stage.trained * reduce;
}

// Communication of the data axes, as far as nothing hides it.
class DataTime {
 public:
  DataTime(const Candidate& candidate, const ResolvedData& data, const CostModel& model, const Job& job)
      : candidate_(candidate),
        data_(data),
        model_(model),
        job_(job),
        bucket_(job.strategy.data.bucket_mb * 1048576),
        averages_(record_of(candidate.kind, candidate.sharding).averages) {}

  // Elements, and those of them that are of a rank's own experts.
  struct Elements {
    double all, own;
    Elements operator/(double n) const { return {all / n, own / n}; }
  };
  static Elements trained(const Piece& piece) {
    return {static_cast<double>(piece.trained), static_cast<double>(piece.own_trained)};
  }
  static Elements parameters(const Piece& piece) {
    return {static_cast<double>(piece.parameters), static_cast<double>(piece.own_parameters)};
  }

  /// Over kSliceAxes, but for the first gather of a step where copies are secondary.
  double gather(const Elements& elements, Axes axes = kSliceAxes) const {
    return time(CollectiveKind::all_gather, axes, elements);
  }
  /// What a rank's part of a unit that is kept off the device takes to come there.
  double fetch(const Piece& unit) const {
    const Space space = strategies::space_of(job_.strategy.offload.parameters);
    if (space == Space::device) return 0;
    return model_
        .move(space, true, candidate_.sliced(unit.parameters, unit.own_parameters) * size_of(job_.precision.compute))
        .us;
  }
  double scatter(const Elements& elements) const {
    return time(CollectiveKind::reduce_scatter, candidate_.slice_axes(), elements);
  }
  double reduce(const Elements& elements, Axes axes) const { return time(CollectiveKind::all_reduce, axes, elements); }

  // Of `count` like collectives that begin as the pass goes on, what the pass cannot hide; the last begins at its end.
  static double exposed(double each, double count, double hides) {
    return count <= 0 ? 0 : each * count - std::min(each * (count - 1), hides * (count - 1) / count);
  }

  double buckets(double elements) const {
    return std::max(1.0, std::ceil(elements * static_cast<double>(size_of(job_.precision.reduce)) / bucket_));
  }

  // Added to each forward and backward pass of a micro-batch.
  double per_forward(const std::vector<Piece>& units) const {
    return data_.shard_parameters && data_.keep != Keep::step ? passes(units, true) : 0;
  }
  double per_backward(const std::vector<Piece>& units) const {
    if (!data_.shard_states || data_.reduce == Reduce::step) return 0;
    return passes(units, false);
  }

  // Once a step: the last reduction, gathers of a whole step, what crosses replicas, and weights after the update.
  double per_step(const std::vector<Piece>& units, const Piece& sum, double optimizer_us) const {
    const Elements elements = trained(sum);
    if (candidate_.token_ranks() == 1) return 0;
    double us = data_.shard_parameters && data_.keep == Keep::step ? passes(units, true) : 0;
    if (data_.secondary) us += passes(units, true, candidate_.slice_axes()) - passes(units, true);  // the first
    if (elements.all == 0) return us;
    if (!data_.shard_states) {
      const Axes summed = averages_ ? kSequenceAxes : kTokenAxes;
      if (candidate_.mesh.group_size(summed) == 1) return us;
      const double count = buckets(elements.all);
      return exposed(reduce(elements / count, summed), count, sum.backward_us());
    }
    const auto count = static_cast<double>(std::max<std::size_t>(1, units.size()));
    if (data_.reduce == Reduce::step)
      us += exposed(scatter(elements / count), count, sum.backward_us()) + count * reduction_kernels(elements / count);
    if (candidate_.size(Axis::replicate) > 1 && candidate_.slices() > 1 && !data_.secondary)
      us += exposed(reduce(elements / count / candidate_.slices(), Axes::of(Axis::replicate)), count,
                    sum.backward_us() / 2);
    if (!data_.shard_parameters) us += exposed(gather(elements / count), count, optimizer_us);
    return us;
  }

 private:
  // The units of a deep model are alike: what a collective of one takes is looked up for the others.
  double time(CollectiveKind kind, Axes axes, const Elements& elements) const {
    for (const Known& one : known_)
      if (one.kind == kind && one.axes == axes && one.elements.all == elements.all && one.elements.own == elements.own)
        return one.us;
    known_.push_back({kind, axes, elements, found(kind, axes, elements)});
    return known_.back().us;
  }
  double found(CollectiveKind kind, Axes axes, const Elements& elements) const {
    const double us = time(kind, axes, elements.all - elements.own);
    const Axes others = axes - Axes::of(Axis::expert);
    return elements.own == 0 || candidate_.mesh.group_size(others) == 1 ? us : us + time(kind, others, elements.own);
  }
  double time(CollectiveKind kind, Axes axes, double elements) const {
    const SentBySlices sent = sent_by_slices(data_, job_, kind, elements);
    return model_.collective(sent.kind, sent.dtype, candidate_.mesh.active(axes), {}, sent.bytes).us;
  }

  // Kernels that make and read codes, beside which nothing is computed.
  double gather_kernels(const Elements& elements) const {
    return sum(coding_of_gather(model_, data_, job_, elements.all, candidate_.slices()));
  }
  double reduction_kernels(const Elements& elements) const {
    return sum(coding_of_reduction(model_, data_, job_, elements.all, candidate_.slices()));
  }
  static double sum(const CodingTime& time) { return time.encode_us + time.decode_us; }

  // Each unit's collectives run while the unit before it is computed.
  double passes(const std::vector<Piece>& units, bool forward, Axes axes = kSliceAxes) const {
    double us = 0, before = 0;
    const bool again = !forward && data_.shard_parameters && data_.keep == Keep::use;
    for (std::size_t i = 0; i < units.size(); ++i) {
      const Piece& unit = units[forward ? i : units.size() - 1 - i];
      const double reduced = !forward && unit.trained > 0 ? scatter(trained(unit)) : 0;
      const double fetched = data_.secondary && axes == kSliceAxes ? 0 : fetch(unit);  // a secondary copy is there
      const double comes = forward || (again && i > 0) ? fetched + gather(parameters(unit), axes) : 0;
      const double traffic = reduced + comes;
      us += std::max(0.0, traffic - before);
      if (forward || (again && i > 0)) us += gather_kernels(parameters(unit));
      if (!forward && unit.trained > 0) us += reduction_kernels(trained(unit));
      before = forward ? unit.forward_us : unit.backward_us();
    }
    return us;
  }

  const Candidate& candidate_;
  const ResolvedData& data_;
  const CostModel& model_;
  const Job& job_;
  const double bucket_;
  const bool averages_;
  struct Known {
    CollectiveKind kind;
    Axes axes;
    Elements elements;
    double us;
  };
  mutable std::vector<Known> known_;
};

}  // namespace

double bytes_on_device(const Job& job, double state_bytes) {
  const OffloadJob& offload = job.strategy.offload;
  const OffloadTo masters = job.precision.compute == DType::f32 ? offload.parameters : offload.optimizer;
  return (masters == OffloadTo::none ? 4 : 0) + (offload.optimizer == OffloadTo::none ? state_bytes : 0);
}

std::int64_t working_bytes_on_device(const Job& job) {
  return job.strategy.offload.parameters == OffloadTo::none ? size_of(job.precision.compute) : 0;
}

ResolvedData Scorer::resolved(const Candidate& candidate) const {
  return resolve(data_strategy_of(space_.job->strategy.data, candidate), candidate.size(Axis::pipeline) > 1);
}

const Profile* Scorer::profile_of(const Candidate& candidate) {
  const Profile* one = profiles_.profile(candidate);
  if (one == nullptr || !candidate.pairs) return one;
  const auto [known, added] = pairs_.try_emplace(one);
  if (added) known->second = in_pairs(*one, model_of(candidate.mesh).overlap_slowdown(Axes::of(Axis::tensor), {}));
  return &known->second;
}

double Scorer::at_least_us(const Candidate& candidate, const Profile& profile) const {
  double us = 0;
  for (const Piece& piece : profile.pieces) us += piece.forward_us + piece.backward_us();
  return us * candidate.actions() / candidate.size(Axis::pipeline);
}

const CostModel& Scorer::model_of(const Mesh& mesh) {
  std::unique_ptr<CostModel>& model = models_[mesh];
  if (model == nullptr)
    model = std::make_unique<CostModel>(Cluster{space_.machine, mesh, space_.ranks_per_node, space_.threads});
  return *model;
}

bool Scorer::pipeline(const Candidate& candidate, const Profile& profile, Pipelined& out) {
  const std::vector<int>& begins =
      candidate.begins ? *candidate.begins
                       : profiles_.cut(candidate.num_chunks(), candidate.micro * candidate.data_ranks());
  if (begins.empty()) return false;
  if (strategies::pipeline_schedule(candidate.schedule, candidate.size(Axis::pipeline))
          .refuses(candidate.size(Axis::pipeline), candidate.virtual_stages, candidate.actions()))
    return false;
  const bool few = !shorten(candidate, out);
  if (few) out.schedule = profiles_.schedules().find(candidate, candidate.actions());
  const auto stages = static_cast<std::size_t>(candidate.size(Axis::pipeline));
  out.units.resize(stages);
  for (std::size_t chunk = 0; chunk < begins.size(); ++chunk) {
    const auto first = static_cast<std::size_t>(begins[chunk]);
    const auto last = chunk + 1 < begins.size() ? static_cast<std::size_t>(begins[chunk + 1]) : profile.pieces.size();
    out.begins.push_back(first);
    out.chunks.push_back(sum_of(profile.pieces, first, last));
    for (std::size_t i = first; i < last; ++i)
      if (profile.pieces[i].parameters > 0)
        out.units[static_cast<std::size_t>(out.schedule->stage_of_chunk[chunk])].push_back(profile.pieces[i]);
  }
  for (std::size_t s = 0; s < stages; ++s) out.stages.push_back(sum_of(out.units[s], 0, out.units[s].size()));
  const auto peaks = [&](const KnownSchedule& schedule) {
    std::vector<std::int64_t> result;
    for (const std::vector<Moment>& moments : schedule.fullest) result.push_back(peak_bytes(moments, out.chunks));
    return result;
  };
  out.peaks = peaks(*out.schedule);
  if (few || peaks(*out.before) == out.peaks) return true;
  // More micro-batches are more memory: all of them are looked at.
  out.before = nullptr;
  out.schedule = profiles_.schedules().find(candidate, candidate.actions());
  out.peaks = peaks(*out.schedule);
  return true;
}

// As if the data axes slice what they can: states.
std::vector<int> Scorer::cut_for_memory(const Candidate& candidate, const Profile& profile,
                                        const Pipelined& pipelined) const {
  constexpr double kUsed = 0.995;  // of the limit: a plan needs a little more than its score
  const bool is_master = space_.job->precision.compute == DType::f32;
  const auto working = static_cast<double>(working_bytes_on_device(*space_.job)),
             reduce = static_cast<double>(size_of(space_.job->precision.reduce));
  ChunkBytes bytes;
  bytes.trained =
      bytes_on_device(*space_.job, space_.state_bytes) / candidate.data_ranks() + reduce + (is_master ? 0 : working);
  bytes.frozen = working;
  bytes.in_flight = in_flight(*pipelined.schedule);
  bytes.chunks_of_stage = candidate.virtual_stages;
  const auto inputs = static_cast<double>(profile.input_bytes * candidate.micro_batches);
  bytes.most = (kUsed * static_cast<double>(space_.limit_bytes) - inputs) / candidate.virtual_stages;
  return cost::cut_for_memory(profile.pieces, bytes);
}

// Of many micro-batches each does what the ones before did.
bool Scorer::shorten(const Candidate& candidate, Pipelined& out) {
  const int stages = candidate.size(Axis::pipeline);
  if (stages == 1 || candidate.actions() <= 10 * stages) return false;
  out.before = profiles_.schedules().find(candidate, 4 * stages);
  out.schedule = profiles_.schedules().find(candidate, 5 * stages);
  if (out.before != nullptr && out.schedule != nullptr) return true;
  out.before = nullptr;
  return false;
}

double Scorer::makespan(const Candidate& candidate, Pipelined& pipelined, const std::vector<double>& forward,
                        const std::vector<double>& backward) {
  const auto [at, added] = pipelined.makespans.try_emplace({forward, backward}, 0);
  if (!added) return at->second;
  const CostModel& model = model_of(candidate.mesh);
  std::vector<Durations> durations;
  for (std::size_t chunk = 0; chunk < pipelined.chunks.size(); ++chunk) {
    const Piece& sum = pipelined.chunks[chunk];
    const auto s = static_cast<std::size_t>(pipelined.schedule->stage_of_chunk[chunk]);
    const double send = candidate.size(Axis::pipeline) > 1 ? model.send(Axis::pipeline, 1, sum.boundary_bytes).us : 0;
    durations.push_back({sum.forward_us + forward[s], sum.input_us + backward[s], sum.weight_us, send});
  }
  if (candidate.size(Axis::pipeline) == 1)
    return at->second = candidate.actions() *
                        (durations[0].forward + durations[0].backward_input + durations[0].backward_weight);
  at->second = simulate(*pipelined.schedule, durations).makespan;
  if (pipelined.before != nullptr) {
    const int stages = candidate.size(Axis::pipeline);
    const double added = (at->second - simulate(*pipelined.before, durations).makespan) / stages;
    at->second += added * (candidate.actions() - 5 * stages);
  }
  return at->second;
}

Scored Scorer::score(const Candidate& candidate, const Profile& profile, Pipelined& pipelined) {
  const CostModel& model = model_of(candidate.mesh);
  const ResolvedData data = resolved(candidate);
  const DataTime time(candidate, data, model, *space_.job);
  const std::size_t stages = pipelined.stages.size();
  const double each = static_cast<double>(candidate.actions()) / candidate.size(Axis::pipeline);

  Scored scored;
  std::vector<double> forward(stages), backward(stages);
  // Gradients that stay from one micro-batch to the next are read before they are written.
  const bool adds = !data.shard_gradients || data.reduce == Reduce::step;
  const double added = adds ? 1 - 1.0 / candidate.actions() : 0;
  double tail = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    const Piece& sum = pipelined.stages[s];
    forward[s] = time.per_forward(pipelined.units[s]) / candidate.virtual_stages;
    backward[s] = time.per_backward(pipelined.units[s]) / candidate.virtual_stages;
    const double bandwidth = space_.machine->device.memory_bandwidth.value /
                             (space_.machine->device.kind == DeviceKind::cpu ? space_.ranks_per_node : 1);
    const auto updated =
        static_cast<double>(data.shard_states ? candidate.sliced(sum.trained, sum.own_trained) : sum.trained);
    const double here = space_.job->strategy.offload.update == UpdateOn::host
                            ? 0
                            : updated * (16 + 2 * space_.state_bytes) / bandwidth * 1.2e6;
    const double update = std::max(here, offload_us(model, updated));
    const double at_end = time.per_step(pipelined.units[s], sum, update);
    if (update + at_end > tail) tail = update + at_end, scored.update_us = update, scored.data_us = at_end;
  }
  for (std::size_t s = 0; s < stages; ++s) {
    scored.data_us += (forward[s] + backward[s]) * candidate.virtual_stages * each;
    scored.compute_us += pipelined.stages[s].adding_us * added * each;
    backward[s] += pipelined.stages[s].adding_us * added / candidate.virtual_stages;
  }
  for (const Piece& piece : profile.pieces) {
    scored.tensor_us += piece.network_us * each;
    scored.recompute_us += piece.recompute_us * each;
    scored.compute_us += (piece.forward_us + piece.backward_us() - piece.network_us - piece.recompute_us) * each;
  }
  scored.step_us = makespan(candidate, pipelined, forward, backward) + tail;
  if (stages > 1) {  // as cost::predict has it: of computing, and of waits for that of others
    const double sent = scored.tensor_us + scored.data_us,
                 less =
                     model.taking_turns((scored.recompute_us + scored.compute_us + scored.update_us) / scored.step_us);
    scored.step_us = sent + (scored.step_us - sent) * less;
    for (double Scored::*time : {&Scored::recompute_us, &Scored::compute_us, &Scored::update_us}) scored.*time *= less;
  }
  scored.bubble_us = std::max(0.0, scored.step_us - scored.tensor_us - scored.recompute_us - scored.compute_us -
                                       scored.data_us - scored.update_us);
  scored.candidate = candidate;
  scored.bytes = bytes_of(candidate, profile, pipelined, &scored.fullest);
  scored.fits = scored.bytes <= space_.limit_bytes;
  return scored;
}

std::int64_t Scorer::bytes_of(const Candidate& candidate, const Profile& profile, const Pipelined& pipelined,
                              FullestStages* fullest) const {
  struct Stage {
    std::int64_t bytes = -1;
    int stage = -1;
  };
  std::array<Stage, kNoStages.size()> most{};  // the fullest first
  const ResolvedData data = resolved(candidate);
  for (std::size_t s = 0; s < pipelined.stages.size(); ++s) {
    const Piece& stage = pipelined.stages[s];
    const std::int64_t kept = static_bytes(candidate, data, stage, pipelined.units[s]);
    const std::int64_t gradients = gradient_bytes(*space_.job, candidate, data, stage, pipelined.units[s]);
    // Whole gradients of one micro-batch alone take the place of what the backward pass frees.
    const bool replace = candidate.actions() == 1 && candidate.size(Axis::pipeline) == 1 &&
                         (!data.shard_gradients || data.reduce == Reduce::step);
    const std::int64_t bytes = kept + (replace ? std::max(pipelined.peaks[s], gradients + stage.transient_bytes)
                                               : pipelined.peaks[s] + gradients);
    Stage one{bytes, static_cast<int>(s)};
    for (Stage& other : most)
      if (one.bytes > other.bytes) std::swap(one, other);
  }
  if (fullest != nullptr) std::ranges::transform(most, fullest->begin(), &Stage::stage);
  return profile.input_bytes * candidate.micro_batches + most.front().bytes;
}

// There and back, while the update runs; that on the host's processor too.
double Scorer::offload_us(const CostModel& model, double updated) const {
  const OffloadJob& offload = space_.job->strategy.offload;
  if (offload.update == UpdateOn::host) return update_on_host_us(model, updated);
  const Space space =
      strategies::space_of(offload.optimizer == OffloadTo::none ? offload.parameters : offload.optimizer);
  if (space == Space::device) return 0;
  const double copies =
      space_.job->precision.compute == DType::f32
          ? 0
          : static_cast<double>(size_of(space_.job->precision.compute) - working_bytes_on_device(*space_.job));
  const auto bytes =
      static_cast<std::int64_t>(updated * (4 + space_.state_bytes - bytes_on_device(*space_.job, space_.state_bytes)));
  const double comes = model.move(space, true, bytes).us,
               leaves = model.move(space, false, bytes + static_cast<std::int64_t>(updated * copies)).us;
  return space == Space::disk ? comes + leaves : std::max(comes, leaves);
}

// Gradients go to the host and working copies come from there, what of them is not kept there anyway. In f32 these are
// the masters, which go there too.
double Scorer::update_on_host_us(const CostModel& model, double updated) const {
  const Job& job = *space_.job;
  const OffloadJob& offload = job.strategy.offload;
  const auto compute = static_cast<double>(size_of(job.precision.compute)),
             reduce = static_cast<double>(size_of(job.precision.reduce));
  const double copies = offload.parameters == OffloadTo::none ? compute : 0,
               gradients = offload.gradients == OffloadTo::none ? reduce : 0;
  const bool in_f32 = job.precision.compute == DType::f32;
  const auto bytes = [&](double each) { return static_cast<std::int64_t>(updated * each); };
  const double leaves = model.move(Space::host, false, bytes(gradients + (in_f32 ? copies : 0))).us,
               comes = model.move(Space::host, true, bytes(copies)).us,
               works = model.on_host(bytes(2 * (4 + space_.state_bytes) + reduce + (in_f32 ? 0 : compute))).us;
  return std::max({leaves, comes, works});
}

// Masters, states, working copies and what is gathered of them.
std::int64_t Scorer::static_bytes(const Candidate& candidate, const ResolvedData& data, const Piece& stage,
                                  const std::vector<Piece>& units) const {
  const std::int64_t compute = size_of(space_.job->precision.compute), working = working_bytes_on_device(*space_.job),
                     parameters = stage.parameters, frozen = parameters - stage.trained;
  const std::int64_t owned = data.shard_states ? candidate.sliced(stage.trained, stage.own_trained) : stage.trained;
  std::int64_t bytes =
      static_cast<std::int64_t>(static_cast<double>(owned) * bytes_on_device(*space_.job, space_.state_bytes)) +
      (data.shard_parameters ? candidate.sliced(frozen, stage.own_parameters - stage.own_trained) : frozen) * working;
  if (compute != 4)
    bytes += (data.shard_parameters ? owned : stage.trained) * working;
  else if (data.shard_states && !data.shard_parameters)
    bytes += (stage.trained - owned) * compute;
  const bool brief = data.shard_parameters && data.keep == Keep::use && !units.empty();
  if (data.shard_parameters)
    bytes += (brief ? std::min(parameters, 3 * largest(units, &Piece::parameters)) : parameters) * compute;
  if (data.secondary && candidate.mesh.group_size(kSliceAxes) > 1)
    bytes +=
        (data.int8_gathers ? int8_bytes(parameters) : parameters * compute) / candidate.mesh.group_size(kSliceAxes);
  if (data.int8_gathers || data.int8_reductions)  // of the unit in use and of the next one
    bytes += 2 * int8_bytes(largest(units, &Piece::parameters));
  return bytes;
}

}  // namespace trainer::cost
