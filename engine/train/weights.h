// Weights: the parameters and optimizer states that a rank holds, by their global names: as they start, are loaded and
// saved. engine/plan/pieces.h says which elements those are; whatever strategy saved them, they are found
// by name and element.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "engine/checkpoint/checkpoint.h"
#include "engine/run/executor.h"
#include "engine/train/ranks.h"
#include "engine/train/saved_files.h"

namespace trainer {

/// A rank's loaded role. Memory that holds no element of a parameter (padding) is 0 when loaded, and stays so.
struct LoadedRank {
  Executor& executor;
  const Plan& plan;
  int rank = 0;
};

/// Of a plan's parameters those that are drawn, loaded or saved; empty: all.
using Wanted = std::function<bool(const Unit&, const UnitTensor&)>;

/// Draws every weight by (seed, name, element); the states are 0 as they were loaded. `threads` draw at once.
void draw_weights(const LoadedRank& loaded, std::uint64_t seed, int threads, const Wanted& wanted = {});

/// Sets the magnitudes of adapters (Init::norms_of) to the norms of the rows of `tensors`, as the model holds them.
/// REQUIRES: `tensors` has what load_weights took of it.
void take_norms(const LoadedRank& loaded, const checkpoint::TensorStore& tensors);

/// What copies of parameters (Init::copy_of) are loaded from: a source that a run starts from has the originals; a
/// checkpoint of the run has the copies themselves, and if it does not, the run may start from it.
enum class Copies : std::uint8_t { of_start, saved };

/// Reads every weight by name. Raises DataError that lists every name and shape that does not fit; `source` names
/// the tensors' origin. Floats of another dtype are converted. `exact`: tensors that the model lacks do not fit either.
void load_weights(const LoadedRank& loaded, const checkpoint::TensorStore& tensors, const std::string& source,
                  bool exact, const Wanted& wanted = {}, Copies copies = Copies::saved);

/// Tells people something that does not end the work.
using Tell = std::function<void(const std::string&)>;
/// Names the damaged checkpoints that were passed over.
void tell_passed_over(const checkpoint::NewestWhole& newest, const Tell& tell);

/// An opened path: a step directory, a directory of them (its newest whole one), a .safetensors file, a model folder or
/// a folder with an adapter of PEFT. Of the last three the names must be just the model's, or the adapter's.
struct WeightSource {
  std::string path;  ///< of the file, or of the checkpoint that was chosen
  checkpoint::TensorStore tensors;
  std::optional<checkpoint::Manifest> manifest;  ///< of a checkpoint

  bool exact() const { return !manifest; }
};
/// Rank 0 chooses and verifies, all ranks open the same, and choose again where a live run has removed it meanwhile.
/// `tell`, rank 0's, hears of what was passed over. `names` says how the tensors of a model folder are called.
WeightSource open_weights(const std::string& path, const DiskNames& names, int rank, ControlChannel& channel,
                          const Tell& tell);
/// By this process alone.
WeightSource open_weights(const std::string& path, const DiskNames& names);

/// Raises what load_weights would of what a run starts from: names and shapes are compared, no tensor is loaded.
void check_weights(const Plan& plan, const WeightSource& source, const Wanted& wanted = {});

/// Reads every state, the number of applied updates and, where the plan scales dynamically, the loss scale and its good
/// steps, which start again if they were not saved. Raises DataError like load_weights; states of the strategy may
/// lack, and those of another strategy are not read. What compression had not sent yet comes in the loss scale that the
/// scalars hold, whatever it was saved in. REQUIRES: set_scalars.
void load_states(const LoadedRank& loaded, const checkpoint::TensorStore& tensors, const std::string& source);

/// Reads into their anchors what ranks that train apart had of the weights each for itself. False: there is none, or it
/// is of another number of ranks. Called behind `refresh`, and before `swap`.
bool load_apart(const LoadedRank& loaded, const checkpoint::TensorStore& tensors, const std::string& source);

/// Sets {factor, loss_scale, grad_norm, loss} for the first step.
void set_scalars(Executor& executor, float loss_scale);
/// The loss scale of the next step.
float loss_scale_of(const Executor& executor);

// ---- Saving: model and optimizer files of a checkpoint. The caller frames it with Store::begin and commit.

/// What rank 0 saves of the step's own state: the count of applied updates; the loss scale, unless it is 1 for ever;
/// and of a dynamic one the good steps since it changed.
inline constexpr const char *kApplied = "applied_updates", *kLossScale = "loss_scale", *kGoodSteps = "good_steps";
/// As "h.0.attn.c_attn.weight.exp_avg".
std::string state_name(const UnitTensor& tensor, const std::string& state);
/// As "h.0.attn.c_attn.weight.residual.3", of owner 3: what a holder keeps for itself is a tensor of the parameter's
/// shape. As many holders as there were get each their own back. Any other number: of residuals the first gets the sum
/// and the others 0, so that nothing which was not sent is lost; of the optimizer's states everyone gets the mean.
std::string own_name(const UnitTensor& tensor, const std::string& what, int holder);

/// What is saved of the parameters: all, or what is trained and the states of that.
enum class Saved : std::uint8_t { all, trained };
inline bool is_saved(const Unit& unit, Saved saved) { return saved == Saved::all || unit.trained(); }

/// Each rank saves its own share (saved_pieces), in files of its own; nothing is sent.
void save_sharded(const LoadedRank& loaded, SavedFiles& files, Saved saved = Saved::all);

/// Rank 0 saves one file of each kind. The others send it what they would have written, a chunk of a tensor at a time,
/// so that they hold no more than their own part and a few MB. Called by every rank; only rank 0 needs `files`.
void save_full(const LoadedRank& loaded, ControlChannel& channel, SavedFiles* files, Saved saved = Saved::all);

}  // namespace trainer
