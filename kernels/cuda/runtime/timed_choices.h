// TimedChoices: which of several ways to compute the same thing is the fastest on a GPU, found by running them when
// kernels are prepared, and kept between runs, so that a machine measures each product once and a run takes the same
// ways as the one before it, to the bit.
//
// A choice is a line of text under a key that names what was chosen for. They are kept in one file for each kind of
// GPU and each version of cuBLASLt, <cache>/products/<GPU>-<units>-cublaslt-<version>.txt, of lines "key<tab>choice".
// Processes of a machine that measure at once agree: the first to write a choice decides for all. Machines that share
// no cache folder choose for themselves, and the ranks of a job agree afterwards (device_choices.h). Where the file
// cannot be written nothing is chosen; a file that cannot be read, or a line that is not accepted, costs the time of
// measuring again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "kernels/cuda/table.h"

namespace trainer::kernels::cuda {

class TimedChoices {
 public:
  /// Kept in the file `path`, or for as long as this object lives where that is empty. `keeps`: what cannot be written
  /// there is not chosen at all, so that no run, or rank, goes its own way.
  explicit TimedChoices(std::string path, bool keeps = true) : path_(std::move(path)), keeps_(keeps) {}

  /// Those that a device of this kind uses, shared by this process's devices of that kind; null where nothing is
  /// chosen by time: TRAINER_CUDA_TUNE is 0, or it is unset and there is no folder to keep choices in, so that every
  /// run would choose again, or ranks share a GPU (TRAINER_SHARE_GPU).
  static TimedChoices* of(const cudaDeviceProp& device);

  /// The choice under `key`: the one that is known, if `accepts` takes it, or else what `measure` finds. Nothing, which
  /// is not kept, where `measure` finds nothing or what is not accepted, and where it cannot be written. What it
  /// returns was accepted last. Any thread may call it; `measure` may call it in turn.
  std::optional<std::string> choose(const std::string& key, const std::function<bool(const std::string&)>& accepts,
                                    const std::function<std::optional<std::string>()>& measure);

  /// What a user should know of the choices that were asked for since the last call: how many were measured, how long
  /// it took, where they are; how many could not be.
  std::optional<std::string> take_note();

 private:
  void read();
  std::optional<std::string> publish(const std::string& key, const std::string& choice,
                                     const std::function<bool(const std::string&)>& accepts);

  const std::string path_;
  const bool keeps_;
  std::recursive_mutex mutex_;
  std::map<std::string, std::string> choices_;
  bool read_ = false, unwritable_ = false, told_ = false;
  int depth_ = 0, measured_ = 0;
  std::set<std::string> unmeasured_;  // keys
  double seconds_ = 0;
};

/// What the choices of a device count for: its name and its number of multiprocessors, and the version of cuBLASLt.
std::string kind_of(const cudaDeviceProp& device);

/// Choices as text and back: lines "key<tab>choice", of which the first one of a key counts, and others than such lines
/// are passed over.
std::string text_of(const std::map<std::string, std::string>& choices);
std::map<std::string, std::string> choices_of(const std::string& text);

/// Device memory for measuring, from Context::scratch: random numbers of size 2 at most in bf16, f16 and f32, any codes
/// in fp8. (Of zeros, products take less power and time.)
class Scratch {
 public:
  explicit Scratch(const Context& context) : left_(context.scratch), bytes_(context.scratch_bytes) {}
  /// Aligned to kBufferAlignment; null: there is no room for so much.
  void* take(std::int64_t bytes);

 private:
  std::byte* left_;
  std::int64_t bytes_;
};

/// Several ways are timed in as many turns, and the least of each counts, so that no slow moment of the GPU decides.
inline constexpr int kTimedTurns = 2;
/// Milliseconds of what `run` puts on a stream, the least of some. Waits for the device.
float time_on_device(const std::function<void(cudaStream_t)>& run);

}  // namespace trainer::kernels::cuda
