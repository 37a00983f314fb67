// Executor: a role of a plan on a device: one allocation, every kernel prepared, every address worked out. Running a
// program allocates nothing, looks nothing up and formats nothing. DeviceBackend: what can load a plan. A backend is
// one DeviceBackend and one Executor (cpu_device.cpp, cuda_device.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/comm/communicator.h"
#include "engine/plan/plan.h"
#include "kernels/kernel.h"

namespace trainer {

/// When an instruction ran: nanoseconds since the start of its program. 0, 0: not recorded.
struct Span {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// The first value that is not finite, found by running a program again with every result looked at.
struct NonFinite {
  std::string node;   ///< "h.3.attn.core"
  std::string value;  ///< name of the buffer it lies in
  std::int64_t element = 0;
  std::int32_t micro_batch = -1;
  std::int32_t instruction = -1;  ///< its number in the run: of two ranks the one that found it earlier has the cause
};

class Executor {
 public:
  virtual ~Executor() = default;

  /// Where CopyIn reads and CopyOut writes field `field` of Role::fields, from now on. Host memory of the caller's.
  virtual void bind(std::int32_t field, void* data) = 0;
  /// Starts program `program` of Role::programs, reading bound fields; on a device of its own it goes on beside the
  /// host. Every rank runs the same programs in the same order. REQUIRES: the program before was finished, or it is
  /// the same one, the only one that is not finished, and may_start_ahead. Throws as finish() does.
  virtual void start(std::int32_t program) = 0;
  /// Returns at the end of the program that was started first, bound fields written. Throws what a kernel threw, or
  /// AbortedError where another rank failed.
  virtual void finish() = 0;
  void run(std::int32_t program) {
    start(program);
    finish();
  }
  /// Whether a program goes on while the host does something between start and finish.
  virtual bool runs_beside_host() const = 0;
  /// Whether a program may be started a second time before the first was finished, so that the device need not wait for
  /// the host between the two. The same from one start to the next.
  virtual bool may_start_ahead(std::int32_t /*program*/) const { return false; }
  /// Runs a program looking at every result; the state afterwards is that of a run. Nothing if all is finite on this
  /// rank.
  virtual std::optional<NonFinite> find_non_finite(std::int32_t program) = 0;

  /// Bytes between the caller and any of the rank's spaces, outside a program: loading and saving. Several threads may
  /// call them at once.
  virtual void write(const Region& region, const void* data) = 0;
  virtual void read(const Region& region, void* data) const = 0;

  /// Turns recording of times on or off; times(program)[i] belongs to instruction i of its last run, counted as in the
  /// program with its loops written out (plan/loop.h).
  virtual void record_times(bool on) = 0;
  virtual std::span<const Span> times(std::int32_t program) const = 0;

  /// Of its one allocation on the device.
  virtual std::int64_t allocated_bytes() const = 0;
  /// Of that in another space.
  virtual std::int64_t offloaded_bytes(Space) const { return 0; }
  /// What the device itself says was taken since the plan was loaded, libraries and code with it; 0 where it counts
  /// nothing of its own.
  virtual std::int64_t counted_bytes() const { return 0; }
  virtual const Role& role() const = 0;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual std::string description() const = 0;
  /// Loads rank `rank`'s role; its memory begins as zeros. `plan` and `communicator` outlive the executor. Called on
  /// the thread that will run it. The communicator is of the device's kind: HostCommunicator, or StreamCommunicator
  /// where there are several ranks.
  virtual std::unique_ptr<Executor> load(const Plan& plan, int rank, Communicator& communicator) = 0;
};

/// Makes a kernel ready on the processor of a device's host.
using PrepareOnHost = std::function<std::unique_ptr<kernels::Kernel>(const Signature& signature)>;

/// Kernels that run with so many threads: a rank's share of this machine's processor, beside its GPU.
PrepareOnHost host_kernels(int threads);

/// A rank's share of this machine's processor: `threads` threads. `offload_dir`: where a plan that has bytes on disk
/// keeps them.
std::unique_ptr<DeviceBackend> cpu_device(int threads, std::string offload_dir = {});

}  // namespace trainer
