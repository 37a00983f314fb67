// What a checkpoint says of its run, apart from tensors: the JSON in its manifest's `metadata`. Every fact may be
// missing: a checkpoint of 0.1.0 has only the first four.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/core/quantized.h"

namespace trainer {

/// The job that wrote it.
struct SavedJob {
  std::vector<std::pair<std::string, std::string>> settings;  ///< of the effective job: key path and value as YAML
  std::string graph;                                          ///< checksum of the graph
  std::string data;                                           ///< data::fingerprint
  std::set<std::string> defaults{};  ///< key paths of `settings` that the job leaves out; not saved
};

/// What an adapter was trained beside (engine/train/base.h).
struct SavedBase {
  std::string hash;
  std::string from;                  ///< where it was
  std::vector<std::string> tensors;  ///< names that the hash is over, in its order
  Quantization quantization = Quantization::none;
  std::vector<std::string> quantized{};  ///< matrices that were held so beside the adapter
};

struct SavedFacts {
  std::string name, strategy;
  std::int64_t world_size = 0;
  std::string tokenizer;  ///< canonical JSON; empty: the data has none
  std::string run_id{};   ///< the same in all checkpoints of a run
  std::optional<SavedJob> job{};
  std::map<std::string, std::string> optimizers{};  ///< by trained parameter, the name of the one that updates it
  std::optional<SavedBase> base{};                  ///< of a checkpoint of an adapter
  std::optional<double> val_loss{};                 ///< of these very weights
  bool after_skipped = false;                       ///< the step before it made no update
  std::int64_t batches_left_out = 0;                ///< by rollbacks: step s takes batch s + batches_left_out
  std::int64_t rollbacks = 0;
};

/// JSON as the same text however it was written.
std::string canonical_json(const std::string& text);

std::string metadata_of(const SavedFacts& facts);
/// Throws DataError, naming `path`, where a fact has another type.
SavedFacts facts_of(const checkpoint::Manifest& manifest, const std::string& path);

}  // namespace trainer
