// A GPU's kernels: one entry for every op, and what they share. No CUDA in this header. What planning must know of them
// is in target.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"

struct cublasLtContext;
struct cudnnContext;

namespace trainer::kernels::cuda {

class DeviceChoices;  // runtime/device_choices.h
class TimedChoices;   // runtime/timed_choices.h

/// What a kernel was given and cannot take: an id outside of its table, a target outside of the classes. A kernel that
/// meets one writes it here (of several in a program, one of them) and gives NaN for what it would have read, so that
/// no update is made of it. In host memory that the device writes; whoever runs programs looks at it after each.
struct Fault {
  enum Kind : std::int32_t { none, id, target, length, document };
  std::int32_t kind = none;
  std::int32_t value = 0;  ///< what was given
  std::int64_t place = 0;  ///< its index among the operand's elements
  std::int64_t bound = 0;  ///< allowed is [0, bound), of a length [1, bound]; of a document: positions of a row
};

/// A device as kernels are prepared for it. Prepared kernels point into it.
struct Context {
  int device = 0;                ///< its ordinal
  int capability = 0;            ///< 90 for 9.0
  int units = 0;                 ///< streaming multiprocessors
  std::size_t shared_bytes = 0;  ///< that a block may have
  Fault* fault = nullptr;
  cublasLtContext* products = nullptr;
  /// Null: nobody asks for choices. Candidates run in `scratch`, device memory that nothing else uses meanwhile.
  DeviceChoices* choices = nullptr;
  std::byte* scratch = nullptr;
  std::int64_t scratch_bytes = 0;
  cudnnContext* cudnn = nullptr;  ///< null: this build has no cuDNN, or TRAINER_CUDNN is 0
  std::vector<std::string>* notes =
      nullptr;  ///< where preparation says what a user should know: that a library refused a signature
};

/// The device of that ordinal, made current on the calling thread, with its library handles. Throws IoError.
class Device {
 public:
  explicit Device(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Context& context() const { return context_; }
  const std::string& name() const { return name_; }
  /// Until end_choices, kernels that are prepared are chosen by time, as the environment says
  /// (runtime/timed_choices.h), in memory of the device that nothing else uses, or as ranks agree meanwhile on what is
  /// returned. Random numbers stay behind in the memory.
  DeviceChoices& begin_choices(std::byte* memory, std::int64_t bytes);
  void end_choices();
  /// What preparing kernels had to say since the last call.
  std::vector<std::string> take_notes();

  /// Throws DataError for the fault that a kernel has left, if one has, and clears it. REQUIRES: the program has ended.
  void throw_fault();

 private:
  Context context_;
  std::string name_;
  std::vector<std::string> notes_;
  std::unique_ptr<DeviceChoices> choices_;
  TimedChoices* timed_ = nullptr;  // that they come from
};

/// A kernel for `signature`, or Bug where no kernel takes these dtypes. `context` outlives it. Preparing may allocate a
/// little, launch, and wait; never while a stream of this thread is captured.
std::unique_ptr<Kernel> prepare(const Signature& signature, const Context& context);

}  // namespace trainer::kernels::cuda
