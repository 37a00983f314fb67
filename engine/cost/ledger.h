// Ledger: adds up the instructions of one role's play, by op and by kind of communication, and how far the whole
// may err.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/core/mesh.h"
#include "engine/core/op.h"
#include "engine/cost/prediction.h"

namespace trainer::cost {

/// Each instruction is told once, when it ends.
class Ledger {
 public:
  /// A launch that took `us`, of which `estimate` is what it takes alone.
  void kernel(Op op, double us, const Estimate& estimate);

  /// `kind`: a CollectiveKind, or kSend. `us`: under way; of that `exposed` while no kernel ran.
  static constexpr int kSend = 255;
  void communication(Axes axes, int kind, double us, double exposed, double spread);

  /// By how much the role's own time may be longer, or shorter (predict.h says how classes are put together).
  double longer() const { return half_width(true); }
  double shorter() const { return half_width(false); }

  std::vector<KernelTime> kernels() const;                                ///< the longest first
  std::vector<CommunicationTime> communications(const Mesh& mesh) const;  ///< the most exposed first

 private:
  struct OpSum {
    std::int64_t count = 0;
    double us = 0;
    std::array<double, 4> by_bound{};
  };
  struct CommunicationSum {
    std::int64_t count = 0;
    double us = 0, exposed = 0, shorter = 0, longer = 0;
  };

  double half_width(bool longer) const;

  std::array<OpSum, kNumOps> ops_{};
  std::array<double, 3> spread_{};  // by family of kernels
  std::map<std::pair<std::uint8_t, int>, CommunicationSum> communications_;
};

}  // namespace trainer::cost
