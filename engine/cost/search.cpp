// How candidates are enumerated and scored, those with the least possible step time first.
#include "engine/cost/search.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "engine/cost/domains.h"
#include "engine/cost/kinds.h"
#include "engine/cost/score.h"
#include "engine/job/pipeline_schedules.h"

namespace trainer::cost {
namespace {

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
      : space_(space),
        job_(*space.job),
        free_(job_.strategy.free),
        profiles_(profiles),
        domains_(space, profiles),
        scorer_(space, profiles) {}

  SearchResult run() {
    for (int expert : domains_.experts())
      for (int context : domains_.contexts(expert))
        for (int tensor : domains_.tensors(context)) frames(expert, context, tensor);
    std::ranges::stable_sort(frames_, {}, [](const Frame& frame) { return at_least_us(frame, frame.candidate); });
    for (const Frame& frame : frames_) schedules(frame);
    order();
    result_.impossible = domains_.take_impossible();
    return std::move(result_);
  }

  std::optional<Candidate> first_fit() {
    for (const Candidate& c : meshes())
      for (const Candidate& way : domains_.recomputed(c))
        if (const auto found = fits_smallest(way)) return found;
    return std::nullopt;
  }

  std::vector<Scored> frugal() {
    all_ = true;
    for (const Candidate& mesh : meshes()) {
      Candidate c = domains_.recomputed(mesh).back();
      const int data = world_of(c) / c.size(Axis::tensor) / c.size(Axis::pipeline);
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
    for (int expert : domains_.experts())
      for (int context : domains_.contexts(expert))
        for (int tensor : domains_.tensors(context))
          for (int pipeline : domains_.pipelines(context, tensor))
            for (const Candidate& c : cut_alike(expert, context, tensor))
              meshes.emplace_back(c).mesh.set(Axis::pipeline, pipeline);
    std::stable_sort(meshes.begin(), meshes.end(), [](const Candidate& a, const Candidate& b) {
      return a.size(Axis::pipeline) < b.size(Axis::pipeline);
    });
    return meshes;
  }

  // What candidates begin as whose graphs are cut alike.
  std::vector<Candidate> cut_alike(int expert, int context, int tensor) const {
    std::vector<Candidate> result;
    for (bool sequence_parallel : domains_.sequences(expert, tensor))
      for (ContextKind kind : domains_.context_kinds(context)) {
        Candidate& c = result.emplace_back();
        c.mesh.set(Axis::expert, expert);
        c.mesh.set(Axis::context, context);
        c.mesh.set(Axis::tensor, tensor);
        c.context = kind;
        c.sequence_parallel = sequence_parallel;
      }
    return result;
  }

  /// Whether a slower candidate is a worse one.
  bool by_time() const { return job_.goal != Goal::memory; }

  /// Ranks that have the same part of the sequences.
  int world_of(const Candidate& c) const { return space_.world_size / c.size(Axis::context); }

  // False: the batch does not divide so.
  bool smallest(Candidate& c, int data) {
    c.micro = job_.train.batch.micro.value_or(1);
    if (data % c.size(Axis::expert) != 0 || !domains_.divides(data) || job_.train.batch.global / data % c.micro != 0)
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
  void frames(int expert, int context, int tensor) {
    const std::vector<int> stages = domains_.pipelines(context, tensor);
    const std::vector<std::int64_t> micros = domains_.micros(context, tensor, stages);
    for (Candidate c : cut_alike(expert, context, tensor))
      for (std::int64_t micro : micros) {
        c.micro = micro;
        if (!frames_of(c, stages)) break;
      }
  }

  // Whether some stage count can hold one such micro-batch at all.
  bool frames_of(const Candidate& of, const std::vector<int>& stages) {
    bool any = false;
    for (Candidate c : domains_.recomputed(of)) {
      const Profile* profile = scorer_.profile_of(c);
      if (profile == nullptr) {
        const bool ring = c.context == ContextKind::ring;
        domains_.impossible(ring ? "a ring over context" : "tensor", c.size(ring ? Axis::context : Axis::tensor),
                            profiles_.why_not(c));
        return false;
      }
      bool ample = by_time();
      for (int pipeline : stages) {
        c.mesh.set(Axis::pipeline, pipeline);
        const int data = world_of(c) / c.size(Axis::tensor) / pipeline;
        if (data % c.size(Axis::expert) != 0 || !domains_.divides(data)) continue;
        if (job_.train.batch.global / data % c.micro != 0) {
          if (job_.train.batch.micro)
            domains_.impossible("data", data,
                                "the job's micro-batch of " + std::to_string(c.micro) + " does not divide a rank's " +
                                    std::to_string(job_.train.batch.global / data) + " samples");
          continue;
        }
        c.micro_batches = static_cast<int>(job_.train.batch.global / data / c.micro);
        if (c.micro_batches > kMostMicroBatches) continue;
        for (const bool pairs : domains_.in_pairs(c)) {
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

  std::vector<Candidate> kinds(const Candidate& c, int data) {
    std::string refused;
    std::vector<Candidate> result = kinds_over(space_, c, data, refused);
    if (!refused.empty()) domains_.impossible("tensor", c.size(Axis::tensor), refused);
    return result;
  }

  void schedules(const Frame& frame) {
    Candidate c = frame.candidate;
    if (c.size(Axis::pipeline) == 1) return kinds_of(c, frame);
    for (const ScheduleRecord& record : kScheduleRecords) {
      if (!free_.schedule && record.schedule != job_.strategy.pipeline.schedule) continue;
      c.schedule = record.schedule;
      for (int virtual_stages : domains_.virtual_stages(record)) {
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
  static constexpr double kHopeless = 1.1;  // a lower bound so much above what was found is not looked into
  static constexpr double kTight = 0.985;   // of the limit: so near to it, a plan may turn out not to fit
  static constexpr double kDoubtful = 1.1;  // so much above the limit, what is scored may fit all the same

  const SearchSpace& space_;
  const Job& job_;
  const FreeParts& free_;
  ProfileSource& profiles_;
  Domains domains_;
  Scorer scorer_;
  SearchResult result_;
  std::vector<Frame> frames_;
  std::set<Identity> fitting_;  // without recomputation
  std::set<MeshAndKind> reported_;
  std::set<Mesh> all_reported_;  // without their data axes: every kind of them is
  double best_us_ = 0;
  bool all_ = false;  // slow ones too
};

}  // namespace

SearchResult search(const SearchSpace& space, ProfileSource& profiles) { return Enumeration(space, profiles).run(); }

std::vector<Scored> frugal(const SearchSpace& space, ProfileSource& profiles) {
  return Enumeration(space, profiles).frugal();
}

std::optional<Candidate> first_fit(const SearchSpace& space, ProfileSource& profiles) {
  return Enumeration(space, profiles).first_fit();
}

}  // namespace trainer::cost
