// Export: a checkpoint, or a model folder, as files that other programs open: a folder of Hugging Face's layout, a GGUF
// file, or of an adapter a folder of PEFT.
//
// Invariant: OUT is whole or not there. Everything is written under a temporary name beside it, synced, then renamed;
// an OUT that exists is never touched. Weights go through a window of a few megabytes, whatever the model's size.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/dtype.h"

namespace trainer::exporting {

enum class Format : std::uint8_t { hf, gguf, adapter };

/// What matrices are written in.
enum class Precision : std::uint8_t { f32, bf16, f16, q8_0 };

std::string_view name_of(Precision precision);
std::optional<Precision> precision_named(std::string_view name);

struct Options {
  std::string checkpoint;  ///< a step's directory, a directory of them (the newest whole counts), a model folder, or
                           ///< with `merge` a folder with an adapter of PEFT
  std::string out;
  Format format = Format::hf;
  std::optional<Precision> precision{};      ///< nothing: the source folder's; f32 where there is none, and of adapters
  std::int64_t shard_bytes = 5'000'000'000;  ///< hf: a file of weights is not larger, unless one tensor is
  bool merge = false;                        ///< adds an adapter to its base
  std::string base{};                        ///< where the adapter's base is, if it moved
  std::string configs_dir{};                 ///< of the families
  std::function<void(std::int64_t done, std::int64_t total)> progress{};  ///< bytes of weights
};

/// A matrix to which an adapter was added, in norms of Frobenius.
struct MergedMatrix {
  std::string tensor;
  double change = 0;  ///< what the adapter adds
  double error = 0;   ///< rounding of the sum to the dtype of the file

  /// The share of the change that rounding took; above 1, more than there was.
  double lost() const { return change > 0 ? error / change : 0; }
};

struct Report {
  std::string source;  ///< the checkpoint or folder that was taken
  Precision precision = Precision::f32;
  std::int64_t tensors = 0, parameters = 0;
  std::vector<std::pair<std::string, std::int64_t>> files{};  ///< names within OUT and their bytes; of gguf OUT itself
  std::vector<std::string> notes{};                           ///< what differs from what one may expect
  std::vector<MergedMatrix> merged{};                         ///< with `merge`: that which lost most first
};

/// Throws UsageError for formats and precisions that do not go together, DataError for a source that is damaged or does
/// not fit, IoError where OUT exists or cannot be written.
Report export_model(const Options& options);

}  // namespace trainer::exporting
