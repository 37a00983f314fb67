// How operands are prepared and rotated, and how a kernel is timed on all ranks at once.
#include "tools/calibrate/kernel_bench.h"

#include <sched.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "engine/core/error.h"
#include "kernels/cpu/runtime/isa.h"
#include "kernels/cpu/runtime/parallel.h"
#include "kernels/cpu/table.h"
#include "tools/calibrate/median.h"
#include "tools/calibrate/operands.h"

namespace trainer::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// What operands rotate through: more than the second-level caches of the cores have, as a step's activations are.
constexpr std::int64_t kRotation = 16 * kMiB;
constexpr std::int64_t kMostSlots = 64;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Pages as the executor has them. Grows by a new mapping.
class Arena {
 public:
  Arena() = default;
  ~Arena() { release(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* at_least(std::int64_t bytes) {
    if (bytes <= bytes_) return data_;
    release();
    void* const data =
        mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
      throw IoError("cannot allocate " + std::to_string(bytes) + " bytes to measure with: " + std::strerror(errno));
    madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(data);
    bytes_ = bytes;
    return data_;
  }

 private:
  void release() {
    if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(bytes_));
    data_ = nullptr;
  }
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

void fill(std::byte* data, std::int64_t bytes, std::span<const std::byte> contents) {
  if (contents.empty()) return void(std::memset(data, 0, static_cast<std::size_t>(bytes)));
  const auto whole = static_cast<std::int64_t>(contents.size());
  for (std::int64_t done = 0; done < bytes; done += whole)
    std::memcpy(data + done, contents.data(), static_cast<std::size_t>(std::min(whole, bytes - done)));
}

// By all threads, since a core that waited is slow at first. Other processors flush nothing.
void flush_caches([[maybe_unused]] const std::byte* data, [[maybe_unused]] std::int64_t bytes,
                  [[maybe_unused]] int threads) {
#if defined(__x86_64__)
  kernels::cpu::parallel_ranges((bytes + 63) / 64, 64, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin; line < end; ++line) _mm_clflush(data + 64 * line);
    _mm_mfence();
  });
#endif
}

// One rank's kernel and its operands in `slots` places.
struct Prepared {
  std::unique_ptr<kernels::Kernel> kernel;
  std::vector<std::vector<void*>> operands;  // by slot
  void* workspace = nullptr;

  std::vector<std::pair<const std::byte*, std::int64_t>> cold;  // of slot 0: what flush() takes out of all caches

  void flush(int threads) const {
    for (const auto& [data, bytes] : cold) flush_caches(data, bytes, threads);
  }
  void run(std::int64_t turn) {
    kernel->run({operands[static_cast<std::size_t>(turn) % operands.size()], workspace, 0});
  }
};

Prepared prepare(const Signature& signature, const kernels::cpu::Context& context, Arena& arena, bool from_memory,
                 bool stays) {
  const kernels::cpu::CpuTarget target(context);
  std::int64_t slot = 0;
  std::vector<std::int64_t> offsets;
  for (const TensorDesc& operand : signature.operands) {
    offsets.push_back(slot);
    slot += aligned(operand.bytes());
  }
  const std::int64_t slots =
      from_memory || stays ? 1
                           : std::clamp<std::int64_t>(kRotation / std::max<std::int64_t>(slot, 1) + 1, 2, kMostSlots);
  const std::int64_t workspace = aligned(target.workspace_bytes(signature));
  std::byte* const base = arena.at_least(slots * slot + workspace + kBufferAlignment);
  Prepared out;
  out.kernel = kernels::cpu::prepare(signature, context);
  out.workspace = base + slots * slot;
  for (std::int64_t i = 0; i < slots; ++i) {
    std::vector<void*>& operands = out.operands.emplace_back();
    for (std::size_t k = 0; k < offsets.size(); ++k) {
      operands.push_back(base + (static_cast<int>(k) == fresh_of(signature) ? 0 : i * slot) + offsets[k]);
      fill(static_cast<std::byte*>(operands.back()), signature.operands[k].bytes(),
           contents_of(signature, static_cast<int>(k)));
    }
  }
  for (std::size_t k = 0; from_memory && k < offsets.size(); ++k)
    if (static_cast<int>(k) != fresh_of(signature))
      out.cold.emplace_back(base + offsets[k], signature.operands[k].bytes());
  return out;
}

}  // namespace

// Threads that live as long as the bench, since a team of OpenMP belongs to the thread that it works for.
struct KernelBench::Impl {
  Impl(int ranks, int threads)
      : context{kernels::cpu::detect_isa(), threads},
        oversubscribed(static_cast<unsigned>(ranks * threads) > std::max(1U, std::thread::hardware_concurrency())),
        meet(ranks),
        start(ranks + 1),
        end(ranks + 1),
        times(static_cast<std::size_t>(ranks)),
        failures(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank)
      workers.emplace_back([this, rank] { work(static_cast<std::size_t>(rank)); });
  }
  ~Impl() {
    signature = nullptr;
    start.arrive_and_wait();
    for (std::thread& worker : workers) worker.join();
  }

  void work(std::size_t rank) {
    Arena arena;
    for (;;) {
      start.arrive_and_wait();
      if (signature == nullptr) return;
      try {
        measure(rank, arena);
      } catch (...) {
        failures[rank] = std::current_exception();  // equal on all ranks: they prepare the same
      }
      end.arrive_and_wait();
    }
  }

  void measure(std::size_t rank, Arena& arena) {
    Prepared prepared = prepare(*signature, context, arena, from_memory, rest_ms.has_value());
    std::vector<double>& mine = times[rank];
    mine.clear();
    std::int64_t turn = 0;
    meet.arrive_and_wait();
    const Clock::time_point warm = Clock::now();
    prepared.flush(context.threads);
    prepared.run(turn++);
    if (rank == 0)
      runs = static_cast<int>(std::clamp(budget_ms * 1000 / std::max(1.0, us_since(warm)), 3.0, rest_ms ? 15 : 400.0));
    warm_up(prepared, turn);
    meet.arrive_and_wait();
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < runs; ++i) {
      prepared.flush(context.threads);
      if (rest_ms) rest(*rest_ms * 1000);
      const Clock::time_point one = Clock::now();
      prepared.run(turn++);
      mine.push_back(us_since(one));
    }
    meet.arrive_and_wait();
    if (oversubscribed) mine.assign(1, us_since(begin) / runs);
  }

  // The threads of a team slept while one of them prepared, and a core that slept is slow for some milliseconds:
  // products by AMX then take up to twice as long, which they do not in a step.
  void warm_up(Prepared& prepared, std::int64_t& turn) const {
    constexpr double kWarmUs = 6000;
    const Clock::time_point begin = Clock::now();
    while (context.threads > 1 && us_since(begin) < kWarmUs) prepared.run(turn++);
  }

  // All threads stay awake, and touch no memory.
  void rest(double us) const {
    const Clock::time_point begin = Clock::now();
    kernels::cpu::parallel(context.threads, [&](int, int) {
      while (us_since(begin) < us) std::atomic_signal_fence(std::memory_order_seq_cst);
    });
  }

  const kernels::cpu::Context context;
  const bool oversubscribed;
  std::barrier<> meet, start, end;
  const Signature* signature = nullptr;
  double budget_ms = 0;
  std::optional<double> rest_ms;
  bool from_memory = false;
  int runs = 0;
  std::vector<std::vector<double>> times;
  std::vector<std::exception_ptr> failures;
  std::vector<std::thread> workers;
};

KernelBench::KernelBench(int ranks, int threads) : impl_(std::make_unique<Impl>(ranks, threads)) {}
KernelBench::~KernelBench() = default;

cost::Figure KernelBench::measure(const Signature& signature, double budget_ms, bool from_memory,
                                  std::optional<double> rest_ms) {
  impl_->signature = &signature;
  impl_->from_memory = from_memory;
  impl_->rest_ms = rest_ms;
  impl_->budget_ms = budget_ms;
  std::ranges::fill(impl_->failures, nullptr);
  impl_->start.arrive_and_wait();
  impl_->end.arrive_and_wait();
  for (const std::exception_ptr& failure : impl_->failures)
    if (failure) std::rethrow_exception(failure);
  std::vector<double> all;
  for (const std::vector<double>& times : impl_->times) all.insert(all.end(), times.begin(), times.end());
  return median_of(std::move(all));
}

bool take_priority() {
  const sched_param priority{5};
  return ::sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
}

}  // namespace trainer::tools
