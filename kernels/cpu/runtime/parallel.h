// The team of threads of a rank: the one place that knows of OpenMP, so that oneDNN (built on the same runtime) and
// our kernels share one pool for each calling thread. Work is cut by sizes and the number of threads, never by timing,
// so results have the same bits each time; where it does not matter which thread does a piece, threads claim pieces.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>

namespace trainer::kernels::cpu {

/// Threads for work that moves `bytes`: a team costs some microseconds, so small work stays on the calling thread.
constexpr int threads_for(std::int64_t bytes, int threads) {
  constexpr std::int64_t kBytesPerThread = 32 * 1024;
  return static_cast<int>(std::clamp<std::int64_t>(bytes / kBytesPerThread, 1, threads));
}

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

/// Part `part` of [0, count) cut into `parts` pieces of nearly equal size whose borders are multiples of `grain`.
constexpr Range partition(std::int64_t count, int part, int parts, std::int64_t grain = 1) {
  const std::int64_t grains = (count + grain - 1) / grain;
  const std::int64_t least = grains / parts, more = grains % parts;
  const auto border = [&](std::int64_t p) { return std::min(count, (p * least + std::min(p, more)) * grain); };
  return {border(part), border(part + 1)};
}

/// Calls body(data, part, parts) for every part, each on a thread of the calling thread's team; returns when all are
/// done. Part 0 runs on the calling thread. Denormals are flushed to zero and read as zero inside. `body` must not
/// throw.
void run_parallel(int parts, void (*body)(void* data, int part, int parts), void* data);

/// The same for a callable fn(part, parts).
template <typename Fn>
void parallel(int parts, Fn&& fn) {
  using Callable = std::remove_reference_t<Fn>;
  run_parallel(
      parts, [](void* data, int part, int of) { (*static_cast<Callable*>(data))(part, of); },
      const_cast<void*>(static_cast<const void*>(&fn)));
}

/// fn(piece, thread) for every piece, on `threads` threads, each of which claims the next piece when it is done with
/// one: a thread that is held up (by another program, by a slower core) does not hold up the others. For pieces whose
/// results do not depend on the thread that computes them; `thread` is for scratch memory.
template <typename Fn>
void parallel_claims(int pieces, int threads, Fn&& fn) {
  std::atomic<int> next{0};
  parallel(std::min(pieces, threads), [&](int thread, int) {
    for (int piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) fn(piece, thread);
  });
}

/// fn(begin, end) over [0, count) on up to `threads` threads.
template <typename Fn>
void parallel_ranges(std::int64_t count, std::int64_t grain, int threads, Fn&& fn) {
  parallel(threads, [&](int part, int parts) {
    const Range range = partition(count, part, parts, grain);
    if (range.begin < range.end) fn(range.begin, range.end);
  });
}

/// While it lives, the calling thread flushes denormals to zero and reads them as zero: arithmetic on them is many
/// times slower, and training has no use for them.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_ = 0;
};

/// While it lives, a library that asks OpenMP for threads on the calling thread (oneDNN) gets a team of that many: the
/// same threads as ours.
class TeamOf {
 public:
  explicit TeamOf(int threads);
  ~TeamOf();
  TeamOf(const TeamOf&) = delete;
  TeamOf& operator=(const TeamOf&) = delete;

 private:
  int saved_;
};

}  // namespace trainer::kernels::cpu
