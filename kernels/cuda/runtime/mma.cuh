// Tensor cores and what feeds them, by the PTX instructions of sm_80 and later: products of 16 × 8 × 16 (mma), 8 × 8
// matrices from shared memory into fragments (ldmatrix), copies to shared memory that do not wait (cp.async), 2^x. This
// header is the only one with PTX in it. For the emulated GPU the same operations stand beside it as exchanges of a
// warp, so that what is built on fragments can be tested.
//
// Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"), of lane l with g = l / 4 and t = l
// % 4; a register holds two neighbours, the lower first:
//
//   A 16 × 16, register i   row g + 8 (i % 2), columns 2 t + 8 (i / 2) and the next
//   B 16 × 8,  register i   rows 2 t + 8 i and the next, column g
//   C 16 × 8,  float i      row g + 8 (i / 2), column 2 t + i % 2
//
// So two neighbouring fragments of C, rounded, are one of A.
#pragma once

#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {

struct FragmentA {
  unsigned at[4];
};
struct FragmentB {
  unsigned at[2];
};
struct FragmentC {
  float at[4];
};

__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x) % kWarp; }
/// Where float i of a C fragment of this lane stands.
__device__ __forceinline__ int row_in_c(int lane, int i) { return lane / 4 + 8 * (i / 2); }
__device__ __forceinline__ int column_in_c(int lane, int i) { return lane % 4 * 2 + i % 2; }

/// Two numbers in a register.
template <typename T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned bits;
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &both, sizeof bits);
  } else {
    const __half2 both = __floats2half2_rn(low, high);
    memcpy(&bits, &both, sizeof bits);
  }
  return bits;
}

/// Two neighbouring fragments of C as one of A.
template <typename T>
__device__ __forceinline__ FragmentA as_a(const FragmentC& left, const FragmentC& right) {
  return {{pack<T>(left.at[0], left.at[1]), pack<T>(left.at[2], left.at[3]), pack<T>(right.at[0], right.at[1]),
           pack<T>(right.at[2], right.at[3])}};
}

#if defined(__CUDACC__)

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// c += a · b.
template <typename T>
__device__ __forceinline__ void mma(FragmentC& c, const FragmentA& a, const FragmentB& b) {
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
}

/// Four 8 × 8 matrices of 16-bit elements: lane l gives the address (16-byte aligned, in shared memory) of row l % 8 of
/// matrix l / 8, and register i gets, of matrix i, columns 2 t and the next of row g.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
/// The same of the matrices transposed: register i gets rows 2 t and the next of column g.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

/// 16 bytes to shared memory, both 16-byte aligned; zeros where not `valid`, and then `from` is any address that could
/// be read.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
/// Ends a group of this thread's copies.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most the last `Pending` groups of this thread are under way. Others see the copies after a barrier.
template <int Pending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// 2^x within 2 ulp; denormal results are zero.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else  // the emulated GPU

/// Element `half` of a register.
template <typename T>
float half_of(unsigned bits, int half) {
  const auto part = static_cast<unsigned short>(bits >> (16 * half));
  T value;
  std::memcpy(static_cast<void*>(&value), &part, sizeof value);
  return to_f32(value);
}

/// Of a lane, element by element.
struct Given {
  float a[4][2], b[2][2];
};

template <typename T>
void mma(FragmentC& c, const FragmentA& a, const FragmentB& b) {
  Given mine;
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 4; ++i) mine.a[i][half] = half_of<T>(a.at[i], half);
    for (int i = 0; i < 2; ++i) mine.b[i][half] = half_of<T>(b.at[i], half);
  }
  const ::trainer::emulated::Exchanged<Given> all(kAllLanes, mine);
  const int lane = lane_of_thread();
  for (int k = 0; k < 16; k += 2) {
    // A's rows g and g + 8, and B's columns 2 t and 2 t + 1.
    const Given &rows = all[static_cast<unsigned>(lane / 4 * 4 + k % 8 / 2)],
                &first = all[static_cast<unsigned>(lane % 4 * 8 + k % 8 / 2)],
                &second = all[static_cast<unsigned>(lane % 4 * 8 + 4 + k % 8 / 2)];
    const int at = k / 8;
    for (int i = 0; i < 2; ++i)
      for (int half = 0; half < 2; ++half) {
        const float left = rows.a[i + 2 * at][half];
        c.at[2 * i] += left * first.b[at][half];
        c.at[2 * i + 1] += left * second.b[at][half];
      }
  }
}

inline void load_matrices(unsigned (&to)[4], const void* row) {
  ::trainer::emulated::require_aligned(row, 16, "ldmatrix");
  const ::trainer::emulated::Exchanged<const void*> rows(kAllLanes, row);
  const int lane = lane_of_thread();
  for (int i = 0; i < 4; ++i)
    std::memcpy(&to[i], static_cast<const char*>(rows[static_cast<unsigned>(i * 8 + lane / 4)]) + lane % 4 * 4, 4);
  __syncwarp();  // nobody writes there before all have read
}
inline void load_matrices_transposed(unsigned (&to)[4], const void* row) {
  ::trainer::emulated::require_aligned(row, 16, "ldmatrix");
  const ::trainer::emulated::Exchanged<const void*> rows(kAllLanes, row);
  const int lane = lane_of_thread();
  for (int i = 0; i < 4; ++i) {
    unsigned short pair[2];
    for (int half = 0; half < 2; ++half)
      std::memcpy(&pair[half],
                  static_cast<const char*>(rows[static_cast<unsigned>(i * 8 + lane % 4 * 2 + half)]) + lane / 4 * 2, 2);
    std::memcpy(&to[i], pair, 4);
  }
  __syncwarp();
}

inline void copy_async(void* to, const void* from, bool valid) {
  ::trainer::emulated::require_aligned(to, 16, "cp.async");
  ::trainer::emulated::require_aligned(from, 16, "cp.async");
  ::trainer::emulated::Block::current().copy_later(to, valid ? from : nullptr, 16);
}
inline void commit_copies() { ::trainer::emulated::Block::current().commit_copies(); }
template <int Pending>
void wait_for_copies() {
  ::trainer::emulated::Block::current().wait_for_copies(Pending);
}

inline float exp2_fast(float x) { return std::exp2(x); }

#endif

// ---- Fragments from tiles in shared memory, [rows][Stride] elements whose rows begin at 16-byte boundaries ----

/// A: rows 0 to 15 and columns 0 to 15 of `tile`.
template <int Stride, typename T>
__device__ __forceinline__ FragmentA load_a(const T* tile) {
  const int lane = lane_of_thread();
  FragmentA a;
  load_matrices(a.at, tile + lane % 16 * Stride + lane / 16 * 8);
  return a;
}

/// B twice: B(k, n) = tile(n, k) for k < 16 and n < 8, and for n from 8 to 15.
template <int Stride, typename T>
__device__ __forceinline__ void load_b_rows(FragmentB (&b)[2], const T* tile) {
  const int lane = lane_of_thread();
  unsigned at[4];
  load_matrices(at, tile + (lane % 8 + lane / 16 * 8) * Stride + lane / 8 % 2 * 8);
  b[0] = {{at[0], at[1]}}, b[1] = {{at[2], at[3]}};
}

/// B twice: B(k, n) = tile(k, n) for k < 16 and n < 8, and for n from 8 to 15.
template <int Stride, typename T>
__device__ __forceinline__ void load_b_columns(FragmentB (&b)[2], const T* tile) {
  const int lane = lane_of_thread();
  unsigned at[4];
  load_matrices_transposed(at, tile + lane % 16 * Stride + lane / 16 * 8);
  b[0] = {{at[0], at[1]}}, b[1] = {{at[2], at[3]}};
}

}  // namespace trainer::kernels::cuda
