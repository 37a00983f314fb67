// How a base is opened, hashed and compared with the one that the checkpoint names.
#include "engine/train/base.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "engine/checkpoint/checksum.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/core/narrow.h"
#include "engine/job/peft_config.h"
#include "engine/plan/pieces.h"
#include "engine/train/non_finite.h"
#include "engine/train/staging.h"
#include "engine/train/stored.h"

namespace trainer {
namespace {

Wanted of_model(const CompiledJob& compiled) {
  return [names = std::set<std::string>(compiled.adapter.begin(), compiled.adapter.end())](
             const Unit&, const UnitTensor& tensor) { return !names.contains(tensor.name); };
}

Wanted of_adapter(const CompiledJob& compiled) {
  return [others = of_model(compiled)](const Unit& unit, const UnitTensor& tensor) { return !others(unit, tensor); };
}

bool frozen(const Unit& unit, const UnitTensor&) { return !unit.trained(); }
bool trained(const Unit& unit, const UnitTensor&) { return unit.trained(); }

/// The adapter, and of what else is trained whatever the source has.
Wanted of_start(const CompiledJob& compiled, const checkpoint::TensorStore& tensors) {
  return [adapter = of_adapter(compiled), &tensors](const Unit& unit, const UnitTensor& tensor) {
    return adapter(unit, tensor) || (unit.trained() && tensors.find(tensor.name) != nullptr);
  };
}

std::string checksum_of_tensor(const checkpoint::TensorStore& tensors, const checkpoint::TensorInfo& info) {
  checkpoint::Checksum sum;
  std::vector<std::byte> raw;
  std::vector<float> values;
  for (std::int64_t first = 0; first < info.shape.elements(); first += kStagedElements) {
    const std::int64_t count = std::min(kStagedElements, info.shape.elements() - first);
    raw.resize(static_cast<std::size_t>(count * size_of(info.dtype)));
    tensors.read(info.name, first, count, raw.data());
    if (info.dtype == DType::f32) {
      sum.add(raw.data(), raw.size());
      continue;
    }
    values.resize(static_cast<std::size_t>(count));
    to_f32(info.dtype, raw.data(), count, values.data());
    sum.add(values.data(), values.size() * sizeof(float));
  }
  return sum.hex();
}

/// Names of the model's own parameters and states, sorted; tables by their own names, of copies the originals alone.
std::vector<std::string> model_parameters(const CompiledJob& compiled) {
  const Wanted own = of_model(compiled);
  std::set<std::string> names;
  for (const Role& role : compiled.plan.roles)
    for (const Unit& unit : model_units(role))
      for (const UnitTensor& tensor : unit.tensors)
        if (own(unit, tensor) && tensor.init.copy_of.empty()) names.insert(in_model(tensor).name);
  return {names.begin(), names.end()};
}

/// Sorted by name.
std::map<std::string, Quantization> quantized_matrices(const CompiledJob& compiled) {
  std::map<std::string, Quantization> matrices;
  for (const Role& role : compiled.plan.roles)
    for (const Unit& unit : role.units)
      for (const UnitTensor& tensor : unit.tensors)
        if (const QuantizedPart& part = tensor.init.quantized) matrices.emplace(part.matrix, part.as);
  return matrices;
}

/// XXH3-128 of a line for each tensor, in the order of `names`: name, shape, and the XXH3-128 of its elements as
/// little-endian f32. So it is the same of any file, of whatever dtype, that holds these values. Every rank reads its
/// share of the tensors. A name that is not there is a part of the hash too, and of `missing`.
struct BaseHash {
  std::string hash, missing;
};

BaseHash hash_of_base(const checkpoint::TensorStore& tensors, const std::vector<std::string>& names,
                      Communicator& communicator, ControlChannel& channel) {
  const auto world = static_cast<std::size_t>(communicator.world_size());
  std::string mine;
  for (auto i = static_cast<std::size_t>(communicator.rank()); i < names.size(); i += world) {
    const checkpoint::TensorInfo* info = tensors.find(names[i]);
    const bool readable = info != nullptr && is_floating(info->dtype);
    mine += (readable ? info->shape.str() + " " + checksum_of_tensor(tensors, *info) : "-") + "\n";
  }
  BaseHash result;
  std::vector<std::istringstream> shares;
  for (const std::string& share : channel.to_first(mine)) shares.emplace_back(share);
  std::string all;
  for (std::size_t i = 0; i < names.size() && !shares.empty(); ++i) {
    std::string line;
    std::getline(shares[i % world], line);
    if (line == "-" && result.missing.empty()) result.missing = names[i];
    all += names[i] + " " + line + "\n";
  }
  result.hash = channel.from_first(shares.empty() ? "" : checkpoint::checksum_of(all));
  result.missing = channel.from_first(result.missing);
  return result;
}

/// What differs between the base that a checkpoint names, if it names one, and the one at `base`; empty where they are
/// the same.
std::string another_base(const std::optional<SavedBase>& saved, const std::string& checkpoint, const WeightSource& base,
                         Communicator& communicator, ControlChannel& channel) {
  if (!saved) return "";
  const BaseHash found = hash_of_base(base.tensors, saved->tensors, communicator, channel);
  if (found.hash == saved->hash) return "";
  return fmt::format("{} is an adapter of the base {} ({} when it was saved), and {} is {}{}", checkpoint, saved->hash,
                     saved->from, base.path, found.hash, found.missing.empty() ? "" : ", which lacks " + found.missing);
}

/// The one at `path`, whose hash the ranks make together.
SavedBase base_of(const CompiledJob& compiled, const WeightSource& source, Communicator& communicator,
                  ControlChannel& channel) {
  SavedBase base{.hash = "", .from = source.path, .tensors = model_parameters(compiled)};
  for (const auto& [matrix, as] : quantized_matrices(compiled)) {
    base.quantization = as;
    base.quantized.push_back(matrix);
  }
  base.hash = hash_of_base(source.tensors, base.tensors, communicator, channel).hash;
  return base;
}

/// Of the manifest of a checkpoint of an adapter.
std::optional<SavedBase> base_in(const WeightSource& source) {
  return source.manifest ? facts_of(*source.manifest, source.path).base : std::nullopt;
}

void require_whole(const WeightSource& source) {
  if (const std::optional<SavedBase> base = base_in(source))
    throw DataError(source.path + " is a checkpoint of an adapter; its base was " + base->from +
                    ": model.init_from takes all weights of a model, adapter.from an adapter");
}

/// How the tensors of the job's model folder are called, where it has one.
DiskNames names_of(const Job& job) { return job.model.folder ? job.model.folder->names : DiskNames(); }

/// Throws DataError where `path` is a folder of PEFT whose config is not that of the job's adapter.
void require_config(const Job& job, const std::string& path) {
  if (!is_peft_folder(path)) return;
  if (!job.adapter) throw DataError(path + " is an adapter: the job has to have that adapter");
  const AdapterJob& own = *job.adapter;
  const std::map<std::string, double> values{{"rank", static_cast<double>(own.rank)},
                                             {"alpha", own.alpha},
                                             {"scaled_by_root", own.scaled_by_root ? 1 : 0},
                                             {"magnitude", own.magnitude ? 1 : 0}};
  for (const PeftConfig::Value& value : read_peft_config(path, names_of(job).prefixes, true).values) {
    if (!value.must_agree) continue;
    const double theirs = value.node.as_number().value_or(value.node.as_bool().value_or(false) ? 1 : 0);
    if (values.at(value.key) != theirs)
      throw DataError(
          fmt::format("{}: adapter.{} is {} there and another in the job; adapter.from: {} takes it from there", path,
                      value.key, value.node.text, path));
  }
}

/// Weights that a model starts from.
WeightSource open_base(const Job& job, int rank, ControlChannel& channel, const Tell& tell) {
  WeightSource base = open_weights(*job.model.init_from, names_of(job), rank, channel, tell);
  require_whole(base);
  return base;
}

}  // namespace

bool is_of_adapter(const CompiledJob& compiled) {
  return !compiled.adapter.empty() && compiled.num_trained < compiled.num_parameters;
}

SavedBase load_first_weights(const LoadedJob& loaded, const CompiledJob& compiled, const LoadedRank& rank, int threads,
                             Communicator& communicator, ControlChannel& channel, const Tell& tell) {
  const Job& job = loaded.job;
  CHECK(job.adapter && job.model.init_from, "an adapter has a base");
  const WeightSource base = open_base(job, rank.rank, channel, tell);
  load_weights(rank, base.tensors, base.path, base.exact(), of_model(compiled), Copies::of_start);
  if (!job.adapter->from) {
    draw_weights(rank, job.seed, threads, of_adapter(compiled));
    take_norms(rank, base.tensors);
    return base_of(compiled, base, communicator, channel);
  }
  const WeightSource start = open_weights(*job.adapter->from, names_of(job), rank.rank, channel, tell);
  if (const std::string another = another_base(base_in(start), start.path, base, communicator, channel);
      !another.empty())
    throw DataError(another);
  load_weights(rank, start.tensors, start.path, start.exact(), of_start(compiled, start.tensors));
  return base_of(compiled, base, communicator, channel);
}

void load_model(const Job& job, const LoadedRank& rank, ControlChannel& channel, const Tell& tell) {
  const WeightSource source = open_base(job, rank.rank, channel, tell);
  load_weights(rank, source.tensors, source.path, source.exact(), {}, Copies::of_start);
}

SavedBase load_base(const LoadedJob& loaded, const CompiledJob& compiled, const LoadedRank& rank,
                    const SavedFacts& facts, const std::string& checkpoint, Communicator& communicator,
                    ControlChannel& channel, const Tell& tell) {
  CHECK(loaded.job.model.init_from, "an adapter has a base");
  const WeightSource base = open_base(loaded.job, rank.rank, channel, tell);
  if (const std::string another = another_base(facts.base, checkpoint, base, communicator, channel); !another.empty())
    throw JobError({loaded.at(
        "model.init_from", another,
        "the base that it was trained beside; or another checkpoint.dir with adapter.from, which starts a new run")});
  load_weights(rank, base.tensors, base.path, base.exact(), frozen, Copies::of_start);
  return base_of(compiled, base, communicator, channel);
}

std::optional<checkpoint::Manifest> load_for_use(const LoadedJob& loaded, const CompiledJob& compiled,
                                                 const LoadedRank& rank, const std::string& checkpoint,
                                                 Communicator& communicator, ControlChannel& channel,
                                                 const Tell& tell) {
  require_config(loaded.job, checkpoint);
  WeightSource source = open_weights(checkpoint, names_of(loaded.job), rank.rank, channel, tell);
  const std::optional<SavedBase> saved = base_in(source);
  if (saved && !is_of_adapter(compiled))
    throw DataError(source.path + " is a checkpoint of an adapter, whose weights stand beside those of its base (" +
                    saved->from + "): the job has to have that adapter");
  if (!is_of_adapter(compiled)) {
    load_weights(rank, source.tensors, source.path, source.exact());
  } else {
    load_weights(rank, source.tensors, source.path, source.exact(), trained);
    const std::string& at = *loaded.job.model.init_from;
    if (!exists(at))
      throw DataError(at + ": the base of the adapter " + source.path + " is not there; --base names where it is");
    const WeightSource base = open_base(loaded.job, rank.rank, channel, tell);
    if (const std::string another = another_base(saved, source.path, base, communicator, channel); !another.empty())
      throw DataError(another + "; --base names where the right one is");
    load_weights(rank, base.tensors, base.path, false, frozen, Copies::of_start);
  }
  if (const std::string weight = non_finite_weight(rank); !weight.empty())
    throw DataError(source.path + ": the weight " + weight +
                    ": the run that saved it had diverged; take an earlier checkpoint");
  return std::move(source.manifest);
}

void require_base(const SavedBase& saved, const std::string& checkpoint, const WeightSource& base) {
  run_ranks(1, [&](Communicator& communicator) {
    const std::string another = another_base(saved, checkpoint, base, communicator, communicator.control());
    if (!another.empty()) throw DataError(another + "; --base names where the right one is");
  });
}

void check_first_weights(const LoadedJob& loaded, const CompiledJob& compiled, const std::string& key) {
  const bool base = key == "model.init_from";
  const std::string& path = base ? *loaded.job.model.init_from : *loaded.job.adapter->from;
  WeightSource source = open_weights(path, names_of(loaded.job));
  source.path = path;  // as the job has it
  if (base) require_whole(source);
  check_weights(compiled.plan, source, base ? of_model(compiled) : of_start(compiled, source.tensors));
}

}  // namespace trainer
