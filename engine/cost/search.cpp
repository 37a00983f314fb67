// How candidates are enumerated and scored, those with the least possible step time first.
#include "engine/cost/search.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "engine/core/parallel.h"
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

// A lower bound so much above what was found is not looked into.
constexpr double kHopeless = 1.1;

// What two candidates have in common that differ in recomputation alone.
using Identity = std::tuple<MeshAndKind, bool, bool, ContextKind, PipelineSchedule, int, std::int64_t>;
Identity identity(const Candidate& c) {
  return {mesh_and_kind(c), c.sequence_parallel, c.pairs, c.context, c.schedule, c.virtual_stages, c.micro};
}

Candidate with_data(Candidate c, int data) {
  c.mesh.set(Axis::replicate, data / c.size(Axis::expert));
  return c;
}

// What has been found so far, by which others are left out.
struct Known {
  double best_us = 0;
  std::set<Identity> fitting;  // without recomputation
  std::set<MeshAndKind> reported;
  std::set<Mesh> all_reported;  // without their data axes: every kind of them is
};

// What a frame's candidates are scored at.
struct Found {
  std::vector<Scored> scored;
  std::optional<Mesh> reported;  // every kind of it is
  Refusals refusals;
};

// Scores the candidates of one frame.
class FrameScoring {
 public:
  // `all`: slow ones too.
  FrameScoring(const SearchSpace& space, const Domains& domains, Scorer& scorer, const Known& known, bool all,
               const Frame& frame)
      : space_(space),
        job_(*space.job),
        domains_(domains),
        scorer_(scorer),
        known_(known),
        frame_(frame),
        prunes_(!all && job_.goal != Goal::memory),
        best_us_(known.best_us) {}

  Found run() {
    Candidate c = frame_.candidate;
    if (c.size(Axis::pipeline) == 1) {
      kinds_of(c);
      return std::move(found_);
    }
    for (const ScheduleRecord& record : kScheduleRecords) {
      if (!job_.strategy.free.schedule && record.schedule != job_.strategy.pipeline.schedule) continue;
      c.schedule = record.schedule;
      for (int virtual_stages : domains_.virtual_stages(record)) {
        c.virtual_stages = virtual_stages;
        kinds_of(c);
      }
    }
    return std::move(found_);
  }

 private:
  void kinds_of(const Candidate& c) {
    const bool hopeless = prunes_ && best_us_ > 0 && at_least_us(frame_, c) > kHopeless * best_us_;
    if (hopeless && (c.virtual_stages > 2 || found_.reported || known_.all_reported.contains(c.mesh))) return;
    std::string refused;
    std::vector<Candidate> ways = kinds_over(space_, c, frame_.data, refused);
    if (!refused.empty()) found_.refusals.add("tensor", c.size(Axis::tensor), refused);
    std::erase_if(ways, [&](const Candidate& one) {
      if (hopeless && known_.reported.contains(mesh_and_kind(one))) return true;  // one of each kind is
      return !known_.fitting.empty() && known_.fitting.contains(identity(one));   // it fits with less recomputation
    });
    if (ways.empty()) return;
    Pipelined pipelined;
    const Candidate spread = with_data(c, frame_.data);
    if (!scorer_.pipeline(spread, *frame_.profile, pipelined)) return;
    std::vector<Candidate> tight;
    for (const Candidate& one : ways) {
      const std::int64_t bytes = scorer_.bytes_of(one, *frame_.profile, pipelined);
      add(one, pipelined, bytes);
      if (!hopeless && is_tight(bytes)) tight.push_back(one);
    }
    found_.reported = c.mesh;
    if (!tight.empty() && c.size(Axis::pipeline) > 1 && job_.strategy.pipeline.split_policy == SplitPolicy::automatic)
      cut_for_memory(spread, tight, pipelined);
  }

  // What does not fit, or may turn out not to.
  bool is_tight(std::int64_t bytes) const {
    const auto limit = static_cast<double>(space_.limit_bytes);
    return static_cast<double>(bytes) > kTight * limit && static_cast<double>(bytes) <= kDoubtful * limit;
  }

  // The same with the pipeline cut for memory, where they need less by that.
  void cut_for_memory(const Candidate& spread, const std::vector<Candidate>& candidates, const Pipelined& before) {
    const Profile& profile = *frame_.profile;
    Candidate cut = spread;
    cut.begins = std::make_shared<const std::vector<int>>(scorer_.cut_for_memory(spread, profile, before));
    Pipelined pipelined;
    scorer_.pipeline(cut, profile, pipelined);
    for (Candidate one : candidates) {
      const std::int64_t bytes_before = scorer_.bytes_of(one, profile, before);
      one.begins = cut.begins;
      const std::int64_t bytes = scorer_.bytes_of(one, profile, pipelined);
      if (bytes < bytes_before) add(one, pipelined, bytes);
    }
  }

  void add(const Candidate& c, Pipelined& pipelined, std::int64_t bytes) {
    Scored scored;
    if (static_cast<double>(bytes) <= kDoubtful * static_cast<double>(space_.limit_bytes)) {
      scored = scorer_.score(c, *frame_.profile, pipelined);
    } else {
      scored.candidate = c;
      scored.step_us = frame_.at_least_us;
      scored.bytes = bytes;
    }
    if (scored.fits && (best_us_ == 0 || scored.step_us < best_us_)) best_us_ = scored.step_us;
    found_.scored.push_back(std::move(scored));
  }

  static constexpr double kTight = 0.985;   // of the limit: so near to it, a plan may turn out not to fit
  static constexpr double kDoubtful = 1.1;  // so much above the limit, what is scored may fit all the same

  const SearchSpace& space_;
  const Job& job_;
  const Domains& domains_;
  Scorer& scorer_;
  const Known& known_;
  const Frame& frame_;
  const bool prunes_;
  double best_us_;
  Found found_;
};

class Enumeration {
 public:
  Enumeration(const SearchSpace& space, ProfileSource& profiles)
      : space_(space), job_(*space.job), profiles_(profiles), domains_(space, profiles) {
    for (std::size_t lane = 0; lane < num_processors(); ++lane) scorers_.emplace_back(space, profiles);
  }

  SearchResult run() {
    std::vector<Cut> cuts = this->cuts();
    for (std::size_t most = kFirstMicros; std::ranges::any_of(cuts, &Cut::goes_on); most = kAllMicros) {
      std::vector<Frame> frames = this->frames(cuts, most);
      std::ranges::stable_sort(frames, {}, [](const Frame& frame) { return at_least_us(frame, frame.candidate); });
      score(frames, false);
    }
    order();
    result_.impossible = refusals_.texts();
    return std::move(result_);
  }

  std::optional<Candidate> first_fit() {
    for (const Candidate& c : meshes())
      for (const Candidate& way : domains_.recomputed(c))
        if (const auto found = fits_smallest(way)) return found;
    return std::nullopt;
  }

  std::vector<Scored> frugal() {
    std::vector<Frame> frames;
    for (const Candidate& mesh : meshes()) {
      Candidate c = domains_.recomputed(mesh).back();
      const int data = data_ranks(c);
      if (!smallest(c, data) || c.micro_batches > kMostMicroBatches) continue;
      if (const Profile* profile = scorers_[0].profile_of(c)) frames.push_back(frame_of(c, profile, data, scorers_[0]));
    }
    score(frames, true);
    std::ranges::stable_sort(result_.scored, {}, &Scored::bytes);
    return std::move(result_.scored);
  }

 private:
  // Every mesh without its data axes, those with few stages first.
  std::vector<Candidate> meshes() {
    std::vector<Candidate> meshes;
    for (int expert : domains_.experts(refusals_))
      for (int context : domains_.contexts(expert, refusals_))
        for (int tensor : domains_.tensors(context))
          for (int pipeline : domains_.pipelines(context, tensor, refusals_))
            for (const Candidate& c : cut_alike(expert, context, tensor))
              meshes.emplace_back(c).mesh.set(Axis::pipeline, pipeline);
    std::ranges::stable_sort(meshes, {}, [](const Candidate& c) { return c.size(Axis::pipeline); });
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

  int data_ranks(const Candidate& c) const {
    return space_.world_size / c.size(Axis::context) / c.size(Axis::tensor) / c.size(Axis::pipeline);
  }

  // False: the batch does not divide so.
  bool smallest(Candidate& c, int data) {
    c.micro = job_.train.batch.micro.value_or(1);
    if (data % c.size(Axis::expert) != 0 || !domains_.divides(data, refusals_) ||
        job_.train.batch.global / data % c.micro != 0)
      return false;
    c.micro_batches = static_cast<int>(job_.train.batch.global / data / c.micro);
    return true;
  }

  // With the smallest micro-batch, under the plainest schedule that the job allows: the first data strategy that fits.
  std::optional<Candidate> fits_smallest(Candidate c) {
    const FreeParts& free = job_.strategy.free;
    Scorer& scorer = scorers_[0];
    const int data = data_ranks(c);
    if (!smallest(c, data)) return std::nullopt;
    if (free.pipeline && c.micro_batches < c.size(Axis::pipeline))
      return std::nullopt;  // most of the step would be a bubble
    c.pairs = job_.strategy.tensor.overlap && c.size(Axis::tensor) > 1;
    if (c.pairs && c.micro_batches % 2 != 0) return std::nullopt;
    if (!free.schedule) c.schedule = job_.strategy.pipeline.schedule;
    if (!free.virtual_stages) c.virtual_stages = static_cast<int>(job_.strategy.pipeline.virtual_stages);
    const Profile* profile = scorer.profile_of(c);
    Pipelined pipelined;
    const Candidate spread = with_data(c, data);
    if (profile == nullptr || !scorer.pipeline(spread, *profile, pipelined)) return std::nullopt;
    const auto fitting = [&]() -> std::optional<Candidate> {
      std::string refused;
      for (const Candidate& one : kinds_over(space_, c, data, refused))
        if (scorer.bytes_of(one, *profile, pipelined) <= space_.limit_bytes) return one;
      return std::nullopt;
    };
    const std::optional<Candidate> found = fitting();
    if (found || c.size(Axis::pipeline) == 1 || job_.strategy.pipeline.split_policy != SplitPolicy::automatic)
      return found;
    c.begins = std::make_shared<const std::vector<int>>(scorer.cut_for_memory(spread, *profile, pipelined));
    pipelined = {};
    scorer.pipeline(c, *profile, pipelined);
    return fitting();
  }

  // Candidates of graphs that are cut alike, from small micro-batches to large ones.
  struct Cut {
    Candidate candidate;
    std::vector<int> stages;
    std::vector<std::int64_t> micros;
    std::size_t next = 0;  // of micros
    // Computing of an average rank in a step, whatever the schedule, with the last micro-batch and with the one before.
    struct Computing {
      std::int64_t micro = 0;
      double us = 0;
    };
    Computing last{}, before{};
    std::vector<Frame> frames{};  // that are not scored yet
    Refusals refusals{};

    bool goes_on() const { return next < micros.size(); }

    void learn(std::span<const Frame> of_micro) {
      const auto least = std::ranges::min_element(of_micro, {}, &Frame::at_least_us);
      before = std::exchange(last, {candidate.micro, least->at_least_us});
    }
  };

  std::vector<Cut> cuts() {
    std::vector<Cut> cuts;
    for (int expert : domains_.experts(refusals_))
      for (int context : domains_.contexts(expert, refusals_))
        for (int tensor : domains_.tensors(context)) {
          const std::vector<int> stages = domains_.pipelines(context, tensor, refusals_);
          const std::vector<std::int64_t> micros = domains_.micros(context, tensor, stages, refusals_);
          for (const Candidate& c : cut_alike(expert, context, tensor)) cuts.push_back({c, stages, micros});
        }
    return cuts;
  }

  // The frames of up to `most` micro-batches of each cut, until not even the most frugal way holds one. Threads take
  // turns at the cuts.
  std::vector<Frame> frames(std::vector<Cut>& cuts, std::size_t most) {
    for_each_index_in_lanes(cuts.size(), scorers_.size(), [&](std::size_t i, std::size_t lane) {
      Cut& cut = cuts[i];
      for (; cut.next < std::min(most, cut.micros.size()); ++cut.next) {
        cut.candidate.micro = cut.micros[cut.next];
        if (is_hopeless(cut) || !frames_of(cut, scorers_[lane])) cut.next = cut.micros.size() - 1;
      }
    });
    std::vector<Frame> frames;
    for (Cut& cut : cuts) {
      std::ranges::move(std::exchange(cut.frames, {}), std::back_inserter(frames));
      refusals_.add(cut.refusals);
    }
    return frames;
  }

  // Whether larger micro-batches are too slow as well. What twice the micro-batch gains is less each time: all that
  // follow gain less than two times what the last ones did.
  bool is_hopeless(const Cut& cut) const {
    if (known_.best_us == 0 || job_.goal == Goal::memory || cut.before.micro == 0) return false;
    const double doublings = std::log2(static_cast<double>(cut.last.micro) / static_cast<double>(cut.before.micro));
    const double gain = std::pow(std::min(1.0, cut.last.us / cut.before.us), 2 / doublings);
    return cut.last.us * gain > kHopeless * known_.best_us;
  }

  // Whether some stage count can hold one such micro-batch at all.
  bool frames_of(Cut& cut, Scorer& scorer) {
    const Candidate& of = cut.candidate;
    const std::size_t known = cut.frames.size();
    Refusals& refusals = cut.refusals;
    bool any = false;
    for (Candidate c : domains_.recomputed(of)) {
      const Profile* profile = scorer.profile_of(c);
      if (profile == nullptr) {
        const bool ring = c.context == ContextKind::ring;
        refusals.add(ring ? "a ring over context" : "tensor", c.size(ring ? Axis::context : Axis::tensor),
                     profiles_.why_not(c));
        return false;
      }
      bool ample = job_.goal != Goal::memory;  // where a slower candidate is a worse one
      for (int pipeline : cut.stages) {
        c.mesh.set(Axis::pipeline, pipeline);
        const int data = data_ranks(c);
        if (data % c.size(Axis::expert) != 0 || !domains_.divides(data, refusals)) continue;
        if (job_.train.batch.global / data % c.micro != 0) {
          if (job_.train.batch.micro)
            refusals.add("data", data,
                         "the job's micro-batch of " + std::to_string(c.micro) + " does not divide a rank's " +
                             std::to_string(job_.train.batch.global / data) + " samples");
          continue;
        }
        c.micro_batches = static_cast<int>(job_.train.batch.global / data / c.micro);
        if (c.micro_batches > kMostMicroBatches) continue;
        for (const bool pairs : domains_.in_pairs(c)) {
          c.pairs = pairs;
          cut.frames.push_back(frame_of(c, scorer.profile_of(c), data, scorer));
        }
        c.pairs = false;
        any = any || least_bytes(*profile, pipeline) <= space_.limit_bytes;
        ample = ample && 2 * most_bytes(*profile, pipeline) <= space_.limit_bytes;
      }
      if (any && ample) break;  // no need of recomputation
    }
    if (cut.frames.size() > known) cut.learn(std::span(cut.frames).subspan(known));
    return any || of.micro == 1;
  }

  static Frame frame_of(const Candidate& c, const Profile* profile, int data, const Scorer& scorer) {
    return {c, profile, data, scorer.at_least_us(c, *profile), forward_share(*profile)};
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

  // Frames that are scored together do not see what is found of each other, so that the result is the same on any
  // number of processors. At first they are few: the best time so far leaves out most of the others.
  void score(const std::vector<Frame>& frames, bool all) {
    std::size_t together = 1;
    for (std::size_t first = 0; first < frames.size();
         first += together, together = std::min(2 * together, kTogether)) {
      std::vector<Found> found(std::min(together, frames.size() - first));
      for_each_index_in_lanes(found.size(), scorers_.size(), [&](std::size_t i, std::size_t lane) {
        found[i] = FrameScoring(space_, domains_, scorers_[lane], known_, all, frames[first + i]).run();
      });
      for (Found& one : found) learn(one);
    }
  }

  void learn(Found& found) {
    refusals_.add(found.refusals);
    if (found.reported) known_.all_reported.insert(*found.reported);
    for (Scored& scored : found.scored) {
      const Candidate& c = scored.candidate;
      if (scored.fits && (known_.best_us == 0 || scored.step_us < known_.best_us)) known_.best_us = scored.step_us;
      if (scored.fits && job_.goal != Goal::memory && c.recompute.mode == CheckpointingMode::none && !c.gathers_again &&
          !c.begins)
        known_.fitting.insert(identity(c));
      known_.reported.insert(mesh_and_kind(c));
      result_.scored.push_back(std::move(scored));
    }
  }

  // By keys, since there may be a hundred thousand, each of some hundred bytes.
  void order() {
    std::vector<Scored>& scored = result_.scored;
    struct Key {
      bool misses;
      double first, second;  // the smaller comes first
      std::size_t index;
    };
    std::vector<Key> keys;
    keys.reserve(scored.size());
    for (const Scored& one : scored) {
      const auto bytes = static_cast<double>(one.bytes);
      if (!one.fits || job_.goal == Goal::memory)
        keys.push_back({!one.fits, bytes, one.fits ? one.step_us : 0, keys.size()});
      else
        keys.push_back({false, one.step_us, 0, keys.size()});
    }
    std::ranges::stable_sort(keys, [&](const Key& a, const Key& b) {
      const auto numbers = [](const Key& key) { return std::tuple(key.misses, key.first, key.second); };
      if (numbers(a) != numbers(b)) return numbers(a) < numbers(b);
      return !a.misses && complexity(scored[a.index].candidate) < complexity(scored[b.index].candidate);
    });
    std::vector<Scored> ordered;
    ordered.reserve(scored.size());
    for (const Key& key : keys) ordered.push_back(std::move(scored[key.index]));
    scored = std::move(ordered);
  }

  static constexpr int kMostMicroBatches = 4096;
  // Of each cut, by which others are left out.
  static constexpr std::size_t kFirstMicros = 3, kAllMicros = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kTogether = 64;

  const SearchSpace& space_;
  const Job& job_;
  ProfileSource& profiles_;
  const Domains domains_;
  std::deque<Scorer> scorers_;  // of each lane
  Known known_;
  Refusals refusals_;
  SearchResult result_;
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
