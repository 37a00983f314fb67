// How a pipeline is cut for memory: the least that every chunk can stay within, then the most even times, both by
// dynamic programming over prefixes.
#include "engine/cost/cut.h"

#include <algorithm>
#include <limits>

namespace trainer::cost {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Cutting {
 public:
  Cutting(const std::vector<Piece>& pieces, const ChunkBytes& bytes)
      : pieces_(pieces), bytes_(bytes), num_chunks_(bytes.in_flight.size()) {}

  std::vector<int> run() const {
    return most_even(within(bytes_.most) ? bytes_.most : std::max(bytes_.most, least(bound())));
  }

 private:
  // Bytes of pieces that are added one by one.
  struct Sum {
    double held = 0, saved = 0, transient = 0;
    void add(const Piece& piece, const ChunkBytes& bytes) {
      held += static_cast<double>(piece.trained) * bytes.trained +
              static_cast<double>(piece.parameters - piece.trained) * bytes.frozen;
      saved += static_cast<double>(piece.saved_bytes);
      transient = std::max(transient, static_cast<double>(piece.transient_bytes));
    }
  };

  double bytes_of(const Sum& sum, std::size_t chunk) const {
    return sum.held + sum.saved * bytes_.in_flight[chunk] + sum.transient / bytes_.chunks_of_stage;
  }

  // Whether a cut of which no chunk takes more is found by letting the first chunks take as much as they can. There may
  // be one even if not: a chunk takes a piece at least, and a large piece may need a later chunk, where fewer
  // micro-batches are in flight.
  bool within(double most) const {
    std::size_t next = 0;
    for (std::size_t chunk = 0; chunk < num_chunks_; ++chunk) {
      const std::size_t end = pieces_.size() - (num_chunks_ - 1 - chunk), first = next;
      Sum sum;
      for (; next < end; ++next) {
        sum.add(pieces_[next], bytes_);
        if (bytes_of(sum, chunk) > most) break;
      }
      if (next == first) return false;
    }
    return next == pieces_.size();
  }

  // The least for which `within` finds a cut, by bisection.
  double bound() const {
    Sum all;
    for (const Piece& piece : pieces_) all.add(piece, bytes_);
    const double most_in_flight = *std::max_element(bytes_.in_flight.begin(), bytes_.in_flight.end());
    double low = 0, high = all.held + all.saved * most_in_flight + all.transient;
    constexpr int kSteps = 40;
    for (int step = 0; step < kSteps; ++step) {
      const double middle = (low + high) / 2;
      (within(middle) ? high : low) = middle;
    }
    return high;
  }

  // The least that any cut takes in its fullest chunk, if that is no more than `bound`.
  double least(double bound) const {
    const std::size_t n = pieces_.size();
    std::vector<double> best(n + 1, kInfinity);  // fullest chunk so far, of the pieces before
    best[0] = 0;
    for (std::size_t chunk = 0; chunk < num_chunks_; ++chunk) {
      std::vector<double> next(n + 1, kInfinity);
      for (std::size_t begin = chunk; begin < n; ++begin) {
        if (best[begin] == kInfinity) continue;
        Sum sum;
        for (std::size_t end = begin + 1; end <= n; ++end) {
          sum.add(pieces_[end - 1], bytes_);
          const double bytes = bytes_of(sum, chunk);
          if (bytes > bound) break;
          next[end] = std::min(next[end], std::max(best[begin], bytes));
        }
      }
      best = std::move(next);
    }
    return best[n];
  }

  std::vector<int> most_even(double most) const {
    const std::size_t n = pieces_.size();
    std::vector<double> best(n + 1, kInfinity);  // of the pieces before, in as many chunks as have been looked at
    best[0] = 0;
    std::vector<std::vector<int>> begins(num_chunks_, std::vector<int>(n + 1, 0));
    for (std::size_t chunk = 0; chunk < num_chunks_; ++chunk) {
      std::vector<double> next(n + 1, kInfinity);
      for (std::size_t begin = chunk; begin < n; ++begin) {
        if (best[begin] == kInfinity) continue;
        Sum sum;
        double us = 0;
        for (std::size_t end = begin + 1; end <= n; ++end) {
          sum.add(pieces_[end - 1], bytes_);
          if (bytes_of(sum, chunk) > most) break;
          us += pieces_[end - 1].forward_us + pieces_[end - 1].backward_us();
          const double all = best[begin] + us * us * us * us;
          if (all < next[end]) next[end] = all, begins[chunk][end] = static_cast<int>(begin);
        }
      }
      best = std::move(next);
    }
    std::vector<int> result(num_chunks_);
    std::size_t end = n;
    for (std::size_t chunk = num_chunks_; chunk-- > 0;)
      end = static_cast<std::size_t>(result[chunk] = begins[chunk][end]);
    return result;
  }

  const std::vector<Piece>& pieces_;
  const ChunkBytes& bytes_;
  const std::size_t num_chunks_;
};

}  // namespace

std::vector<double> in_flight(const Schedule& schedule) {
  std::vector<double> result(schedule.stage_of_chunk.size(), 0);
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    std::vector<double> alive(result.size(), 0);
    double all = 0, most = 0;
    for (const Action& action : schedule.stages[stage]) {
      const auto chunk = static_cast<std::size_t>(action.chunk);
      const double change = action.kind == Action::Kind::forward          ? 1
                            : action.kind == Action::Kind::backward_input ? 0
                                                                          : -1;
      alive[chunk] += change;
      all += change;
      if (all <= most) continue;
      most = all;
      for (std::size_t c = 0; c < alive.size(); ++c)
        if (schedule.stage_of_chunk[c] == static_cast<int>(stage)) result[c] = alive[c];
    }
  }
  return result;
}

std::vector<int> cut_for_memory(const std::vector<Piece>& pieces, const ChunkBytes& bytes) {
  return Cutting(pieces, bytes).run();
}

}  // namespace trainer::cost
