// How a sketch is made: each action of the schedule becomes a few instructions, which cost::play then plays.
#include "engine/cost/sketch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/dtype.h"
#include "engine/core/index.h"
#include "engine/cost/codes.h"
#include "engine/cost/play.h"
#include "engine/job/data_strategies.h"
#include "engine/job/resolve.h"
#include "engine/plan/assemble/assemble.h"
#include "strategies/strategies.h"

namespace trainer::cost {
namespace {

using Kind = Action::Kind;

constexpr std::size_t kNone = SIZE_MAX;

std::size_t index_of(Stream stream) { return static_cast<std::size_t>(stream); }

// What all stages have in common.
struct Step {
  const Candidate& candidate;
  const Profile& profile;
  const Pipelined& pipelined;
  const CostModel& model;
  const Job& job;
  ResolvedData data;
  double update_us_of_element;
  const OrderedTransfers& transfers;

  int actions() const { return candidate.actions(); }

  Estimate collective(CollectiveKind kind, Axes axes, double elements) const {
    const SentBySlices sent = sent_by_slices(data, job, kind, elements);
    return model.collective(sent.kind, sent.dtype, candidate.mesh.active(axes), {}, sent.bytes);
  }
  /// `own` of the elements are of a rank's experts, and stay out of the expert axis.
  Estimate collective(CollectiveKind kind, Axes axes, double elements, double own) const {
    Estimate time = collective(kind, axes, elements - own);
    const Axes others = axes - Axes::of(Axis::expert);
    if (own > 0 && candidate.mesh.group_size(others) > 1) time.us += collective(kind, others, own).us;
    return time;
  }
};

// The instructions of one stage, as Passes (engine/plan/assemble) lists them.
class StageSketch {
 public:
  StageSketch(const Step& step, int stage)
      : step_(step),
        stage_(stage),
        schedule_(*step.pipelined.schedule),
        actions_(schedule_.stages[at(stage)]),
        states_(step.profile.pieces.size()),
        passes_(schedule_.stage_of_chunk.size()) {
    for (std::size_t chunk = 0; chunk < passes_.size(); ++chunk) passes_[chunk].resize(at(step.actions()));
    if (step.data.shard_parameters && step.candidate.slices() > 1) list_uses();
  }

  Role run(OwnTimes& own) {
    const std::vector<std::vector<Transfer>>& transfers = step_.transfers[at(stage_)];
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      exchange(transfers[i]);
      act(actions_[i]);
    }
    exchange(transfers.back());
    update();
    Role role;
    role.signatures.push_back({Op::add, {}, {}});
    role.programs.push_back({ProgramKind::step, std::move(issued_)});
    own = std::move(own_);
    return role;
  }

 private:
  struct PieceState {
    std::int32_t gather = -1;  // the last one
    bool gathered = false;
    double decode_us = 0;  // once the gathered codes are read
    bool listed = false;   // in uses_, where one gather serves all uses
    int reductions = 0;    // micro-batches that have added to its gradients
  };
  // A gathered piece is read by a pass.
  struct Use {
    std::size_t piece;
    int micro_batch;
    std::size_t next = kNone;  // of the same piece
  };
  // A chunk's pass of a micro-batch.
  struct Pass {
    std::int32_t received = -1, received_back = -1;                                   // by these exchanges
    std::pair<std::int32_t, std::int32_t> sent_from{-1, -1}, sent_back_from{-1, -1};  // made by: compute, tensor
  };

  std::int32_t issue(Stream stream, Instruction instruction, const Estimate& time, StreamClock after) {
    after[index_of(stream)] = -1;
    issued_.push_back({stream, std::move(instruction), after});
    own_.push_back(time);
    return last_[index_of(stream)] = static_cast<std::int32_t>(issued_.size() - 1);
  }
  std::int32_t compute(double us, StreamClock after) {
    return issue(Stream::compute, Launch{}, {us, 0, Bound::compute}, after);
  }
  std::int32_t collective(Stream stream, Axes axes, const Estimate& time, const StreamClock& after) {
    Collective one;
    one.axes = step_.candidate.mesh.active(axes);
    return issue(stream, std::move(one), time, after);
  }

  void exchange(const std::vector<Transfer>& transfers) {
    if (transfers.empty()) return;
    Exchange exchange;
    StreamClock after;
    const auto here = static_cast<std::int32_t>(issued_.size());
    for (const Transfer& one : transfers) {
      const std::int64_t bytes = step_.pipelined.chunks[at(one.boundary)].boundary_bytes;
      const int chunk = one.send == one.backward ? one.boundary + 1 : one.boundary;
      Pass& pass = passes_[at(chunk)][at(one.micro_batch)];
      const Region region{0, 0, bytes};
      if (one.send) {
        const auto [kernel, sum] = one.backward ? pass.sent_back_from : pass.sent_from;
        after[index_of(Stream::compute)] = std::max(after[index_of(Stream::compute)], kernel);
        after[index_of(Stream::tensor)] = std::max(after[index_of(Stream::tensor)], sum);
        exchange.sends.push_back({Axis::pipeline, one.peer - stage_, {region}});
      } else {
        (one.backward ? pass.received_back : pass.received) = here;
        exchange.receives.push_back({Axis::pipeline, one.peer - stage_, {region}});
      }
    }
    issue(Stream::communication, std::move(exchange), {}, after);
  }

  void act(const Action& action) {
    Pass& pass = passes_[at(action.chunk)][at(action.micro_batch)];
    const bool forward = action.kind == Kind::forward;
    awaited_ = {};
    awaited_[index_of(Stream::communication)] = forward                                ? pass.received
                                                : action.kind == Kind::backward_weight ? -1
                                                                                       : pass.received_back;
    const bool last_pass = action.micro_batch == step_.actions() - 1;
    if (alone(action)) return alone(action, pass);
    for_each_piece(action, [&](std::size_t index) {
      const Piece& piece = step_.profile.pieces[index];
      if (forward)
        this->forward(index, piece);
      else
        backward(index, piece, action);
      if (action.kind == Kind::backward || action.kind == Kind::backward_weight) reduce(index, piece, last_pass);
    });
    note_end(action, pass);
  }

  void note_end(const Action& action, Pass& pass) const {
    const std::pair<std::int32_t, std::int32_t> end{last_[index_of(Stream::compute)], last_[index_of(Stream::tensor)]};
    if (action.kind == Kind::forward) pass.sent_from = end;
    if (action.kind == Kind::backward || action.kind == Kind::backward_input) pass.sent_back_from = end;
  }

  // Whether the data axes have nothing to do in an action; its pieces are one then.
  bool alone(const Action& action) const {
    if (opened_ < uses_.size()) return false;
    if (action.kind == Kind::forward || action.kind == Kind::backward_input) return true;
    const bool each = step_.data.shard_gradients && step_.data.reduce == Reduce::micro_batch;
    return step_.candidate.token_ranks() == 1 || (!each && action.micro_batch < step_.actions() - 1);
  }

  void alone(const Action& action, Pass& pass) {
    const Piece& sum = step_.pipelined.chunks[at(action.chunk)];
    if (action.kind == Kind::forward) {
      kernel(sum.forward_us - sum.network_forward_us);
      tensor(sum, sum.network_forward_us);
    } else {
      if (action.kind != Kind::backward_weight) backward_input(sum);
      if (action.kind != Kind::backward_input) kernel(weight_us(sum, action));
    }
    note_end(action, pass);
  }

  double weight_us(const Piece& piece, const Action& action) const {
    const bool adds = !step_.data.shard_gradients || step_.data.reduce == Reduce::step;
    return piece.weight_us + (adds && action.micro_batch > 0 ? piece.adding_us : 0);
  }

  // The pieces of a chunk in the order in which an action goes through them.
  template <typename Visit>
  void for_each_piece(const Action& action, const Visit& visit) const {
    const auto chunk = at(action.chunk);
    const std::size_t first = step_.pipelined.begins[chunk], last = chunk + 1 < passes_.size()
                                                                        ? step_.pipelined.begins[chunk + 1]
                                                                        : step_.profile.pieces.size();
    for (std::size_t i = 0; i < last - first; ++i) visit(action.kind == Kind::forward ? first + i : last - 1 - i);
  }

  bool gathered(std::size_t piece) const { return step_.profile.pieces[piece].parameters > 0; }

  void list_uses() {
    for (const Action& action : actions_)
      if (action.kind != Kind::backward_weight)
        for_each_piece(action, [&](std::size_t piece) {
          if (!gathered(piece) || states_[piece].listed) return;
          states_[piece].listed = step_.data.keep == Keep::step;
          uses_.push_back({piece, action.micro_batch});
        });
    std::vector<std::size_t> next(states_.size(), kNone);
    for (std::size_t i = uses_.size(); i-- > 0;) uses_[i].next = std::exchange(next[uses_[i].piece], i);
  }

  void forward(std::size_t index, const Piece& piece) {
    open(index);
    kernel(piece.forward_us - piece.network_forward_us);
    tensor(piece, piece.network_forward_us);
    close(index);
  }

  void backward(std::size_t index, const Piece& piece, const Action& action) {
    const Kind kind = action.kind;
    if (kind != Kind::backward_weight) {
      open(index);
      backward_input(piece);
      close(index);
    }
    if (kind != Kind::backward_input && piece.weight_us > 0) {
      awaited_[index_of(Stream::background)] = std::max(awaited_[index_of(Stream::background)], scatters_[0]);
      kernel(weight_us(piece, action));
    }
  }

  // What is gathered again is there already, and travels while the piece computes.
  void backward_input(const Piece& piece) {
    const double network = piece.network_us - piece.network_forward_us;
    kernel(piece.input_us - network);
    tensor(piece, piece.network_again_us, {});
    tensor(piece, network - piece.network_again_us);
  }

  // Waits for all that the piece's values come through.
  void kernel(double us) {
    awaited_[index_of(Stream::tensor)] = last_[index_of(Stream::tensor)];
    compute(std::max(0.0, us), awaited_);
    awaited_ = {};
  }

  void tensor(const Piece& piece, double us) {
    StreamClock after;
    after[index_of(Stream::compute)] = last_[index_of(Stream::compute)];
    tensor(piece, us, after);
  }
  void tensor(const Piece& piece, double us, const StreamClock& after) {
    if (us <= 0) return;
    const Axes axes = Axis::expert | Axis::context | Axis::tensor;
    Estimate time = step_.model.collective(CollectiveKind::all_gather, DType::bf16, step_.candidate.mesh.active(axes),
                                           {}, std::max<std::int64_t>(1, piece.boundary_bytes));
    time.us = us;
    collective(Stream::tensor, axes, time, after);
  }

  // Gathers run ahead, each into the memory of what was used before what is used now.
  void open(std::size_t piece) {
    if (!opens(piece)) return;
    const std::size_t ahead =
        std::min(uses_.size(), opened_ + 1 + at(static_cast<int>(step_.job.strategy.data.prefetch)));
    for (; asked_ < ahead; ++asked_) {
      PieceState& state = states_[uses_[asked_].piece];
      if (std::exchange(state.gathered, true)) continue;
      StreamClock after;
      if (step_.data.keep == Keep::use) after[index_of(Stream::compute)] = used_;
      const Piece& asked = step_.profile.pieces[uses_[asked_].piece];
      const auto elements = static_cast<double>(asked.parameters);
      const CodingTime coding = coding_of_gather(step_.model, step_.data, step_.job, elements, slices());
      const bool first = state.gather < 0 || !step_.data.secondary;
      if (coding.encode_us > 0 && first) after[index_of(Stream::compute)] = compute(coding.encode_us, {});
      state.decode_us = coding.decode_us;
      const Axes axes = first ? step_.candidate.slice_axes() : kSliceAxes;  // then out of the secondary copy
      state.gather = collective(
          Stream::background, axes,
          step_.collective(CollectiveKind::all_gather, axes, elements, static_cast<double>(asked.own_parameters)),
          after);
    }
    awaited_[index_of(Stream::background)] = std::max(awaited_[index_of(Stream::background)], states_[piece].gather);
    if (const double us = std::exchange(states_[piece].decode_us, 0); us > 0) {
      StreamClock gathered;
      gathered[index_of(Stream::background)] = states_[piece].gather;
      compute(us, gathered);
    }
  }

  // Whether this is the next of uses_.
  bool opens(std::size_t piece) const { return opened_ < uses_.size() && uses_[opened_].piece == piece; }

  void close(std::size_t piece) {
    if (!opens(piece)) return;
    used_ = std::exchange(using_, last_[index_of(Stream::compute)]);
    const Use& use = uses_[opened_++];
    if (use.next == kNone || use.next < asked_ || step_.data.keep == Keep::step) return;
    if (step_.data.keep == Keep::use || uses_[use.next].micro_batch != use.micro_batch) states_[piece].gathered = false;
  }

  void reduce(std::size_t index, const Piece& piece, bool last) {
    if (piece.trained == 0 || step_.candidate.token_ranks() == 1) return;
    const auto elements = static_cast<double>(piece.trained);
    const DType dtype = step_.job.precision.reduce;
    StreamClock after;
    after[index_of(Stream::compute)] = last_[index_of(Stream::compute)];
    const auto run = [&](CollectiveKind kind, Axes axes, double size) {
      const double parts = step_.data.shard_parameters ? 1 : buckets(size * size_of(dtype));
      const double own = size * static_cast<double>(piece.own_trained) / static_cast<double>(piece.trained);
      Estimate time = step_.collective(kind, axes, size / parts, own / parts);
      time.us *= parts;
      return collective(Stream::background, axes, time, after);
    };
    if (!step_.data.shard_states) {
      if (last && !averages()) run(CollectiveKind::all_reduce, kTokenAxes, elements);
      return;
    }
    const bool each = step_.data.shard_gradients && step_.data.reduce == Reduce::micro_batch;
    if ((each || last) && step_.candidate.slices() > 1) {
      decode_gradients();
      const CodingTime coding = coding_of_reduction(step_.model, step_.data, step_.job, elements, slices());
      if (coding.encode_us > 0) after[index_of(Stream::compute)] = compute(coding.encode_us, {});
      const std::int32_t scatter = run(CollectiveKind::reduce_scatter, step_.candidate.slice_axes(), elements);
      encoded_ = {scatter, coding.decode_us};
      if (each) scatters_[0] = std::exchange(scatters_[1], scatter);
    }
    if (each && states_[index].reductions++ > 0) {  // added to those of before
      StreamClock done;
      done[index_of(Stream::background)] = scatters_[0];
      compute(elements / step_.candidate.slices() * 3 * size_of(dtype) / bandwidth(), done);
    }
    if (last && step_.candidate.size(Axis::replicate) > 1 && !step_.data.secondary)
      run(CollectiveKind::all_reduce, Axes::of(Axis::replicate), elements / step_.candidate.slices());
  }

  // Those that were exchanged last.
  void decode_gradients() {
    StreamClock exchanged;
    exchanged[index_of(Stream::background)] = encoded_.first;
    if (const double us = std::exchange(encoded_.second, 0); us > 0) compute(us, exchanged);
  }

  int slices() const { return step_.candidate.slices(); }
  bool averages() const { return record_of(step_.candidate.kind, step_.candidate.sharding).averages; }
  double bandwidth() const { return step_.model.cluster().machine->device.memory_bandwidth.value / 1e6; }
  double buckets(double bytes) const {
    constexpr double kTensors = 8;  // of a piece, of which none is cut
    return std::clamp(std::ceil(bytes / (step_.job.strategy.data.bucket_mb * 1048576)), 1.0, kTensors);
  }

  // Begins when all gradients are there.
  void update() {
    decode_gradients();
    StreamClock all;
    for (std::size_t stream = 0; stream < kNumStreams; ++stream) all[stream] = last_[stream];
    const bool sharded = step_.data.shard_states;
    for (std::size_t index = 0; index < states_.size(); ++index) {
      const Piece& piece = step_.profile.pieces[index];
      if (piece.trained == 0 || !mine(index)) continue;
      const auto elements = static_cast<double>(piece.trained);
      const double owned =
          sharded ? static_cast<double>(step_.candidate.sliced(piece.trained, piece.own_trained)) : elements;
      compute(owned * step_.update_us_of_element, all);
      all = {};
      if (!sharded || step_.data.shard_parameters || step_.candidate.slices() == 1) continue;
      StreamClock after;
      after[index_of(Stream::compute)] = last_[index_of(Stream::compute)];
      const double parts = buckets(elements * size_of(step_.job.precision.reduce));
      const Axes axes = step_.candidate.slice_axes();
      Estimate time = step_.collective(CollectiveKind::all_gather, axes, elements / parts,
                                       static_cast<double>(piece.own_trained) / parts);
      time.us *= parts;
      collective(Stream::background, axes, time, after);
    }
  }

  bool mine(std::size_t piece) const {
    std::size_t chunk = 0;
    while (chunk + 1 < passes_.size() && step_.pipelined.begins[chunk + 1] <= piece) ++chunk;
    return schedule_.stage_of_chunk[chunk] == stage_;
  }

  const Step& step_;
  const int stage_;
  const Schedule& schedule_;
  const std::vector<Action>& actions_;
  std::vector<Issued> issued_;
  OwnTimes own_;
  StreamClock last_;     // of each stream
  StreamClock awaited_;  // by the next kernel
  std::vector<PieceState> states_;
  std::vector<std::vector<Pass>> passes_;           // [chunk][micro-batch]
  std::vector<Use> uses_;                           // in order
  std::size_t opened_ = 0, asked_ = 0;              // of uses_
  std::int32_t using_ = -1, used_ = -1;             // the last kernels of the last two uses
  std::int32_t scatters_[2] = {-1, -1};             // the last two
  std::pair<std::int32_t, double> encoded_{-1, 0};  // the last exchange of codes, and how long it takes to decode it
};

}  // namespace

double Sketcher::step_us(const Candidate& candidate) {
  if (space_.machine->device.kind == DeviceKind::cpu) return 0;
  const Profile* profile = scorer_.profile_of(candidate);
  if (profile == nullptr) return 0;
  // Of many micro-batches some are played, and the others take as long as the mean of the last. The steady state of a
  // few stages takes longer to come, measured in rounds of them.
  const int stages = candidate.size(Axis::pipeline),
            few = stages == 1 ? 2 : std::max(2 * stages, std::min(4 * stages, 16)), more = few + stages;
  if (candidate.actions() > 2 * more) {
    Candidate shorter = candidate;
    const int each = candidate.micro_batches / candidate.actions();
    shorter.micro_batches = few * each;
    const double before = played(shorter, *profile);
    shorter.micro_batches = more * each;
    const double after = played(shorter, *profile);
    if (before > 0 && after > 0) return after + (after - before) / stages * (candidate.actions() - more);
  }
  return played(candidate, *profile);
}

int Sketcher::listed(const Candidate& candidate) {
  const int stages = candidate.size(Axis::pipeline);
  const strategies::PipelineEntry& entry = strategies::pipeline_schedule(candidate.schedule, stages);
  const int actions = candidate.actions();
  if (entry.refuses(stages, candidate.virtual_stages, actions)) return 0;
  return shortest_list(entry.make(stages, candidate.virtual_stages, actions), actions) *
         (candidate.micro_batches / actions);
}

double Sketcher::played(const Candidate& candidate, const Profile& profile) {
  Pipelined pipelined;
  if (!scorer_.pipeline(candidate, profile, pipelined)) return 0;
  const double bandwidth = space_.machine->device.memory_bandwidth.value;
  const Step step{candidate,
                  profile,
                  pipelined,
                  scorer_.model_of(candidate.mesh),
                  *space_.job,
                  scorer_.resolved(candidate),
                  (16 + 2 * space_.state_bytes) / bandwidth * 1.2e6,
                  schedules_.transfers_of(pipelined.schedule)};
  Plan plan;
  plan.mesh = candidate.mesh;
  std::vector<OwnTimes> own(pipelined.schedule->stages.size());
  for (std::size_t stage = 0; stage < own.size(); ++stage)
    plan.roles.push_back(StageSketch(step, static_cast<int>(stage)).run(own[stage]));
  std::vector<const Program*> programs;
  for (const Role& role : plan.roles) programs.push_back(role.program(ProgramKind::step));
  return play(plan, step.model, programs, own).step_us;
}

}  // namespace trainer::cost
