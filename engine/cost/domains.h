// The domain of each decision of a search: the degrees, micro-batches and ways that the job, the model and the cluster
// allow and that are worth a look. What a job fixes is the only value of its domain.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/cost/search_space.h"
#include "engine/job/pipeline_schedules.h"

namespace trainer::cost {

/// Why degrees cannot be: "tensor 16: heads (12) cannot be split evenly over 16 ranks".
class Refusals {
 public:
  /// Said once, however often it is found.
  void add(const std::string& what, int degree, const std::string& why);
  void add(const Refusals& others);
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  void add(const std::string& text);

  std::set<std::string> seen_;
  std::vector<std::string> texts_;
};

/// Several threads may ask. What is found to be impossible is added to `refusals`.
class Domains {
 public:
  /// Both outlive it.
  Domains(const SearchSpace& space, ProfileSource& profiles)
      : space_(space), job_(*space.job), free_(job_.strategy.free), profiles_(profiles) {}

  /// Degrees of the expert axis. Ranks along it have samples of their own, so it is a part of the data ranks.
  std::vector<int> experts(Refusals& refusals) const;
  std::vector<int> contexts(int expert, Refusals& refusals) const;
  std::vector<ContextKind> context_kinds(int context) const;
  std::vector<int> tensors(int context) const;
  /// Of as many ranks as `context` and `tensor` leave.
  std::vector<int> pipelines(int context, int tensor, Refusals& refusals) const;
  /// Whether sequence parallelism is looked at, and whether anything else is. With experts over ranks nothing else, if
  /// the model can be cut so: it sends each token from one of the ranks of the tensor axis instead of from all.
  std::vector<bool> sequences(int expert, int tensor) const;
  /// Samples of a micro-batch that divide a rank's under some number of stages, ascending.
  std::vector<std::int64_t> micros(int context, int tensor, const std::vector<int>& stages, Refusals& refusals) const;
  /// Pairs of micro-batches (`strategy.tensor.overlap`), where there is something to overlap.
  std::vector<bool> in_pairs(const Candidate& candidate) const;
  /// The candidate with each way to recompute, from what keeps most to what keeps least.
  std::vector<Candidate> recomputed(Candidate candidate) const;
  std::vector<int> virtual_stages(const ScheduleRecord& record) const;

  /// Whether the global batch divides over so many data ranks.
  bool divides(int data, Refusals& refusals) const;

 private:
  bool goes_with_experts() const;
  bool long_sequences() const;
  bool fills_nodes(int ranks) const;
  bool cuts_sequences() const;
  bool cuts_rows(int expert, int tensor) const;
  std::vector<bool> gathers_again(const Candidate& candidate) const;
  std::vector<ActivationCheckpointingJob> recomputations() const;

  const SearchSpace& space_;
  const Job& job_;
  const FreeParts& free_;
  ProfileSource& profiles_;
};

}  // namespace trainer::cost
