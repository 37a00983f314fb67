// Which element of a matrix a lane holds, against another description of the same instructions than the PTX manual's,
// on which kernels/cuda/runtime/mma.cuh rests: the layouts of CuTe (NVIDIA/cutlass,
// include/cute/atom/mma_traits_sm80.hpp, SM80_16x8x16_F32F16F16F32_TN, and copy_traits_sm75.hpp, SM75_U32x4_LDSM_N and
// SM75_U16x8_LDSM_T). A layout maps a lane (l % 4, l / 4) and a value to an index by a stride for each digit; elements
// of A are m + 16 k, of B n + 8 k, of C m + 16 n.
#include <cuda_runtime.h>

#include <array>
#include <cstring>
#include <vector>

#include "kernels/cuda/runtime/mma.cuh"

#undef CHECK  // the program's; the rest is doctest's
#include <doctest/doctest.h>

namespace trainer::kernels::cuda {
namespace {

// Strides of the lane's digits, of base 4 and 8, and of the value's, of base 2 each.
struct Layout {
  int of_four, of_eight;
  std::array<int, 3> of_value;
  __device__ int at(int lane, int value) const {
    int index = lane % 4 * of_four + lane / 4 * of_eight;
    for (const int stride : of_value) index += value % 2 * stride, value /= 2;
    return index;
  }
};
constexpr Layout kA{32, 1, {16, 8, 128}}, kB{16, 1, {8, 64, 0}}, kC{32, 1, {16, 8, 0}};
// Of elements of 16 bits, each matrix 64 of them. Value 2 i + j is element j of register i.
constexpr Layout kPlain{2, 8, {1, 64, 128}}, kTransposed{16, 1, {8, 64, 128}};

template <typename T>
__global__ void multiply(const float* a, const float* b, float* c) {
  const int lane = lane_of_thread();
  FragmentA left;
  FragmentB right;
  FragmentC sum;
  for (int i = 0; i < 4; ++i) left.at[i] = pack<T>(a[kA.at(lane, 2 * i)], a[kA.at(lane, 2 * i + 1)]);
  for (int i = 0; i < 2; ++i) right.at[i] = pack<T>(b[kB.at(lane, 2 * i)], b[kB.at(lane, 2 * i + 1)]);
  for (int i = 0; i < 4; ++i) sum.at[i] = c[kC.at(lane, i)];
  mma<T>(sum, left, right);
  for (int i = 0; i < 4; ++i) c[kC.at(lane, i)] = sum.at[i];
}

__global__ void places_in_c(int* found) {
  const int lane = lane_of_thread();
  for (int i = 0; i < 4; ++i) found[lane * 4 + i] = row_in_c(lane, i) + 16 * column_in_c(lane, i);
}

// C of a product of small integers, whose columns are the next product's A.
__global__ void chain(const float* c, float* as_left) {
  const int lane = lane_of_thread();
  FragmentC left, right;  // columns 0 to 7, and 8 to 15
  for (int i = 0; i < 4; ++i) left.at[i] = c[kC.at(lane, i)], right.at[i] = c[kC.at(lane, i) + 128];
  const FragmentA a = as_a<bf16>(left, right);
  for (int value = 0; value < 8; ++value) {
    unsigned short bits = static_cast<unsigned short>(a.at[value / 2] >> (16 * (value % 2)));
    bf16 one;
    memcpy(static_cast<void*>(&one), &bits, sizeof one);
    as_left[kA.at(lane, value)] = to_f32(one);
  }
}

// Element e of matrix i is 64 i + e.
__global__ void load_both(int* plain, int* transposed) {
  __shared__ __align__(16) unsigned short matrices[256];
  const int lane = lane_of_thread();
  for (int i = lane; i < 256; i += kWarp) matrices[i] = static_cast<unsigned short>(i);
  __syncthreads();
  unsigned to[4];
  load_matrices(to, matrices + 8 * lane);
  for (int value = 0; value < 8; ++value) plain[lane * 8 + value] = (to[value / 2] >> (16 * (value % 2))) & 0xFFFF;
  load_matrices_transposed(to, matrices + 8 * lane);
  for (int value = 0; value < 8; ++value) transposed[lane * 8 + value] = (to[value / 2] >> (16 * (value % 2))) & 0xFFFF;
}

template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : count_(values.size()) {
    REQUIRE(cudaMalloc(&at_, count_ * sizeof(T)) == cudaSuccess);
    REQUIRE(cudaMemcpy(at_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(at_); }
  T* get() const { return static_cast<T*>(at_); }
  std::vector<T> values() const {
    std::vector<T> back(count_);
    REQUIRE(cudaMemcpy(back.data(), at_, count_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return back;
  }

 private:
  std::size_t count_;
  void* at_ = nullptr;
};

template <typename... P, typename... A>
void launch_warp(void (*kernel)(P...), A... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = 1;
  config.blockDim = kWarp;
  REQUIRE(cudaStreamCreateWithFlags(&config.stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaLaunchKernelEx(&config, kernel, arguments...) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(config.stream) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(config.stream) == cudaSuccess);
}

std::vector<float> small_integers(std::size_t count, int seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((static_cast<int>(i) * 7 + seed) % 11 - 5);
  return values;
}

template <typename T>
void check_product() {
  const std::vector<float> a = small_integers(256, 1), b = small_integers(128, 4), c = small_integers(128, 6);
  const OnDevice<float> left(a), right(b), sum(c);
  launch_warp(multiply<T>, static_cast<const float*>(left.get()), static_cast<const float*>(right.get()), sum.get());
  const std::vector<float> found = sum.values();
  for (std::size_t m = 0; m < 16; ++m)
    for (std::size_t n = 0; n < 8; ++n) {
      float want = c[m + 16 * n];
      for (std::size_t k = 0; k < 16; ++k) want += a[m + 16 * k] * b[n + 8 * k];
      CHECK(found[m + 16 * n] == want);
    }
}

}  // namespace

TEST_CASE("fragments filled by CuTe's layouts multiply as matrices do") {
  check_product<bf16>();
  check_product<__half>();
}

TEST_CASE("where C's floats stand, and C as the next A, are CuTe's layouts") {
  const OnDevice<int> places(std::vector<int>(128, -1));
  launch_warp(places_in_c, places.get());
  const std::vector<int> found = places.values();
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) CHECK(found[static_cast<std::size_t>(lane * 4 + i)] == kC.at(lane, i));
  const std::vector<float> c = small_integers(256, 3);
  const OnDevice<float> from(c), to(std::vector<float>(256, 99.0F));
  launch_warp(chain, static_cast<const float*>(from.get()), to.get());
  CHECK(to.values() == c);
}

TEST_CASE("matrices from shared memory are CuTe's layouts, plain and transposed") {
  const OnDevice<int> plain(std::vector<int>(256, -1)), transposed(std::vector<int>(256, -1));
  launch_warp(load_both, plain.get(), transposed.get());
  const std::vector<int> straight = plain.values(), turned = transposed.values();
  for (int lane = 0; lane < 32; ++lane)
    for (int value = 0; value < 8; ++value) {
      const auto at = static_cast<std::size_t>(lane * 8 + value);
      CHECK(straight[at] == kPlain.at(lane, value));
      CHECK(turned[at] == kTransposed.at(lane, value));
    }
}

}  // namespace trainer::kernels::cuda
