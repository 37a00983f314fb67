// ProfileCache: makes the profiles that a search asks for, each once, from the graph that compiling the candidate would
// make.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/compile/compiled_job.h"
#include "engine/compile/repeated.h"
#include "engine/core/once_map.h"
#include "engine/cost/search.h"
#include "engine/job/yaml.h"

namespace trainer {

/// What a search needs to know of `job` on `hardware`, which has a machine. `job` outlives it. `state_bytes`: as
/// engine/compile/optimizers.h has it.
cost::SearchSpace search_space(const Job& job, const Hardware& hardware, double state_bytes);

/// How a graph is cut over ranks: the axes that matter to it, and how it is cut along them.
struct Cutting {
  Mesh mesh;
  bool sequence_parallel = false;
  ContextKind context = ContextKind::gather;
  auto operator<=>(const Cutting&) const = default;
};

/// What a profile of a cutting is of.
struct ProfileKey {
  std::int64_t micro = 0;
  CheckpointingMode mode = CheckpointingMode::none;
  std::int64_t every = 1;
  bool gathers_again = false;
  auto operator<=>(const ProfileKey&) const = default;
};

class ProfileCache final : public cost::ProfileSource {
 public:
  /// `whole`: profiles are of the whole model, for tests; else pieces that repeat themselves are looked at once
  /// (repeated.h).
  ProfileCache(const LoadedJob& loaded, const Hardware& hardware, bool whole = false);

  const cost::Profile* profile(const cost::Candidate& candidate) override;
  std::string why_not(const cost::Candidate& candidate) override;
  std::int64_t experts() override;
  const std::vector<int>& cut(int chunks, std::int64_t samples) override;
  /// The nodes that begin the pieces.
  const std::vector<std::string>& pieces() const { return pieces_; }
  /// Of a forward pass of the whole model.
  std::size_t num_nodes() { return whole(1).nodes.size(); }

 private:
  static Cutting cutting_of(const cost::Candidate& c) {
    return {{{Axis::expert, c.size(Axis::expert)},
             {Axis::context, c.size(Axis::context)},
             {Axis::tensor, c.size(Axis::tensor)}},
            c.sequence_parallel,
            c.context};
  }
  /// The model without an adapter.
  const Graph& whole(std::int64_t micro);
  /// Without blocks that another stands for. Where experts are cut, of all ranks that do, with what travels between
  /// them.
  const Graph& shortened(std::int64_t micro, const Cutting& cutting);

  /// What is known of one cutting. One thread at a time works on it.
  struct Cut {
    std::mutex working;
    std::optional<std::string> refusal;
    std::unique_ptr<cost::CostModel> model;
    std::map<ProfileKey, cost::Profile> profiles;
  };
  Cut& cut_of(const Cutting& cutting);
  /// Raises JobError where the model cannot be cut so.
  const cost::Profile& profile(Cut& cut, const Cutting& cutting, const ProfileKey& key);

  /// A graph with its gradients, before anything is recomputed. A search asks for all recomputations of one in a row,
  /// so the last few are kept: as many as threads may search.
  struct Differentiated {
    Cutting cutting;
    std::int64_t micro;
    Graph graph;
  };
  std::unique_ptr<Differentiated> take_differentiated(const Cutting& cutting, std::int64_t micro);
  Graph differentiated(const Cutting& cutting, std::int64_t micro);
  cost::Profile made(const Graph& whole, const cost::CostModel& model, const ProfileKey& key);
  void move_off_device(cost::Profile& profile, const cost::CostModel& model) const;
  cost::Profile mixed(const cost::Profile& none, const cost::Profile& full, std::int64_t every) const;

  const LoadedJob& loaded_;
  const Hardware& hardware_;
  const yaml::Node tree_;
  OnceMap<std::int64_t, Graph> whole_;  // by micro-batch
  OnceMap<std::tuple<std::int64_t, int, int, int>, Graph>
      shortened_;                                 // by micro-batch; expert, context and tensor degree
  std::vector<std::string> pieces_;               // nodes that begin them
  std::vector<std::string> blocks_;               // of each piece; empty: it is none
  std::vector<int> stands_for_;                   // of each piece (repeated.h)
  std::map<std::string, std::string> stand_ins_;  // the same of their blocks
  std::vector<std::string> kept_;                 // of `pieces_` those that no other stands for
  std::mutex mutex_;
  std::map<Cutting, Cut> by_cutting_;                         // under the mutex
  std::vector<std::unique_ptr<Differentiated>> last_graphs_;  // under the mutex; the newest comes last
  std::vector<int> cut_by_cost(int chunks, std::int64_t samples);
  std::vector<int> cut_as_asked(int chunks);
  OnceMap<std::pair<int, std::int64_t>, std::vector<int>> cuts_;  // by chunks and samples
  struct PieceCosts {
    std::vector<double> one, further;  // of one sample, of each further one
  };
  std::once_flag costs_known_;
  PieceCosts costs_;
};

}  // namespace trainer
