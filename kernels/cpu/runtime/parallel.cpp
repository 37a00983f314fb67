// Fork and join over OpenMP. GCC's libgomp is not instrumented for ThreadSanitizer, which would see no order between
// fork, body and join; there it is told by hand.
#include "kernels/cpu/runtime/parallel.h"

#include <omp.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define TRAINER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TRAINER_TSAN 1
#endif
#endif

#if defined(TRAINER_TSAN)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#define TRAINER_NO_TSAN __attribute__((no_sanitize("thread"), noinline))
#else
#define TRAINER_NO_TSAN
#endif

namespace trainer::kernels::cpu {
namespace {

#if defined(TRAINER_TSAN)
void acquire(void* address) { __tsan_acquire(address); }
void release(void* address) { __tsan_release(address); }
#else
void acquire(void*) {}
void release(void*) {}
#endif

#if defined(__x86_64__)
unsigned flush_denormals() {
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlushToZero | kDenormalsAreZero);
  return before;
}
void restore(unsigned before) { _mm_setcsr(before); }
#else
unsigned flush_denormals() { return 0; }
void restore(unsigned) {}
#endif

struct Work {
  void (*body)(void*, int, int);
  void* data;
  int parts;
};

/// A team smaller than asked for (OMP_THREAD_LIMIT, a call inside a parallel region) still does every part.
void take_parts(Work* work, int thread, int threads) {
  acquire(work);
  if (thread > 0)
    flush_denormals();  // for good: the team's threads are the rank's own, and oneDNN's products gain as well
  for (int part = thread; part < work->parts; part += threads) work->body(work->data, part, work->parts);
  release(work);
}

// Not instrumented itself: the compiler's hand-over of `work` to the threads lies outside the annotated region.
TRAINER_NO_TSAN void fork(Work* work) {
#pragma omp parallel num_threads(work->parts)
  take_parts(work, omp_get_thread_num(), omp_get_num_threads());
}

}  // namespace

void run_parallel(int parts, void (*body)(void* data, int part, int parts), void* data) {
  const FlushDenormals flush;
  Work work{body, data, parts};
  if (parts <= 1) return take_parts(&work, 0, 1);
  release(&work);
  fork(&work);
  acquire(&work);
}

FlushDenormals::FlushDenormals() : saved_(flush_denormals()) {}
FlushDenormals::~FlushDenormals() { restore(saved_); }

TeamOf::TeamOf(int threads) : saved_(omp_get_max_threads()) { omp_set_num_threads(threads); }
TeamOf::~TeamOf() { omp_set_num_threads(saved_); }

}  // namespace trainer::kernels::cpu
