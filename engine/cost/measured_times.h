// MeasuredTimes: a machine's measured rows, in order, for looking up between them. Between two measured sizes a rate is
// taken on the straight line of logarithms, since rates change by factors over sizes that do; at a measured size it is
// what was measured, beyond the outermost it stays. Of a GPU a measured kernel counts for its own sizes alone: for
// others the model knows more, which has the waves of blocks and the shapes of tiles.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/cost/estimate.h"
#include "engine/cost/machine_model.h"
#include "engine/cost/work.h"

namespace trainer::cost {

class MeasuredTimes {
 public:
  /// Copies what it needs.
  explicit MeasuredTimes(const MachineModel& machine);

  /// The time of `work` on `threads` threads while `ranks` ranks of the node do the same, or nothing where its class
  /// and dtype were not measured. Rows of the nearest number of threads, then of ranks; ranks that have more threads
  /// than there are cores take turns. `cold`: the share of its operands that no cache holds, from 0 to 1.
  std::optional<Estimate> kernel(const Work& work, int threads, int ranks, double cold = 0) const;

  /// The time of a collective ("all_reduce" …, "send") of `bytes` among `ranks` ranks of a node, while `sharing` such
  /// groups do the same.
  std::optional<Estimate> collective(std::string_view name, std::int64_t bytes, int ranks, int sharing) const;

  bool empty() const { return kernels_.empty() && collectives_.empty(); }

 private:
  struct Point {
    std::vector<std::int64_t> sizes;
    double log_rate = 0;
    double spread = 0;
  };
  struct Context {
    int threads = 1, ranks = 1;
    std::vector<Point> points;  // ascending
  };
  struct Between {
    double log_rate = 0, spread = 0;
  };
  using Key = std::pair<std::string, DType>;

  static Between at(const Point* first, const Point* last, const std::vector<std::int64_t>& sizes, std::size_t dim);
  std::optional<Estimate> look_up(std::string_view name, const Work& work, int threads, int ranks) const;
  double turns(int threads, int ranks) const;  // of each core among the threads that want one

  int units_ = 1;
  bool between_sizes_ = true;
  std::map<Key, std::vector<Context>, std::less<>> kernels_;
  std::map<std::string, std::map<int, std::map<std::int64_t, Figure>>, std::less<>> collectives_;  // by ranks and bytes
};

}  // namespace trainer::cost
