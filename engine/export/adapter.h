// An adapter as it was saved, by a run of ours or by PEFT: its tensors, its numbers, and where its base is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/tensor_store.h"
#include "engine/export/export.h"
#include "engine/job/family.h"
#include "engine/train/saved_facts.h"
#include "engine/train/weights.h"

namespace trainer::exporting {

/// What its tensors are called, after the node that they adapt.
inline constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight",
                                  kMagnitude = ".lora_magnitude_vector";

struct Adapter {
  WeightSource weights;
  std::vector<checkpoint::TensorInfo> tensors;  ///< the adapter's, and what else was trained
  std::int64_t rank = 0;
  double alpha = 0, dropout = 0;
  bool scaled_by_root = false, magnitude = false;
  std::string base;                     ///< where its base is
  std::optional<SavedBase> saved;       ///< of a checkpoint: which base it was trained beside
  std::optional<ModelFolder> folder{};  ///< of the base, where that is a model folder

  /// alpha / rank, or alpha / √rank.
  double scale() const;
};

/// Tensors of a checkpoint that are the model's: those in model files; the others are states of the optimizer.
std::vector<checkpoint::TensorInfo> model_tensors(const checkpoint::Manifest& manifest);

/// Of the checkpoint that `weights` opened, whose facts name a base. Throws DataError where they do not say what the
/// adapter is.
Adapter adapter_of_checkpoint(WeightSource weights, const SavedFacts& facts, const Options& options);

/// Of a folder that PEFT wrote. Its base is `options.base`, or what the folder says.
Adapter adapter_of_peft_folder(const Options& options);

}  // namespace trainer::exporting
