// How each quantity of two runs is held against its bound.
#include "engine/train/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>

#include "engine/checkpoint/checkpoint.h"
#include "engine/compile/trained.h"
#include "engine/core/check.h"
#include "engine/core/file.h"
#include "engine/core/muon.h"
#include "engine/core/op_record.h"
#include "engine/job/data_strategies.h"
#include "engine/plan/update_operands.h"
#include "engine/train/compared_runs.h"
#include "engine/train/serial_steps.h"
#include "engine/train/stored.h"
#include "engine/train/train.h"

namespace trainer {
namespace {

constexpr double kRoundoffF32 = 0x1p-24;
constexpr double kLambda = 8;

double roundoff16(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-9;
    case DType::f16:
      return 0x1p-12;
    default:
      return 0;
  }
}

// The most by which rounding changes a state: stochastic rounding takes either neighbour; of codes see
// kernels/state_codes.h.
double roundoff_of(States states) {
  switch (states) {
    case States::f32:
      return 0;
    case States::bf16:
      return 0x1p-8;
    case States::int8:
      return 0.45 / 64;
  }
  return 0;
}

// From one number to the next of those that a value may be sent as, as a share of the largest that is sent with it.
double quantum_of(const DataStrategyJob& sent) {
  if (sent.gather == SentAs::int8 || sent.reduce_dtype == SentAs::int8) return 1.0 / 127;
  switch (sent.outer ? sent.outer->compression.kind : sent.compression.kind) {
    case Compression::Kind::none:
      return 0;
    case Compression::Kind::bf16:
      return 0x1p-8;
    case Compression::Kind::int8:
      return 1.0 / 127;
    case Compression::Kind::top_k:  // all of it, or nothing
      return 1;
  }
  return 0;
}

// How much farther apart than gradients updates can be: a Newton-Schulz step multiplies small singular values by this.
double gain_of(const OptimizerJob& optimizer) {
  constexpr double kMuonGain = 3.4445;
  return optimizer.name == OptimizerName::muon ? std::pow(kMuonGain, static_cast<double>(optimizer.ns_steps)) : 1;
}

// Of the weights, where they travel as codes.
double gain_of_codes(const DataStrategyJob& sent, const std::vector<OptimizerJob>& optimizers) {
  double largest = 1;
  if (sent.gather == SentAs::int8)
    for (const OptimizerJob& optimizer : optimizers) largest = std::max(largest, gain_of(optimizer));
  return largest;
}

double largest_roundoff(const std::vector<OptimizerJob>& optimizers) {
  double largest = 0;
  for (const OptimizerJob& optimizer : optimizers) largest = std::max(largest, roundoff_of(optimizer.states));
  return largest;
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_((std::filesystem::temp_directory_path() / "trainer-verify-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) fail_io(path_, "making a temporary folder");
  }
  ~TemporaryDirectory() {
    std::error_code ignored;  // what cannot be removed is the system's to clean up
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The numbers of a job that bounds are made of.
class Bounds {
 public:
  // `sent`: as what `ranks` sends travels.
  Bounds(const Job& job, const CompiledJob& one, const DataStrategyJob& sent)
      : u16_(roundoff16(job.precision.compute) + roundoff16(job.precision.reduce)),
        states_(largest_roundoff(one.optimizers)),
        quantum_(quantum_of(sent)),
        gain_(gain_of_codes(sent, one.optimizers)) {
    std::int64_t longest = job.train.batch.global * (job.data.is_text() ? job.data.tokens() : 1), matrices = 1;
    for (const Role& role : one.plan.roles)
      for (const Unit& unit : role.units)
        for (const UnitTensor& tensor : unit.tensors) {
          const Shape& shape = tensor.spec.whole;
          matrices += shape.rank() >= 2;
          for (int dim = 0; dim < shape.rank(); ++dim) longest = std::max(longest, shape[dim]);
        }
    terms_ = static_cast<double>(longest);
    depth_ = static_cast<double>(matrices);
  }

  double loss(std::size_t step) const {
    return 2 * (std::sqrt(depth_) * sum(step) + (1 + std::sqrt(depth_ / terms_)) * u16_ +
                std::sqrt(depth_ / terms_) * (states(step) + (step == 0 ? 0 : codes(step - 1))));
  }
  double gradient(std::size_t step) const { return rounded(step) + codes(step); }

 private:
  double rounded(std::size_t step) const { return 2 * std::sqrt(depth_) * (sum(step) + u16_ + states(step)); }

  double codes(std::size_t step) const { return std::sqrt(quantum_ * gain_ * rounded(step)); }

  double sum(std::size_t step) const {
    return kLambda * std::sqrt(terms_) * kRoundoffF32 * static_cast<double>(step + 1);
  }

  // The first update takes what it has just computed.
  double states(std::size_t step) const { return step == 0 ? 0 : states_; }

  const double u16_, states_, quantum_, gain_;
  double terms_ = 1, depth_ = 1;
};

// Keeps of several differences the one that comes nearest to its bound.
void worsen(Quantity& quantity, double difference, double bound) {
  const bool first = quantity.bound == 0;
  if (first || !(difference / bound <= quantity.difference / quantity.bound)) {
    if (!first && std::isnan(quantity.difference)) return;
    quantity.difference = difference;
    quantity.bound = bound;
  }
}

double relative(double a, double b) { return a == b ? 0 : std::fabs(a - b) / std::fabs(b); }

// ---- Weights -------------------------------------------------------------------------------------------------------

std::vector<float> read(const checkpoint::TensorStore& tensors, const std::string& name, std::int64_t first,
                        std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  tensors.read(name, first, count, values.data());
  return values;
}

// The units of the one rank that an optimizer updates; -1: the frozen ones.
std::vector<const Unit*> units_of(const Ended& one, std::int32_t optimizer) {
  std::vector<const Unit*> units;
  for (const Role& role : one.compiled.plan.roles)
    for (const Unit& unit : role.units)
      if (unit.optimizer == optimizer) units.push_back(&unit);
  return units;
}

struct Weight {
  std::string name;  // of its states
  Stored stored;
  std::int64_t elements = 0;
};

std::vector<float> read(const checkpoint::TensorStore& tensors, const Weight& weight, std::int64_t first,
                        std::int64_t count) {
  return read(tensors, weight.stored.name, weight.stored.first + first, count);
}

// Their weights. A checkpoint may lack frozen ones.
std::vector<Weight> weights_of(const Ended& run, const std::vector<const Unit*>& units) {
  std::vector<Weight> weights;
  for (const Unit* unit : units)
    for (const UnitTensor& tensor : unit->tensors) {
      const Stored stored = in_store(tensor, run.checkpoint.tensors);
      const checkpoint::TensorInfo* info = run.checkpoint.tensors.find(stored.name);
      if (info == nullptr && !unit->trained()) continue;
      CHECK(info != nullptr && info->dtype == DType::f32, "a checkpoint holds every weight: " + tensor.name);
      weights.push_back({tensor.name, stored, tensor.spec.whole.elements()});
    }
  return weights;
}

struct Distance {
  double total = 0;    // of an element, over all steps
  double largest = 0;  // the most that an element can go
};

// Newton-Schulz steps leave singular values below this (Jordan et al., 2024).
constexpr double kMostSingular = 1.2;

Distance distance_of(const Job& job, const OptimizerJob& optimizer, const std::vector<const Unit*>& units,
                     const std::vector<double>& norms) {
  double squares = 0, adjustment = 0;  // of the updates of Muon's matrices together; the largest
  if (optimizer.name == OptimizerName::muon)
    for (const Unit* unit : units)
      for (const OwnedMatrix& matrix : matrices_of(*unit, Mesh{})) {
        const double one = muon_adjustment(matrix.rows, matrix.cols, optimizer.adjust == MuonAdjust::match_rms_adamw);
        squares += one * one * static_cast<double>(std::min(matrix.rows, matrix.cols));
        adjustment = std::max(adjustment, one);
      }
  Distance way;
  for (std::size_t step = 0; step < norms.size(); ++step) {
    if (std::isinf(norms[step])) continue;  // left out
    const double lr = learning_rate(job.train, optimizer, static_cast<std::int64_t>(step));
    const double norm = job.train.clip_norm ? std::min(norms[step], *job.train.clip_norm) : norms[step];
    switch (optimizer.name) {
      case OptimizerName::sgd:
        way.total += lr * norm / (1 - optimizer.momentum);
        way.largest += lr * norm / (1 - optimizer.momentum);
        break;
      case OptimizerName::muon:
        way.total += lr * std::sqrt(squares);
        way.largest += lr * adjustment * kMostSingular;
        break;
      case OptimizerName::lion:
        way.total += lr;
        way.largest += lr;
        break;
      case OptimizerName::adam:
      case OptimizerName::adamw:  // Kingma and Ba, ICLR 2015, section 2.1: the bound on a step
        way.total += lr;
        way.largest += lr * std::max(1.0, (1 - optimizer.betas[0]) / std::sqrt(1 - optimizer.betas[1]));
        break;
    }
  }
  return way;
}

template <typename Visit>
void by_parts(const Weight& weight, Visit&& visit) {
  constexpr std::int64_t kPart = std::int64_t{1} << 20;
  for (std::int64_t first = 0; first < weight.elements; first += kPart)
    visit(first, std::min(kPart, weight.elements - first));
}

// Whether a frozen weight is what it was, on one rank and on all.
bool unmoved(const Weight& weight, const Ended& ranks, const Ended& one) {
  bool same = true;
  by_parts(weight, [&](std::int64_t first, std::int64_t count) {
    same = same &&
           read(ranks.checkpoint.tensors, weight, first, count) == read(one.checkpoint.tensors, weight, first, count);
  });
  return same;
}

// The weights that one optimizer updates.
class Weights {
 public:
  Weights(const Job& job, const OptimizerJob& optimizer, std::vector<const Unit*> units, const Ended& ranks,
          const Ended& one, double gradient_bound)
      : optimizer_(optimizer),
        units_(std::move(units)),
        ranks_(ranks),
        one_(one),
        steps_(static_cast<double>(one.norms.size())),
        gradient_bound_(gradient_bound),
        way_(distance_of(job, optimizer, units_, one.norms)) {}

  std::vector<Quantity> compare() {
    const std::vector<Weight> weights = weights_of(one_, units_);
    if (adaptive())
      for (const Weight& weight : weights) add_size(weight);
    for (const Weight& weight : weights) add(weight);
    const double count = std::max(1.0, elements_), rms = std::sqrt(squares_ / count);
    const double rounding = 2 * steps_ * kRoundoffF32 * std::sqrt(weight_squares_ / count);
    // The way of SGD and Muon is that of all elements together.
    const double way = adaptive() ? way_.total : way_.total / std::sqrt(count);
    const double undecided =
        adaptive() ? 2 * std::sqrt(undecided_ / count) : 2 * std::min(1.0, gain_of(optimizer_) * gradient_bound_);
    const double least = std::numeric_limits<double>::min();
    return {{"weights", rms / std::max(way, least), undecided + rounding / std::max(way, least)},
            {"weights_largest", largest_, 2 * way_.largest + 2 * steps_ * kRoundoffF32 * largest_weight_}};
  }

 private:
  // An update is divided by the size of the gradients, element by element.
  bool adaptive() const { return optimizer_.name != OptimizerName::sgd && optimizer_.name != OptimizerName::muon; }

  // The size of the gradients that the optimizer divides by, element by element, on one rank.
  std::vector<float> sizes(const Weight& weight, std::int64_t first, std::int64_t count) const {
    const bool lion = optimizer_.name == OptimizerName::lion;
    std::vector<float> values =
        read(one_.checkpoint.tensors, weight.name + (lion ? ".exp_avg" : ".exp_avg_sq"), first, count);
    const double correction = 1 - std::pow(optimizer_.betas[1], steps_);
    for (float& value : values) value = lion ? std::fabs(value) : static_cast<float>(std::sqrt(value / correction));
    return values;
  }

  void add_size(const Weight& weight) {
    double squares = 0;
    by_parts(weight, [&](std::int64_t first, std::int64_t count) {
      for (float size : sizes(weight, first, count)) squares += static_cast<double>(size) * size;
    });
    const auto elements = static_cast<double>(weight.elements);
    tensor_rms_.push_back(std::sqrt(squares / elements));
    size_squares_ += squares;
    size_elements_ += elements;
  }

  void add(const Weight& weight) {
    by_parts(weight, [&](std::int64_t first, std::int64_t count) {
      const std::vector<float> a = read(ranks_.checkpoint.tensors, weight, first, count);
      const std::vector<float> b = read(one_.checkpoint.tensors, weight, first, count);
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        squares_ += difference * difference;
        if (!(difference <= largest_)) largest_ = difference;
        weight_squares_ += static_cast<double>(b[i]) * b[i];
        largest_weight_ = std::max(largest_weight_, std::fabs(static_cast<double>(b[i])));
      }
    });
    if (adaptive()) add_undecided(weight);
    elements_ += static_cast<double>(weight.elements);
    ++index_;
  }

  // An element that never had a gradient (a word that did not occur) has none on either side.
  void add_undecided(const Weight& weight) {
    const double eps = optimizer_.name == OptimizerName::lion ? 0 : optimizer_.eps;
    const double scale = gradient_bound_ * std::max(tensor_rms_[index_], std::sqrt(size_squares_ / size_elements_));
    by_parts(weight, [&](std::int64_t first, std::int64_t count) {
      for (float size : sizes(weight, first, count)) {
        const double part = size == 0 ? 0 : std::min(1.0, scale / (size + eps));
        undecided_ += part * part;
      }
    });
  }

  const OptimizerJob& optimizer_;
  const std::vector<const Unit*> units_;
  const Ended& ranks_;
  const Ended& one_;
  const double steps_;
  const double gradient_bound_;
  const Distance way_;
  std::size_t index_ = 0;           // of the weight that is added
  std::vector<double> tensor_rms_;  // of the gradients' sizes
  double size_squares_ = 0, size_elements_ = 0;
  double elements_ = 0, squares_ = 0, largest_ = 0, weight_squares_ = 0, largest_weight_ = 0, undecided_ = 0;
};

LoadedJob quiet(LoadedJob loaded) {
  Job& job = loaded.job;
  job.checkpoint = CheckpointJob{};
  job.checkpoint.every = std::numeric_limits<std::int64_t>::max();
  job.checkpoint.resume = CheckpointJob::Resume::none;
  job.log = LogJob{};
  job.eval.reset();
  job.train.on_nan = OnNan::stop;
  job.cluster.backend = Backend::threads;
  return loaded;
}

template <typename Is>
bool has_signature(const CompiledJob& compiled, const Is& is) {
  return std::ranges::any_of(compiled.plan.roles,
                             [&](const Role& role) { return std::ranges::any_of(role.signatures, is); });
}

// Where scores are within a rounding of each other, ranks may choose another expert than one rank.
bool routes_in_16_bits(const CompiledJob& compiled) {
  return has_signature(
      compiled, [](const Signature& one) { return one.op == Op::route && one.operands.front().dtype != DType::f32; });
}

// What is simulated part by part has equal parts of targets, and parameters that checkpoints have as they are.
void check_simulated(const LoadedJob& loaded, const Compiler& compile) {
  if (loaded.job.adapter && SerialSteps::sends_weights(loaded.job))
    throw JobError({loaded.at("strategy.data.gather",
                              "checkpoints do not hold the base of an adapter, and verify takes from them the weights "
                              "that it simulates as codes",
                              "exact")});
  const bool apart = record_of(loaded.job.strategy.data).averages, rows = loaded.job.data.is_rows(),
             of_file = !loaded.job.strategy.pipeline.schedule_file.empty();
  const bool in_parts = (rows || of_file) && !apart && SerialSteps::sends_micro_batches(loaded.job) &&
                        SerialSteps::num_parts(loaded.job, compile(loaded)) > 1;
  if (rows && (apart || in_parts))
    throw JobError({loaded.at("data.format",
                              "rows have unequal numbers of targets, and verify simulates ranks that train apart, or "
                              "send the gradient of each micro-batch as codes, with equal numbers")});
  if (of_file && in_parts)
    throw JobError({loaded.at("strategy.pipeline.schedule",
                              "verify simulates the codes of each micro-batch by a step of one, which a schedule of a "
                              "file is not for",
                              "the name of a schedule; or strategy.data.reduce: step")});
  for (const std::string& glob : loaded.job.trainable.globs)
    if (glob.ends_with(']'))
      throw JobError({loaded.at("trainable", "verify simulates no ranks that train rows of a table")});
}

}  // namespace

bool Comparison::holds() const {
  return std::all_of(quantities.begin(), quantities.end(), [](const Quantity& quantity) { return quantity.holds(); });
}

bool is_simulated(const LoadedJob& ranks) {
  return record_of(ranks.job.strategy.data).averages || SerialSteps::sends_codes(ranks.job);
}

LoadedJob on_threads(const LoadedJob& loaded, const Compiler& compile) {
  if (is_simulated(loaded)) check_simulated(loaded, compile);
  LoadedJob threads = quiet(loaded);
  if (threads.job.cluster.nodes == 1) return threads;
  // What was decided for several nodes is kept where they are one.
  threads.job.strategy = compile(loaded).strategy;
  threads.job.cluster.devices_per_node = world_size_of(loaded.job);
  threads.job.cluster.nodes = 1;
  return threads;
}

std::int64_t micro_of_one_rank(const LoadedJob& ranks, const CompiledJob& compiled) {
  const auto joins_statistics = [](const Signature& one) {
    return one.op == Op::batch_norm_apply && !flag(one, "own");
  };
  const BatchShape& batch = compiled.batch;
  if (batch.data_ranks == 1 || !has_signature(compiled, joins_statistics)) return batch.micro;
  if (batch.micro_batches > 1)
    throw JobError({ranks.at("train.batch.micro",
                             "batch norms with sync: true take the statistics of a micro-batch of every rank, and one "
                             "rank has these samples in one micro-batch only where they are the whole batch",
                             std::to_string(batch.global / batch.data_ranks))});
  return batch.global;
}

LoadedJob on_one_rank(const LoadedJob& loaded, std::int64_t micro) {
  LoadedJob one = quiet(loaded);
  const std::vector<std::string> excluded = one.job.strategy.wrap.excluded;
  one.job.strategy = StrategyJob{};
  one.job.strategy.wrap.excluded = excluded;
  one.job.cluster.nodes = 1;
  one.job.cluster.devices_per_node = 1;
  one.job.train.batch.micro = micro;
  return one;
}

Comparison compare(const LoadedJob& ranks, const LoadedJob& one, std::int64_t steps, const Compiler& compile) {
  const TemporaryDirectory folder;
  const Ended a = run_job(ranks, folder.path() + "/ranks", steps, compile);
  const auto truth = [&] {
    if (record_of(ranks.job.strategy.data).averages)
      return run_apart(ranks, one, a.compiled, folder.path(), steps, compile);
    if (SerialSteps::sends_codes(ranks.job))
      return run_coded(ranks, one, a.compiled, folder.path(), std::ssize(a.losses), compile);
    return run_job(one, folder.path() + "/one", steps, compile);
  };
  const Ended b = truth();
  CHECK(a.losses.size() == b.losses.size(), "both take the same steps");
  Comparison comparison{static_cast<std::int64_t>(b.losses.size()), {}, {}};
  if (b.losses.empty()) return comparison;
  const Bounds bounds(one.job, b.compiled, ranks.job.strategy.data);
  Quantity losses{"losses"}, gradients{"gradients"};
  for (std::size_t step = 0; step < b.losses.size(); ++step) {
    worsen(losses, relative(a.losses[step], b.losses[step]), bounds.loss(step));
    worsen(gradients, relative(a.norms[step], b.norms[step]), bounds.gradient(step));
  }
  Quantity weights{"weights"}, largest{"weights_largest"};
  for (std::size_t i = 0; i < b.compiled.optimizers.size(); ++i) {
    const OptimizerJob& optimizer = b.compiled.optimizers[i];
    const std::vector<Quantity> found = Weights(one.job, optimizer, units_of(b, static_cast<std::int32_t>(i)), a, b,
                                                bounds.gradient(b.losses.size() - 1))
                                            .compare();
    worsen(weights, found[0].difference, found[0].bound);
    worsen(largest, found[1].difference, found[1].bound);
  }
  for (const Weight& frozen : weights_of(b, units_of(b, -1)))
    if (!unmoved(frozen, a, b)) largest.difference = std::numeric_limits<double>::infinity();
  const Quantity replicas{"replicas", static_cast<double>(a.different_replicas.size())};
  comparison.quantities = {losses, gradients, weights, largest, replicas};
  comparison.different_replicas = a.different_replicas;
  if (!b.apart.empty()) {
    const Bounds exact(one.job, b.compiled, DataStrategyJob{});
    Quantity sums{"sums"};
    const bool by_norms = routes_in_16_bits(b.compiled);
    for (std::size_t step = 0; step < b.apart.size(); ++step)
      worsen(sums, by_norms ? b.apart[step].norms : b.apart[step].sums, exact.gradient(step));
    comparison.quantities.push_back(sums);
  }
  if (!a.counts_dropped && !b.counts_dropped) return comparison;
  Quantity dropped{"dropped"};
  for (std::size_t step = 0; step < b.dropped.size(); ++step)
    dropped.difference =
        std::max(dropped.difference, std::fabs(static_cast<double>(a.dropped[step] - b.dropped[step])));
  comparison.quantities.push_back(dropped);
  return comparison;
}

}  // namespace trainer
