// Runner: a way to run kernels that tests hold to the reference: an instruction set and a number of threads of the CPU,
// a GPU, the emulated GPU in some order. Test sources know runners alone; each test executable brings those of one
// device (cpu_runners.cpp, tests/cuda/cuda_runners.cpp), and so the same cases hold every device to the same formulas.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/op_record.h"

namespace trainer::kernels::test {

class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::string name() const = 0;
  /// Prepares and runs once, with exactly the workspace that the target states. Operands are host memory of the
  /// signature's sizes; the same pointer twice is one operand written in place.
  virtual void run(const Signature& signature, std::span<void* const> operands, std::int64_t origin = 0) = 0;
  void run(const Signature& signature, std::initializer_list<void*> operands, std::int64_t origin = 0) {
    run(signature, std::span(operands.begin(), operands.size()), origin);
  }
  /// Runners of one family give the same bits.
  virtual int family() const = 0;
  /// Whether products of bf16 and f16 inside a kernel round their factors (probabilities, rotated queries) to that
  /// dtype, as tensor cores ask.
  virtual bool rounds_factors() const { return false; }
};

/// Of this executable's device, all of them; each is worth running every case on.
const std::vector<std::unique_ptr<Runner>>& runners();
/// One of each instruction set; of an emulated GPU the orders in turns: for cases that take longer.
std::vector<Runner*> few_runners();
/// The one that jobs would get.
Runner& best_runner();

/// Of attributes that are written for several ops, those that the kernel of `op` takes.
inline Attributes those_of(Op op, const Attributes& all) {
  Attributes taken;
  for (const auto& [name, value] : all.items())
    if (record(op).attribute(name) != nullptr) taken.set(name, value);
  return taken;
}

/// Whether every thread of the device costs this machine its own time, so that cases leave out what is only large.
bool runs_are_slow();

/// What its kernels compute in.
std::span<const DType> compute_dtypes();
/// What gradients of parameters are reduced in.
inline std::span<const DType> reduce_dtypes() {
  static constexpr DType kAll[] = {DType::f32, DType::bf16};
  return kAll;
}

}  // namespace trainer::kernels::test
