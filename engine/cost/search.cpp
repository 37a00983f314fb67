// How candidates are enumerated, those with the least possible step time first, and the rules that choose among them.
#include "engine/cost/search.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "engine/cost/kinds.h"
#include "engine/cost/score.h"
#include "engine/job/data_strategies.h"
#include "engine/job/nearest_numbers.h"
#include "engine/job/pipeline_schedules.h"

namespace trainer::cost {
namespace {

std::vector<int> divisors_up_to(std::int64_t number, std::int64_t most) {
  std::vector<int> result;
  for (const std::int64_t divisor : divisors(number))
    if (divisor <= most) result.push_back(static_cast<int>(divisor));
  return result;
}

// A mesh without its data axes, a micro-batch and a recomputation.
struct Frame {
  Candidate candidate;
  const Profile* profile;
  int data;              // ranks along the data axes
  double at_least_us;    // computing of an average stage
  double forward_share;  // of it
};

double forward_share(const Profile& profile) {
  double forward = 0, both = 0;
  for (const Piece& piece : profile.pieces) {
    forward += piece.forward_us;
    both += piece.forward_us + piece.backward_us();
  }
  return both > 0 ? forward / both : 0;
}

// The least that a step takes under the candidate's schedule. The last stage waits for a chunk's forward pass on each
// of the others; where backward passes are not split, the first one waits for as many backward passes.
double at_least_us(const Frame& frame, const Candidate& c) {
  const ScheduleRecord& record = kScheduleRecords[static_cast<std::size_t>(c.schedule)];
  const double waits = (c.size(Axis::pipeline) - 1) * (record.splits_backward ? frame.forward_share : 1.0);
  return frame.at_least_us * (1 + waits / (static_cast<double>(c.virtual_stages) * c.actions()));
}

class Enumeration {
 public:
  Enumeration(const SearchSpace& space, ProfileSource& profiles)
      : space_(space), job_(*space.job), free_(job_.strategy.free), profiles_(profiles), scorer_(space, profiles) {}

  SearchResult run() {
    for (int expert : experts())
      for (int context : contexts(expert)) {
        expert_ = expert, context_ = context;
        for (int tensor : tensors()) frames(tensor);
      }
    std::ranges::stable_sort(frames_, {}, [](const Frame& frame) { return at_least_us(frame, frame.candidate); });
    for (const Frame& frame : frames_) schedules(frame);
    order();
    return std::move(result_);
  }

  std::optional<Candidate> first_fit() {
    for (const Candidate& c : meshes())
      for (const Candidate& way : recomputed(c))
        if (const auto found = fits_smallest(way)) return found;
    return std::nullopt;
  }

  std::vector<Scored> frugal() {
    all_ = true;
    for (const Candidate& mesh : meshes()) {
      Candidate c = recomputed(mesh).back();
      const int data = world_of(c) / c.size(Axis::tensor) / c.size(Axis::pipeline);
      context_ = c.size(Axis::context);
      if (!smallest(c, data) || c.micro_batches > kMostMicroBatches) continue;
      if (const Profile* profile = scorer_.profile_of(c))
        schedules({c, profile, data, scorer_.at_least_us(c, *profile), forward_share(*profile)});
    }
    std::stable_sort(result_.scored.begin(), result_.scored.end(),
                     [](const Scored& a, const Scored& b) { return a.bytes < b.bytes; });
    return std::move(result_.scored);
  }

 private:
  // Every mesh without its data axes, those with few stages first.
  std::vector<Candidate> meshes() {
    std::vector<Candidate> meshes;
    for (int expert : experts())
      for (int context : contexts(expert)) {
        expert_ = expert, context_ = context;
        for (int tensor : tensors())
          for (int pipeline : pipelines(tensor))
            for (bool sequence_parallel : sequences(tensor))
              for (ContextKind kind : context_kinds()) {
                Candidate& c = meshes.emplace_back(cut_alike(tensor, sequence_parallel, kind));
                c.mesh.set(Axis::pipeline, pipeline);
              }
      }
    std::stable_sort(meshes.begin(), meshes.end(), [](const Candidate& a, const Candidate& b) {
      return a.size(Axis::pipeline) < b.size(Axis::pipeline);
    });
    return meshes;
  }

  // What candidates begin as whose graphs are cut alike.
  Candidate cut_alike(int tensor, bool sequence_parallel, ContextKind kind) const {
    Candidate c;
    c.mesh.set(Axis::expert, expert_);
    c.mesh.set(Axis::context, context_);
    c.context = kind;
    c.mesh.set(Axis::tensor, tensor);
    c.sequence_parallel = sequence_parallel;
    return c;
  }

  /// Whether a slower candidate is a worse one.
  bool by_time() const { return job_.goal != Goal::memory; }

  /// Ranks that have the same part of the sequences.
  int world() const { return space_.world_size / context_; }
  int world_of(const Candidate& c) const { return space_.world_size / c.size(Axis::context); }

  // Ranks along it have samples of their own, so it is a part of the data ranks. Tokens travel within a node, unless
  // there are as many experts as ranks of several.
  std::vector<int> experts() {
    const auto fixed = static_cast<int>(job_.strategy.expert.degree);
    if (space_.world_size % fixed != 0)
      impossible("expert", fixed, "does not divide the " + std::to_string(space_.world_size) + " ranks");
    if (!free_.expert) return {fixed};
    std::vector<int> result{1};
    const std::int64_t all = goes_with_experts() ? profiles_.experts() : 1;
    for (int degree = 2; degree <= std::min<std::int64_t>(all, space_.world_size); ++degree)
      if (all % degree == 0 && space_.world_size % degree == 0 && fills_nodes(degree)) result.push_back(degree);
    return result;
  }
  bool goes_with_experts() const {
    return job_.strategy.data.compression.kind == Compression::Kind::none && !(job_.eval && job_.eval->generate) &&
           (free_.data || !record_of(job_.strategy.data).averages);
  }

  // Parts of a sequence are worth gathering for where they are long, and within a node. Of a sequence so long that its
  // parts hide what crosses nodes, or that a node cannot hold, they may be more.
  std::vector<int> contexts(int expert) {
    const auto fixed = static_cast<int>(job_.strategy.context.degree);
    if (expert > 1 && fixed > 1) impossible("expert", expert, "does not go beside context");
    if (expert > 1) return fixed == 1 ? std::vector{1} : std::vector<int>{};
    if (space_.world_size % fixed != 0) {
      impossible("context", fixed, "does not divide the " + std::to_string(space_.world_size) + " ranks");
      return {};
    }
    if (!free_.context) return {fixed};
    std::vector<int> result{1};
    const int most = long_sequences() ? space_.world_size : space_.ranks_per_node;
    for (int degree = 2; cuts_sequences() && degree <= most; degree *= 2)
      if (fills_nodes(degree) && space_.world_size % degree == 0 && job_.data.seq_len % degree == 0 &&
          job_.data.seq_len / degree >= kShortestPart)
        result.push_back(degree);
    return result;
  }

  // A ring computes chunk by chunk, of which a part has two: it is looked at where these are long.
  std::vector<ContextKind> context_kinds() const {
    if (context_ == 1) return {ContextKind::gather};
    if (!free_.context) return {job_.strategy.context.kind};
    if (job_.data.seq_len / (2 * context_) < kShortestPart) return {ContextKind::gather};
    return {ContextKind::gather, ContextKind::ring};
  }

  bool long_sequences() const { return job_.data.seq_len >= kLongSequence; }
  /// Whether so many ranks are a part of a node, or nodes.
  bool fills_nodes(int ranks) const { return space_.ranks_per_node % ranks == 0 || ranks % space_.ranks_per_node == 0; }
  bool cuts_sequences() const { return job_.data.is_text() && job_.train.objective.kind != ObjectiveKind::dpo; }

  std::vector<int> tensors() const {
    const std::int64_t world = this->world();
    if (!free_.tensor) return {static_cast<int>(job_.strategy.tensor.degree.value_or(world))};
    // Beyond a node its collectives, which nothing hides, would cross the slowest links.
    std::vector<int> result;
    for (int degree : divisors_up_to(world, space_.ranks_per_node))
      if (space_.ranks_per_node % degree == 0 && fills_nodes(degree * context_) &&
          (long_sequences() || degree * context_ <= space_.ranks_per_node))
        result.push_back(degree);
    return result;
  }

  std::vector<int> pipelines(int tensor) {
    const int rest = world() / tensor;
    if (world() % tensor != 0) {
      impossible("tensor", tensor, "does not divide the " + std::to_string(world()) + " ranks");
      return {};
    }
    if (!free_.pipeline) {
      const auto degree = static_cast<int>(job_.strategy.pipeline.degree.value_or(rest));
      if (rest % degree == 0) return {degree};
      impossible("pipeline", degree,
                 "does not divide the " + std::to_string(rest) + " ranks that tensor " + std::to_string(tensor) +
                     " leaves of " + std::to_string(world()));
      return {};
    }
    std::vector<int> result;
    for (int degree : divisors_up_to(rest, 4096))
      if (!profiles_.cut(degree, 1).empty()) result.push_back(degree);
    return result;
  }

  std::vector<bool> sequences(int tensor) const {
    if (tensor == 1) return {false};
    if (expert_ > 1 && (free_.sequence_parallel || job_.strategy.tensor.sequence_parallel))
      return free_.sequence_parallel ? std::vector<bool>{false} : std::vector<bool>{};
    return free_.sequence_parallel ? std::vector<bool>{false, true}
                                   : std::vector<bool>{job_.strategy.tensor.sequence_parallel};
  }

  // False: the batch does not divide so.
  bool smallest(Candidate& c, int data) {
    c.micro = job_.train.batch.micro.value_or(1);
    if (data % c.size(Axis::expert) != 0 || !divides(data) || job_.train.batch.global / data % c.micro != 0)
      return false;
    c.micro_batches = static_cast<int>(job_.train.batch.global / data / c.micro);
    return true;
  }

  // With the smallest micro-batch, under the plainest schedule that the job allows: the first data strategy that fits.
  std::optional<Candidate> fits_smallest(Candidate c) {
    const int data = world_of(c) / c.size(Axis::tensor) / c.size(Axis::pipeline);
    if (!smallest(c, data)) return std::nullopt;
    if (free_.pipeline && c.micro_batches < c.size(Axis::pipeline))
      return std::nullopt;  // most of the step would be a bubble
    c.pairs = job_.strategy.tensor.overlap && c.size(Axis::tensor) > 1;
    if (c.pairs && c.micro_batches % 2 != 0) return std::nullopt;
    if (!free_.schedule) c.schedule = job_.strategy.pipeline.schedule;
    if (!free_.virtual_stages) c.virtual_stages = static_cast<int>(job_.strategy.pipeline.virtual_stages);
    const Profile* profile = scorer_.profile_of(c);
    Pipelined pipelined;
    const Candidate spread = with_data(c, data);
    if (profile == nullptr || !scorer_.pipeline(spread, *profile, pipelined)) return std::nullopt;
    const auto fitting = [&]() -> std::optional<Candidate> {
      for (const Candidate& one : kinds(c, data))
        if (scorer_.bytes_of(one, *profile, pipelined) <= space_.limit_bytes) return one;
      return std::nullopt;
    };
    const std::optional<Candidate> found = fitting();
    if (found || !may_be_cut(c)) return found;
    c.begins = std::make_shared<const std::vector<int>>(scorer_.cut_for_memory(spread, *profile, pipelined));
    pipelined = {};
    scorer_.pipeline(c, *profile, pipelined);
    return fitting();
  }

  // Micro-batches from small to large, until not even the most frugal way holds one.
  void frames(int tensor) {
    for (bool sequence_parallel : sequences(tensor))
      for (ContextKind kind : context_kinds()) {
        Candidate c = cut_alike(tensor, sequence_parallel, kind);
        const std::vector<int> stages = pipelines(tensor);
        for (std::int64_t micro : micros(tensor, stages)) {
          c.micro = micro;
          if (!frames_of(c, stages)) break;
        }
      }
  }

  std::vector<std::int64_t> micros(int tensor, const std::vector<int>& stages) {
    if (job_.train.batch.micro) return {*job_.train.batch.micro};
    std::set<std::int64_t> result;
    for (int pipeline : stages) {
      const int data = world() / tensor / pipeline;
      if (divides(data))
        for (int size : divisors_up_to(job_.train.batch.global / data, 4096)) result.insert(size);
    }
    return {result.begin(), result.end()};
  }

  bool divides(int data) {
    const std::int64_t global = job_.train.batch.global;
    if (global % data != 0) {
      const std::int64_t below = global / data * data;
      impossible("data", data,
                 "a batch of " + std::to_string(global) + " samples does not divide over " + std::to_string(data) +
                     " data ranks; " + (below > 0 ? std::to_string(below) + " and " : "") +
                     std::to_string(below + data) + " do");
    }
    return global % data == 0;
  }

  // Whether some stage count can hold one such micro-batch at all.
  bool frames_of(const Candidate& of, const std::vector<int>& stages) {
    bool any = false;
    for (Candidate c : recomputed(of)) {
      const Profile* profile = scorer_.profile_of(c);
      if (profile == nullptr) {
        const bool ring = c.context == ContextKind::ring;
        impossible(ring ? "a ring over context" : "tensor", c.size(ring ? Axis::context : Axis::tensor),
                   profiles_.why_not(c));
        return false;
      }
      bool ample = by_time();
      for (int pipeline : stages) {
        c.mesh.set(Axis::pipeline, pipeline);
        const int data = world() / c.size(Axis::tensor) / pipeline;
        if (data % expert_ != 0 || !divides(data)) continue;
        if (job_.train.batch.global / data % c.micro != 0) {
          if (job_.train.batch.micro)
            impossible("data", data,
                       "the job's micro-batch of " + std::to_string(c.micro) + " does not divide a rank's " +
                           std::to_string(job_.train.batch.global / data) + " samples");
          continue;
        }
        c.micro_batches = static_cast<int>(job_.train.batch.global / data / c.micro);
        if (c.micro_batches > kMostMicroBatches) continue;
        for (const bool pairs : in_pairs(c)) {
          c.pairs = pairs;
          const Profile* of_action = scorer_.profile_of(c);
          frames_.push_back({c, of_action, data, scorer_.at_least_us(c, *of_action), forward_share(*of_action)});
        }
        c.pairs = false;
        any = any || least_bytes(*profile, pipeline) <= space_.limit_bytes;
        ample = ample && 2 * most_bytes(*profile, pipeline) <= space_.limit_bytes;
      }
      if (any && ample) break;  // no need of recomputation
    }
    return any || of.micro == 1;
  }

  // Pairs of micro-batches, where there is something to overlap.
  std::vector<bool> in_pairs(const Candidate& c) const {
    if (c.size(Axis::tensor) == 1) return {false};
    const bool even = c.micro_batches % 2 == 0;
    if (job_.strategy.tensor.overlap) return even ? std::vector<bool>{true} : std::vector<bool>{};
    const OffloadJob& offload = job_.strategy.offload;
    const bool goes = free_.tensor && even && space_.machine->device.kind != DeviceKind::cpu &&
                      offload.activations == OffloadTo::none && offload.gradients == OffloadTo::none;
    return goes ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }

  // Everything whole on every data rank, as many micro-batches in flight as there are stages.
  std::int64_t most_bytes(const Profile& profile, int pipeline) const {
    std::int64_t trained = 0, frozen = 0, saved = 0, transient = 0;
    for (const Piece& piece : profile.pieces) {
      trained += piece.trained;
      frozen += piece.parameters - piece.trained;
      saved += piece.saved_bytes;
      transient = std::max(transient, piece.transient_bytes);
    }
    const double held = static_cast<double>(trained) * (16 + space_.state_bytes) + 8 * static_cast<double>(frozen);
    return static_cast<std::int64_t>(held) / pipeline + saved + transient;
  }

  // Activations of one micro-batch of an average stage, whatever the strategy.
  static std::int64_t least_bytes(const Profile& profile, int pipeline) {
    std::int64_t saved = 0;
    for (const Piece& piece : profile.pieces) saved += piece.saved_bytes;
    return saved / pipeline;
  }

  // From what keeps most to what keeps least.
  std::vector<Candidate> recomputed(Candidate c) const {
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
  std::vector<bool> gathers_again(const Candidate& c) const {
    const TensorKeep keep = job_.strategy.tensor.keep;
    if (!c.sequence_parallel || keep == TensorKeep::gathered) return {false};
    if (keep == TensorKeep::shard) return {true};
    const CheckpointingMode mode = c.recompute.mode, asked = job_.activation_checkpointing.mode;
    const bool keeps = mode == CheckpointingMode::none || (mode == CheckpointingMode::every_n && asked == mode);
    return keeps ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }

  std::vector<ActivationCheckpointingJob> recomputations() const {
    if (job_.activation_checkpointing.mode != CheckpointingMode::automatic) return {job_.activation_checkpointing};
    return {{CheckpointingMode::none, 1},
            {CheckpointingMode::selective, 1},
            {CheckpointingMode::every_n, 4},
            {CheckpointingMode::every_n, 2},
            {CheckpointingMode::full, 1}};
  }

  std::vector<Candidate> kinds(const Candidate& c, int data) {
    std::string refused;
    std::vector<Candidate> result = kinds_over(space_, c, data, refused);
    if (!refused.empty()) impossible("tensor", c.size(Axis::tensor), refused);
    return result;
  }

  void schedules(const Frame& frame) {
    Candidate c = frame.candidate;
    if (c.size(Axis::pipeline) == 1) return kinds_of(c, frame);
    for (const ScheduleRecord& record : kScheduleRecords) {
      if (!free_.schedule && record.schedule != job_.strategy.pipeline.schedule) continue;
      c.schedule = record.schedule;
      for (int virtual_stages : virtual_stages_of(record)) {
        c.virtual_stages = virtual_stages;
        kinds_of(c, frame);
      }
    }
  }

  void kinds_of(const Candidate& c, const Frame& frame) {
    const bool hopeless = !all_ && by_time() && best_us_ > 0 && at_least_us(frame, c) > kHopeless * best_us_;
    if (hopeless && (c.virtual_stages > 2 || all_reported_.contains(c.mesh))) return;
    std::vector<Candidate> ways = kinds(c, frame.data);
    std::erase_if(ways, [&](const Candidate& one) {
      if (hopeless && reported(one)) return true;                    // one of each kind is
      return !fitting_.empty() && fitting_.contains(identity(one));  // it fits with less recomputation
    });
    if (ways.empty()) return;
    Pipelined pipelined;
    const Candidate spread = with_data(c, frame.data);
    if (!scorer_.pipeline(spread, *frame.profile, pipelined)) return;
    std::vector<Candidate> tight;
    for (const Candidate& one : ways) {
      const std::int64_t bytes = scorer_.bytes_of(one, *frame.profile, pipelined);
      add(one, frame, pipelined, bytes);
      if (!hopeless && is_tight(bytes)) tight.push_back(one);
    }
    all_reported_.insert(c.mesh);
    if (!tight.empty() && may_be_cut(c)) cut_for_memory(spread, tight, frame, pipelined);
  }

  static Candidate with_data(Candidate c, int data) {
    c.mesh.set(Axis::replicate, data / c.size(Axis::expert));
    return c;
  }

  // What does not fit, or may turn out not to.
  bool is_tight(std::int64_t bytes) const {
    const auto limit = static_cast<double>(space_.limit_bytes);
    return static_cast<double>(bytes) > kTight * limit && static_cast<double>(bytes) <= kDoubtful * limit;
  }
  bool may_be_cut(const Candidate& c) const {
    return c.size(Axis::pipeline) > 1 && job_.strategy.pipeline.split_policy == SplitPolicy::automatic;
  }

  // The same with the pipeline cut for memory, where they need less by that.
  void cut_for_memory(const Candidate& spread, const std::vector<Candidate>& candidates, const Frame& frame,
                      const Pipelined& before) {
    Candidate cut = spread;
    cut.begins = std::make_shared<const std::vector<int>>(scorer_.cut_for_memory(spread, *frame.profile, before));
    Pipelined pipelined;
    scorer_.pipeline(cut, *frame.profile, pipelined);
    for (Candidate one : candidates) {
      const std::int64_t bytes_before = scorer_.bytes_of(one, *frame.profile, before);
      one.begins = cut.begins;
      const std::int64_t bytes = scorer_.bytes_of(one, *frame.profile, pipelined);
      if (bytes < bytes_before) add(one, frame, pipelined, bytes);
    }
  }

  void add(const Candidate& c, const Frame& frame, Pipelined& pipelined, std::int64_t bytes) {
    Scored scored;
    if (static_cast<double>(bytes) <= kDoubtful * static_cast<double>(space_.limit_bytes)) {
      scored = scorer_.score(c, *frame.profile, pipelined);
    } else {
      scored.candidate = c;
      scored.step_us = frame.at_least_us;
      scored.bytes = bytes;
    }
    if (scored.fits && (best_us_ == 0 || scored.step_us < best_us_)) best_us_ = scored.step_us;
    if (scored.fits && by_time() && c.recompute.mode == CheckpointingMode::none && !c.gathers_again && !c.begins)
      fitting_.insert(identity(c));
    reported_.insert(mesh_and_kind(c));
    result_.scored.push_back(scored);
  }

  using Identity = std::tuple<MeshAndKind, bool, bool, ContextKind, PipelineSchedule, int, std::int64_t>;
  static Identity identity(const Candidate& c) {
    return {mesh_and_kind(c), c.sequence_parallel, c.pairs, c.context, c.schedule, c.virtual_stages, c.micro};
  }
  bool reported(const Candidate& c) const { return reported_.contains(mesh_and_kind(c)); }

  std::vector<int> virtual_stages_of(const ScheduleRecord& record) const {
    if (!free_.virtual_stages) return {static_cast<int>(job_.strategy.pipeline.virtual_stages)};
    std::vector<int> result;
    for (int v : {1, 2, 3, 4, 6, 8})
      if (record.takes(v) && (v > 1 || record.most_virtual_stages == 1)) result.push_back(v);
    return result;
  }

  void impossible(const std::string& what, int degree, const std::string& why) {
    std::string text = what + " " + std::to_string(degree) + ": " + why;
    if (seen_.insert(text).second) result_.impossible.push_back(std::move(text));
  }

  void order() {
    const Goal goal = job_.goal;
    std::stable_sort(result_.scored.begin(), result_.scored.end(), [&](const Scored& a, const Scored& b) {
      if (a.fits != b.fits) return a.fits;
      if (!a.fits) return a.bytes < b.bytes;
      if (goal == Goal::memory && a.bytes != b.bytes) return a.bytes < b.bytes;
      if (a.step_us != b.step_us) return a.step_us < b.step_us;
      return complexity(a.candidate) < complexity(b.candidate);
    });
  }

  static constexpr int kMostMicroBatches = 4096;
  static constexpr std::int64_t kShortestPart = 4096;  // positions of a part of a sequence that is looked at
  static constexpr std::int64_t kLongSequence = 65536;
  static constexpr double kHopeless = 1.1;  // a lower bound so much above what was found is not looked into
  static constexpr double kTight = 0.985;   // of the limit: so near to it, a plan may turn out not to fit
  static constexpr double kDoubtful = 1.1;  // so much above the limit, what is scored may fit all the same

  const SearchSpace& space_;
  const Job& job_;
  const FreeParts& free_;
  ProfileSource& profiles_;
  Scorer scorer_;
  SearchResult result_;
  std::vector<Frame> frames_;
  std::set<std::string> seen_;
  std::set<Identity> fitting_;  // without recomputation
  std::set<MeshAndKind> reported_;
  std::set<Mesh> all_reported_;  // without their data axes: every kind of them is
  double best_us_ = 0;
  bool all_ = false;              // slow ones too
  int expert_ = 1, context_ = 1;  // of the candidates at hand
};

}  // namespace

SearchResult search(const SearchSpace& space, ProfileSource& profiles) { return Enumeration(space, profiles).run(); }

std::vector<Scored> frugal(const SearchSpace& space, ProfileSource& profiles) {
  return Enumeration(space, profiles).frugal();
}

std::optional<Candidate> first_fit(const SearchSpace& space, ProfileSource& profiles) {
  return Enumeration(space, profiles).first_fit();
}

double measure(Goal goal, const Scored& one) {
  return goal == Goal::memory ? static_cast<double>(one.bytes) : one.step_us;
}

double tie_of(double spread) { return std::clamp(spread / 2, kEqual, kMostTie); }

double axis_tie_of(double spread) { return std::clamp(spread, kEqual, kMostTie); }

bool has_headroom(const Scored& one, std::int64_t limit_bytes) {
  return static_cast<double>(one.bytes) <= (1 - kHeadroom) * static_cast<double>(limit_bytes);
}

namespace {

// The candidates that are left, as indices; each rule removes some and never all.
class Rules {
 public:
  Rules(Goal goal, const std::vector<Scored>& scored) : goal_(goal), scored_(scored) {
    for (std::size_t i = 0; i < scored.size(); ++i)
      if (scored[i].fits) left_.push_back(i);
  }

  bool any() const { return !left_.empty(); }

  template <typename Value>
  std::size_t least(Value&& value) const {
    return *std::min_element(left_.begin(), left_.end(),
                             [&](std::size_t a, std::size_t b) { return value(scored_[a]) < value(scored_[b]); });
  }
  const Scored& fastest() const {
    return scored_[least([&](const Scored& one) { return measure(goal_, one); })];
  }

  template <typename Wanted>
  void keep(Wanted&& wanted) {
    std::vector<std::size_t> kept;
    for (const std::size_t i : left_)
      if (wanted(scored_[i])) kept.push_back(i);
    if (!kept.empty()) left_ = std::move(kept);
  }
  void keep_near(double share) {
    const double most = (1 + share) * measure(goal_, fastest());
    keep([&](const Scored& one) { return measure(goal_, one) <= most; });
  }

 private:
  Goal goal_;
  const std::vector<Scored>& scored_;
  std::vector<std::size_t> left_;
};

}  // namespace

std::size_t choose(Goal goal, std::int64_t limit_bytes, const std::vector<Scored>& scored) {
  Rules rules(goal, scored);
  if (!rules.any())
    return static_cast<std::size_t>(
        std::min_element(scored.begin(), scored.end(),
                         [](const Scored& a, const Scored& b) { return a.bytes < b.bytes; }) -
        scored.begin());
  if (goal == Goal::memory) {
    rules.keep_near(kEqual);
    return rules.least([](const Scored& one) { return one.step_us; });
  }
  const Scored& fastest = rules.fastest();
  Rules near = rules;
  near.keep_near(axis_tie_of(fastest.spread));
  const int axes = scored[near.least([](const Scored& one) { return one.candidate.num_axes(); })].candidate.num_axes();
  rules.keep([&](const Scored& one) { return one.candidate.num_axes() <= axes; });
  const double most = (1 + kMostTie) * measure(goal, fastest);
  rules.keep([&](const Scored& one) { return measure(goal, one) <= most; });
  rules.keep_near(tie_of(rules.fastest().spread));
  rules.keep([&](const Scored& one) { return has_headroom(one, limit_bytes); });
  return rules.least([](const Scored& one) { return std::pair(complexity(one.candidate), one.step_us); });
}

const Scored& likeliest(Goal goal, std::int64_t limit_bytes, const SearchResult& found) {
  constexpr double kSpread = 0.06;
  std::vector<Scored> scored = found.scored;
  for (Scored& one : scored) one.spread = kSpread;
  return found.scored[choose(goal, limit_bytes, scored)];
}

}  // namespace trainer::cost
