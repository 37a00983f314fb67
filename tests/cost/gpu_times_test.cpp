// Times on GPUs against what others measured and published: products, fused attention, memory, collectives. No figure
// here is of a whole training step. Each table names its source; tolerances are stated with it, as the median and the
// worst of the table.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/cost/collective_times.h"
#include "engine/cost/cost_model.h"
#include "engine/cost/gpu_attention.h"
#include "engine/cost/gpu_gemm.h"
#include "engine/cost/kernel_times.h"
#include "engine/cost/machine_model.h"
#include "engine/cost/work.h"

namespace trainer::cost {
namespace {

MachineModel machine(const std::string& name) {
  return load_machine(std::string(TRAINER_SOURCE_DIR) + "/configs/hardware/" + name + ".yaml");
}

/// Relative errors of a table.
class Errors {
 public:
  void add(double model, double measured) { errors_.push_back(std::abs(model / measured - 1)); }
  double median() {
    std::sort(errors_.begin(), errors_.end());
    return errors_.at(errors_.size() / 2);
  }
  double worst() const { return *std::max_element(errors_.begin(), errors_.end()); }

 private:
  std::vector<double> errors_;
};

Product product(std::int64_t m, std::int64_t n, std::int64_t k) {
  Product p;
  p.m = m, p.n = n, p.k = k;
  p.result_bytes = 2.0 * static_cast<double>(m * n);
  p.operand_bytes = 2.0 * static_cast<double>((m + n) * k);
  return p;
}

struct Rate {
  std::int64_t m, n, k;
  double tflops;
};

/// `overhead_us`: what the benchmark's clock sees besides the kernel.
Errors compare_products(const MachineModel& gpu, const std::vector<Rate>& table, double overhead_us) {
  Errors errors;
  for (const Rate& row : table) {
    const double measured = 2.0 * static_cast<double>(row.m * row.n * row.k) / row.tflops / 1e6;
    errors.add(gpu_product(gpu.device, product(row.m, row.n, row.k)).us + overhead_us, measured);
  }
  return errors;
}

struct AttentionRate {
  std::int64_t head, seq;
  bool causal;
  double tflops;
};

/// Tables of FlashAttention's papers: 16,384 tokens of width 2048; backward is counted as 2.5 times forward, a causal
/// mask as half.
Errors compare_attention(MachineModel gpu, const std::vector<AttentionRate>& table, bool backward) {
  gpu.device.attention = AttentionKernels::flash_attention_2;
  Errors errors;
  for (const AttentionRate& row : table) {
    Attention a;
    a.batch = 16384 / row.seq, a.heads = 2048 / row.head, a.queries = a.keys = row.seq, a.head_dim = row.head;
    a.causal = row.causal, a.backward = backward;
    const double flops =
        4.0 * 16384 * 2048 * static_cast<double>(row.seq) * (row.causal ? 0.5 : 1) * (backward ? 2.5 : 1);
    errors.add(gpu_attention(gpu.device, a).us, flops / row.tflops / 1e6);
  }
  return errors;
}

struct BusBandwidth {
  double mebibytes, gigabytes_per_s;
};

Errors compare_collectives(const MachineModel& gpu, CollectiveKind kind, const GroupShape& group,
                           const std::vector<BusBandwidth>& table) {
  Errors errors;
  const double share = (kind == CollectiveKind::all_reduce ? 2.0 : 1.0) * (group.ranks - 1) / group.ranks;
  for (const BusBandwidth& row : table) {
    const double bytes = row.mebibytes * 1024 * 1024;
    errors.add(gpu_collective(gpu, kind, DType::bf16, static_cast<std::int64_t>(bytes), group).us,
               bytes * share / row.gigabytes_per_s / 1e3);
  }
  return errors;
}

double collective_us(const MachineModel& gpu, CollectiveKind kind, double bytes, const GroupShape& group) {
  return gpu_collective(gpu, kind, DType::bf16, static_cast<std::int64_t>(bytes), group).us;
}

}  // namespace

TEST_CASE("products on an H100 take what XLA's table of cuBLAS says, short and at full clock") {
  // OpenXLA, matmul_interpolator_data.h, sm_90, bf16. Single short kernels run at 0.9 of the peak, before power limits
  // the clock: the table is held to the shapes, not to the sustained share. 4 µs of launch.
  MachineModel gpu = machine("h100-sxm");
  gpu.device.achievable["matmul"].value = 0.88;
  Errors errors = compare_products(
      gpu, {{2048, 4096, 1024, 594.2}, {4096, 4096, 2048, 738.7}, {512, 512, 2048, 114.7},   {4096, 512, 4096, 650.0},
            {4096, 1024, 256, 216.5},  {1024, 4096, 1024, 490.3}, {256, 4096, 256, 78.0},    {256, 4096, 4096, 412.0},
            {4096, 1024, 4096, 738.5}, {1024, 256, 4096, 169.7},  {256, 2048, 512, 78.2},    {2048, 256, 256, 43.6},
            {4096, 2048, 256, 304.0},  {1024, 256, 512, 40.9},    {256, 512, 512, 22.0},     {4096, 2048, 4096, 758.4},
            {2048, 2048, 1024, 493.9}, {256, 1024, 512, 41.8},    {1024, 1024, 512, 145.6},  {2048, 512, 1024, 235.9},
            {512, 2048, 4096, 430.5},  {2048, 1024, 1024, 373.3}, {2048, 4096, 512, 450.4},  {1024, 2048, 512, 237.6},
            {2048, 256, 2048, 216.1},  {1024, 4096, 4096, 738.5}, {512, 1024, 4096, 309.6},  {512, 512, 4096, 174.5},
            {4096, 512, 2048, 521.7},  {256, 4096, 1024, 225.2},  {4096, 256, 1024, 217.2},  {4096, 1024, 2048, 632.0},
            {2048, 4096, 256, 299.3},  {2048, 4096, 4096, 753.6}, {1024, 1024, 1024, 236.3}, {2048, 2048, 512, 345.5},
            {4096, 2048, 2048, 716.1}, {512, 1024, 1024, 138.7},  {2048, 2048, 256, 213.0},  {256, 2048, 2048, 215.8},
            {2048, 2048, 4096, 738.0}, {4096, 2048, 1024, 593.2}, {2048, 512, 4096, 451.2},  {1024, 4096, 2048, 634.2},
            {2048, 1024, 4096, 653.1}, {256, 1024, 2048, 119.0},  {4096, 256, 4096, 376.2},  {512, 4096, 4096, 644.1},
            {1024, 1024, 4096, 470.1}},
      4.0);
  CHECK(errors.median() < 0.08);
  CHECK(errors.worst() < 0.2);
}

TEST_CASE("large products on an H100 take what cuBLAS takes on random numbers") {
  // Bekman, ML Engineering (2048 x 2048 x 13312); fast.cu (4096, 8192 cubed). Some hundred repetitions, before the
  // clock falls to what is sustained.
  MachineModel gpu = machine("h100-sxm");
  gpu.device.achievable["matmul"].value = 794.5 / 989.4;
  Errors errors =
      compare_products(gpu, {{2048, 2048, 13312, 794.5}, {4096, 4096, 4096, 716}, {8192, 8192, 8192, 795}}, 2);
  CHECK(errors.worst() < 0.1);
}

TEST_CASE("products on an A100 take what cuBLAS takes after it is warm") {
  // Azure AI benchmarking guide, ND A100 v4, fp16, random numbers, 10,000 repetitions first; the last row is Bekman's
  // best shape.
  Errors errors = compare_products(machine("a100-80gb"),
                                   {{1024, 1024, 1024, 119.4},
                                    {2048, 2048, 2048, 221.8},
                                    {4096, 4096, 4096, 228.0},
                                    {8192, 8192, 8192, 253.7},
                                    {16384, 16384, 16384, 256.5},
                                    {6144, 12288, 12288, 250.8},
                                    {802816, 192, 768, 157.8},
                                    {1024, 10240, 5120, 271.2}},
                                   1);
  CHECK(errors.median() < 0.05);
  CHECK(errors.worst() < 0.2);
}

TEST_CASE("one more tile than multiprocessors costs a wave") {
  const MachineModel gpu = machine("a100-80gb");
  const double full = gpu_product(gpu.device, product(128 * 12, 256 * 9, 8192)).us;  // 108 tiles of 128 x 256
  const double one_more = gpu_product(gpu.device, product(128 * 12 + 128, 256 * 9, 8192)).us;
  CHECK(one_more > full * 1.2);
  CHECK(one_more > full * (13.0 / 12) * 1.1);  // more than its share of the work
}

TEST_CASE("a product never gets faster by growing") {
  const MachineModel gpu = machine("h100-sxm");
  for (std::int64_t n : {256, 1024, 4096, 12288})
    for (std::int64_t k : {512, 4096, 16384}) {
      double before = 0;
      for (std::int64_t m = 256; m <= 32768; m *= 2) {
        const double us = gpu_product(gpu.device, product(m, n, k)).us;
        CHECK(us >= before);
        before = us;
      }
    }
}

TEST_CASE("rows that are no multiple of 16 bytes cost") {
  // Bekman, ML Engineering, SwiGLU: on an H100 273 TFLOP/s at d_ff = 10922, 398 at 10944.
  const MachineModel gpu = machine("h100-sxm");
  Product aligned = product(8192, 10944, 4096), odd = product(8192, 10922, 4096);
  odd.alignment = 4;
  const double ratio = gpu_product(gpu.device, odd).us / gpu_product(gpu.device, aligned).us;
  CHECK(ratio == doctest::Approx(398.0 / 273).epsilon(0.2));
}

TEST_CASE("attention on an H100 takes what FlashAttention-2 takes") {
  // arXiv:2407.08608, figures 5 and 6; heads of 64: pull request 2688 of flash-attention.
  const MachineModel gpu = machine("h100-sxm");
  Errors forward = compare_attention(gpu,
                                     {{128, 512, false, 309},
                                      {128, 1024, false, 350},
                                      {128, 2048, false, 362},
                                      {128, 4096, false, 368},
                                      {128, 16384, false, 370},
                                      {128, 512, true, 191},
                                      {128, 1024, true, 260},
                                      {128, 2048, true, 298},
                                      {128, 4096, true, 319},
                                      {128, 8192, true, 333},
                                      {128, 16384, true, 335},
                                      {64, 1024, false, 294.8},
                                      {64, 2048, false, 308.1},
                                      {64, 4096, false, 312.0},
                                      {64, 8192, false, 310.2}},
                                     false);
  CHECK(forward.median() < 0.05);
  CHECK(forward.worst() < 0.15);
  Errors backward = compare_attention(gpu,
                                      {{128, 512, false, 214},
                                       {128, 1024, false, 260},
                                       {128, 2048, false, 291},
                                       {128, 4096, false, 310},
                                       {128, 8192, false, 318},
                                       {128, 16384, false, 322},
                                       {64, 512, false, 198},
                                       {64, 1024, false, 238},
                                       {64, 2048, false, 264},
                                       {64, 4096, false, 279},
                                       {64, 16384, false, 291}},
                                      true);
  CHECK(backward.median() < 0.06);
  CHECK(backward.worst() < 0.15);
}

TEST_CASE("a product in fp8 takes its operands' codes first and multiplies at the peak of fp8") {
  const MachineModel gpu = machine("h100-sxm");
  const auto time = [&](std::int64_t rows, const char* fp8, bool gelu) {
    Signature s{Op::linear,
                {{"bias", false}, {"gelu", gelu}, {"fp8", std::string(fp8)}},
                {{DType::bf16, {rows, 8192}}, {DType::bf16, {8192, 8192}}, {DType::bf16, {rows, 8192}}}};
    return gpu_kernel(gpu, s).us;
  };
  const double plain = time(16384, "none", false), blocks = time(16384, "block_128", false),
               tensor = time(16384, "tensor", false);
  const double bytes = 3.0 * 8192 * (16384 + 8192) / 3.35e6;  // µs at the data sheet's bandwidth
  CHECK(blocks > plain / 2 + bytes);
  CHECK(blocks < 0.65 * plain);
  CHECK(tensor > blocks + bytes / 2);                                            // x is read once more
  CHECK(time(16384, "block_128", true) > blocks + 4.0 * 16384 * 8192 / 3.35e6);  // a pass of GELU
  CHECK(time(16, "block_128", false) > time(16, "none", false));                 // a few rows do not pay
}

TEST_CASE("a bias gradient costs one more read of dy") {
  const MachineModel gpu = machine("h100-sxm");
  const TensorDesc x{DType::bf16, {65536, 768}}, dy{DType::bf16, {65536, 3072}}, dw{DType::f32, {3072, 768}};
  const Signature without{Op::linear_grad_weight, {{"bias", false}}, {x, dy, dw}},
      with{Op::linear_grad_weight, {{"bias", true}}, {x, dy, dw, {DType::f32, {3072}}}};
  const double pass = gpu_kernel(gpu, with).us - gpu_kernel(gpu, without).us, bytes = 65536.0 * 3072 * 2;
  CHECK(pass > bytes / 3.35e6);
  CHECK(pass < 1.3 * bytes / 3.35e6);
}

TEST_CASE("the own gradient of attention takes seven products for FlashAttention-2's five, its forward pass the same") {
  for (const char* name : {"a100-80gb", "h100-sxm", "h200"}) {
    const MachineModel own = machine(name);
    MachineModel other = own;
    other.device.attention = AttentionKernels::flash_attention_2;
    Attention a;
    a.batch = 8, a.heads = 16, a.queries = a.keys = 4096, a.causal = false;
    for (const std::int64_t head : {64, 128}) {
      a.head_dim = head;
      a.backward = false;
      CHECK(gpu_attention(own.device, a).us == gpu_attention(other.device, a).us);
      a.backward = true;
      const double ratio = gpu_attention(own.device, a).us / gpu_attention(other.device, a).us;
      CHECK(ratio > 1.35);
      CHECK(ratio < 1.75);
    }
  }
}

TEST_CASE("cuDNN's attention on an H100 takes what it took in FlashAttention-3's figures") {
  // arXiv:2407.08608, figures 5 and 6, heads of 128, and 64 backward; from 1024 tokens on. Its gradient there was not
  // the deterministic one.
  MachineModel gpu = machine("h100-sxm");
  for (const char* pass : {"attention_forward", "attention_backward"})
    gpu.device.achievable[pass] = gpu.device.achievable.at(std::string("cudnn_") + pass);
  Errors forward = compare_attention(gpu,
                                     {{128, 1024, false, 574},
                                      {128, 2048, false, 617},
                                      {128, 4096, false, 609},
                                      {128, 8192, false, 600},
                                      {128, 16384, false, 595},
                                      {128, 1024, true, 410},
                                      {128, 2048, true, 484},
                                      {128, 4096, true, 518},
                                      {128, 8192, true, 529},
                                      {128, 16384, true, 539}},
                                     false);
  CHECK(forward.median() < 0.08);
  CHECK(forward.worst() < 0.12);
  Errors backward = compare_attention(gpu,
                                      {{128, 1024, false, 408},
                                       {128, 2048, false, 465},
                                       {128, 4096, false, 499},
                                       {128, 8192, false, 518},
                                       {128, 16384, false, 516},
                                       {64, 1024, false, 348},
                                       {64, 2048, false, 395},
                                       {64, 4096, false, 417},
                                       {64, 8192, false, 432},
                                       {64, 16384, false, 433}},
                                      true);
  CHECK(backward.median() < 0.08);
  CHECK(backward.worst() < 0.15);
}

TEST_CASE("cuDNN's deterministic gradient takes its time and that of moving the gradients of scores") {
  for (const char* name : {"h100-sxm", "h200", "b200"}) {
    CAPTURE(name);
    const MachineModel gpu = machine(name);
    Attention a;
    a.backward = true;
    a.batch = 64, a.heads = 12, a.queries = a.keys = 1024, a.head_dim = 64;  // GPT-2 124M
    const double own = gpu_attention(gpu.device, a).us;
    a.fused = true;
    a.pieces =
        fused_grad_pieces({DType::bf16, a.batch, a.heads, a.heads, a.queries, a.keys, 64, 64}, gpu.device.capability);
    const double fused = gpu_attention(gpu.device, a).us;
    Attention one = a;  // all in one piece that keeps no scores
    one.pieces.count = 1, one.pieces.samples = a.batch, one.pieces.scores_bytes = 0;
    const double whole = gpu_attention(gpu.device, one).us;
    const double moved = 2 * 0.5 * static_cast<double>(a.pieces.scores_bytes * a.pieces.count);
    CHECK(fused >= whole + moved / gpu.device.memory_bandwidth.value * 1e6);
    CHECK(fused < 1.1 * whole + 1.2 * moved / gpu.device.memory_bandwidth.value * 1e6);
    CHECK(fused < own);
    // A block of a ring is the work of the own kernels.
    a.own = true;
    CHECK(gpu_attention(gpu.device, a).us == own);
  }
}

TEST_CASE("attention on an H100 takes what FlashAttention-3 takes, where a file states its share") {
  // arXiv:2407.08608, figure 5, heads of 128 with and without a mask, 256 without, and figure 6 backward; from 1024
  // tokens on.
  MachineModel gpu = machine("h100-sxm");
  gpu.device.achievable["attention_forward"].value = 648 / 989.4;
  gpu.device.achievable["attention_backward"].value = 561 / 989.4;
  Errors forward = compare_attention(gpu,
                                     {{128, 512, false, 467},
                                      {128, 1024, false, 565},
                                      {128, 2048, false, 625},
                                      {128, 4096, false, 638},
                                      {128, 8192, false, 646},
                                      {128, 16384, false, 648},
                                      {128, 512, true, 292},
                                      {128, 1024, true, 423},
                                      {128, 2048, true, 521},
                                      {128, 4096, true, 579},
                                      {128, 8192, true, 602},
                                      {128, 16384, true, 616},
                                      {256, 1024, false, 639},
                                      {256, 2048, false, 707},
                                      {256, 4096, false, 736},
                                      {256, 16384, false, 756}},
                                     false);
  CHECK(forward.median() < 0.05);
  CHECK(forward.worst() < 0.12);
  Errors backward = compare_attention(gpu,
                                      {{128, 512, false, 316},
                                       {128, 1024, false, 424},
                                       {128, 2048, false, 501},
                                       {128, 4096, false, 542},
                                       {128, 8192, false, 559},
                                       {128, 16384, false, 561},
                                       {64, 512, false, 272},
                                       {64, 1024, false, 363},
                                       {64, 2048, false, 422},
                                       {64, 4096, false, 453},
                                       {64, 8192, false, 472},
                                       {64, 16384, false, 474}},
                                      true);
  CHECK(backward.median() < 0.05);
  CHECK(backward.worst() < 0.12);
}

TEST_CASE("attention on an A100 takes what FlashAttention-2 takes") {
  // Azure AI benchmarking guide: heads of 64, 8192 tokens: 179.5 TFLOP/s (its FLOPs without a mask). Abstract of
  // arXiv:2307.08691.
  const MachineModel gpu = machine("a100-80gb");
  CHECK(compare_attention(gpu, {{64, 8192, false, 179.5}}, false).worst() < 0.08);
  CHECK(compare_attention(gpu, {{128, 16384, false, 0.73 * 312}}, false).worst() < 0.05);
}

TEST_CASE("a node's all-reduce takes what nccl-tests measured") {
  // Azure AI benchmarking guide, 8 GPUs in one process, in place: H100 and H200 reduce in the switch, A100 in rings.
  // Below 4 MiB the benchmark's own launches count.
  const GroupShape node{8, 1, 8, 1};
  Errors h100 = compare_collectives(machine("h100-sxm"), CollectiveKind::all_reduce, node,
                                    {{4, 128.73},
                                     {8, 172.13},
                                     {16, 234.45},
                                     {32, 295.53},
                                     {64, 361.78},
                                     {128, 400.61},
                                     {256, 423.38},
                                     {512, 438.46},
                                     {1024, 466.35},
                                     {2048, 472.36},
                                     {4096, 475.54},
                                     {8192, 478.87}});
  CHECK(h100.median() < 0.05);
  CHECK(h100.worst() < 0.1);
  Errors h200 = compare_collectives(machine("h200"), CollectiveKind::all_reduce, node,
                                    {{4, 138.44},
                                     {8, 181.94},
                                     {16, 240.41},
                                     {32, 300.91},
                                     {64, 368.11},
                                     {128, 412.45},
                                     {256, 432.24},
                                     {512, 442.72},
                                     {1024, 467.58},
                                     {2048, 472.57},
                                     {8192, 479.98}});
  CHECK(h200.median() < 0.05);
  CHECK(h200.worst() < 0.1);
  Errors a100 = compare_collectives(machine("a100-80gb"), CollectiveKind::all_reduce, node,
                                    {{4, 71.43},
                                     {8, 89.99},
                                     {16, 109.22},
                                     {32, 132.77},
                                     {64, 166.63},
                                     {128, 174.18},
                                     {256, 213.87},
                                     {512, 221.58},
                                     {1024, 228.10},
                                     {2048, 230.22},
                                     {4096, 230.48},
                                     {8192, 231.58}});
  CHECK(a100.median() < 0.1);
  CHECK(a100.worst() < 0.3);
}

TEST_CASE("a node's collectives reach the bus bandwidths of large messages") {
  // Bekman, ML Engineering, network: H200 at 16 GiB (4 GPUs: 8 GiB), B200 at 8 GiB.
  const MachineModel h200 = machine("h200"), b200 = machine("b200");
  const GroupShape eight{8, 1, 8, 1}, four{4, 1, 4, 1};
  CHECK(compare_collectives(h200, CollectiveKind::all_reduce, eight, {{16384, 480.0}}).worst() < 0.03);
  CHECK(compare_collectives(h200, CollectiveKind::all_gather, eight, {{16384, 361.4}}).worst() < 0.03);
  CHECK(compare_collectives(h200, CollectiveKind::reduce_scatter, eight, {{16384, 362.9}}).worst() < 0.03);
  CHECK(compare_collectives(h200, CollectiveKind::all_reduce, four, {{8192, 363.3}}).worst() < 0.03);
  CHECK(compare_collectives(b200, CollectiveKind::all_reduce, eight, {{8192, 838.0}}).worst() < 0.03);
  CHECK(compare_collectives(b200, CollectiveKind::all_reduce, four, {{8192, 673.2}}).worst() < 0.03);
}

TEST_CASE("collectives of several nodes reach what their cards and switches give") {
  // Bekman, ML Engineering: four nodes of eight B200 with cards of 50 GB/s, all-reduce at 1 to 16 GiB. Voltage Park's
  // benchmarks (AI @ Georgia Tech): four nodes of eight H100, all-reduce and all-gather at their best size. NVIDIA in
  // nccl-tests issue 290: one card.
  CHECK(compare_collectives(machine("b200"), CollectiveKind::all_reduce, {32, 4, 8, 1},
                            {{1024, 361.99}, {4096, 377.34}, {16384, 381.80}})
            .worst() < 0.12);
  const MachineModel h100 = machine("h100-sxm");
  CHECK(compare_collectives(h100, CollectiveKind::all_reduce, {32, 4, 8, 1}, {{8192, 330.93}}).worst() < 0.1);
  CHECK(compare_collectives(h100, CollectiveKind::all_gather, {32, 4, 8, 1}, {{8192, 323.53}}).worst() < 0.06);
  CHECK(compare_collectives(h100, CollectiveKind::all_reduce, {2, 2, 1, 8}, {{8192, 47.0}}).worst() < 0.03);
}

TEST_CASE("an all-reduce takes at least a reduce-scatter, and no group beats its slowest link") {
  for (const char* name : {"a100-80gb", "h100-sxm", "b200", "rtx4090"}) {
    const MachineModel gpu = machine(name);
    for (const GroupShape& group : {GroupShape{8, 1, 8, 1}, GroupShape{2, 1, 2, 4}, GroupShape{16, 2, 8, 1},
                                    GroupShape{128, 16, 8, 1}, GroupShape{16, 16, 1, 8}})
      for (double bytes = 1e3; bytes < 1e10; bytes *= 10) {
        const double scatter = collective_us(gpu, CollectiveKind::reduce_scatter, bytes, group);
        const double reduce = collective_us(gpu, CollectiveKind::all_reduce, bytes, group);
        // Sums in the switch, and trees of short messages, are faster than rings of many steps; what moves is not.
        if (!gpu.inside.reduces && bytes > 1e8 && group.nodes < 4) CHECK(reduce >= scatter);
        if (group.nodes > 1) {
          const double cards = gpu.between->bandwidth.value * group.per_node / 1e6;
          CHECK(reduce >= bytes * (group.nodes - 1) / group.nodes / cards);
          CHECK(scatter >= bytes * (group.nodes - 1) / group.nodes / cards);
        }
      }
  }
}

TEST_CASE("collectives never get faster by growing, in bytes or in nodes") {
  const MachineModel gpu = machine("h100-sxm");
  for (CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::all_to_all}) {
    double before = 0;
    for (double bytes = 1e3; bytes < 1e10; bytes *= 1.5) {
      const double us = collective_us(gpu, kind, bytes, {8, 1, 8, 1});
      CHECK(us >= before * 0.999);
      before = us;
    }
    before = 0;
    for (int nodes = 1; nodes <= 512; nodes *= 2) {
      const double us = collective_us(gpu, kind, 256e6, {8 * nodes, nodes, 8, 1});
      CHECK(us >= before);
      before = us;
    }
  }
}

TEST_CASE("a link of more latency makes short collectives longer") {
  MachineModel gpu = machine("h100-sxm");
  const GroupShape inside{8, 1, 8, 1}, rail{16, 8, 2, 4};
  const double short_inside = collective_us(gpu, CollectiveKind::all_gather, 1e5, inside),
               short_rail = collective_us(gpu, CollectiveKind::all_gather, 1e5, rail);
  gpu.between->latency_us.value += 15;
  CHECK(collective_us(gpu, CollectiveKind::all_gather, 1e5, rail) ==
        doctest::Approx(short_rail + 7 * 15).epsilon(0.01));
  gpu.inside.latency_us.value += 2;
  CHECK(collective_us(gpu, CollectiveKind::all_gather, 1e5, inside) ==
        doctest::Approx(short_inside + 7 * 2).epsilon(0.01));
}

TEST_CASE("products on a B200 take what cuBLAS takes on random numbers") {
  // pyptx, performance, cuBLAS column; the last row is the best shape of Bekman's search. Short repetitions.
  MachineModel gpu = machine("b200");
  gpu.device.achievable["matmul"].value = 1745.0 / 2250;
  Errors errors = compare_products(gpu,
                                   {{2048, 2048, 2048, 1006},
                                    {4096, 4096, 4096, 1532},
                                    {4096, 8192, 8192, 1652},
                                    {8192, 4096, 8192, 1648},
                                    {8192, 8192, 8192, 1610},
                                    {1792, 16128, 3072, 1745}},
                                   1);
  CHECK(errors.median() < 0.06);
  CHECK(errors.worst() < 0.13);
}

TEST_CASE("a kernel that moves bytes takes the memory's time, and a small one its launch") {
  const MachineModel gpu = machine("h100-sxm");
  const TensorDesc large{DType::bf16, {8192, 8192}}, small{DType::bf16, {16, 64}};
  const Estimate big = gpu_kernel(gpu, {Op::add, {}, {large, large, large}});
  CHECK(
      big.us ==
      doctest::Approx(3 * 8192.0 * 8192 * 2 / (0.885 * 3.35e12) * 1e6).epsilon(0.03));  // BabelStream's add: 2.97 TB/s
  CHECK(gpu_kernel(gpu, {Op::add, {}, {small, small, small}}).us < 4);
  CHECK(gpu_kernel(gpu, {Op::add, {}, {small, small, small}}).us > gpu.device.launch_us.value);
}

TEST_CASE(
    "GELU as an epilogue costs what it moves beside the product: nothing without its input kept, less than a pass of "
    "its own with it") {
  for (const char* name : {"a100-80gb", "h100-sxm", "h200"}) {
    CAPTURE(name);
    const MachineModel gpu = machine(name);
    for (std::int64_t rows : {1024, 65536}) {
      const TensorDesc x{DType::bf16, {rows, 768}}, w{DType::bf16, {3072, 768}}, y{DType::bf16, {rows, 3072}},
          w2{DType::bf16, {768, 3072}};
      const auto us = [&](const Signature& signature) { return gpu_kernel(gpu, signature).us; };
      const double product = us({Op::linear, {{"bias", false}}, {x, w, y}}),
                   pass = us({Op::gelu, {{"approximate", std::string("tanh")}}, {y, y}});
      const double alone = us({Op::linear, {{"bias", false}, {"gelu", true}}, {x, w, y}}),
                   kept = us({Op::linear, {{"bias", false}, {"gelu", true}, {"pre", true}}, {x, w, y, y}});
      CHECK(alone == product);
      CHECK(kept > product);
      CHECK(kept < product + pass);
      const double gradient = us({Op::linear_grad_input, {}, {x, w2, y}}),
                   gradient_pass = us({Op::gelu_grad, {{"approximate", std::string("tanh")}}, {y, y, y}});
      const double activated = us({Op::linear_grad_input, {{"gelu", true}}, {x, w2, y, y}});
      CHECK(activated > gradient);
      CHECK(activated < gradient + gradient_pass);
    }
  }
}

TEST_CASE("Muon takes the time of its products in bf16, and little beside it where the matrix is large") {
  const MachineModel gpu = machine("h100-sxm");
  const auto muon = [&](std::int64_t rows, std::int64_t cols) {
    const TensorDesc x{DType::f32, {1, rows * cols}}, scalars{DType::f32, {4}};
    const std::string matrix = "0:" + std::to_string(rows) + ":" + std::to_string(cols) + ":-:0";
    return gpu_kernel(gpu, {Op::muon_orthogonalize, {{"steps", std::int64_t{5}}, {"matrices", matrix}}, {x, scalars}})
        .us;
  };
  const double flops = 5 * 6.0 * 4096 * 4096 * 4096, at_peak = flops / gpu.device.peak.at(DType::bf16).value * 1e6;
  CHECK(muon(4096, 4096) > at_peak);
  CHECK(muon(4096, 4096) < 2 * at_peak);
  CHECK(muon(1024, 4096) == doctest::Approx(muon(4096, 1024)).epsilon(1e-9));
  CHECK(muon(1024, 4096) < muon(4096, 4096) / 8);
}

TEST_CASE("what a hardware file measured on a GPU stands above the model") {
  MachineModel gpu = machine("h100-sxm");
  const TensorDesc x{DType::bf16, {1024, 4096}}, w{DType::bf16, {4096, 4096}};
  const Signature linear{Op::linear, {{"bias", false}}, {x, w, x}};
  const Work work = work_of(linear);
  gpu.device.measured.push_back({std::string(work.name), work.dtype, 0, 1, work.sizes, {5e14, 0.01}});
  gpu.collectives.push_back({"all_reduce", "nccl", 8, 1 << 20, {77, 0.02}});
  const CostModel model({&gpu, Mesh{{Axis::tensor, 8}}, 8, 0});
  CHECK(model.kernel(linear).us == doctest::Approx(2.0 * 1024 * 4096 * 4096 / 5e14 * 1e6).epsilon(0.05));
  CHECK(model.collective(CollectiveKind::all_reduce, DType::bf16, Axes::of(Axis::tensor), {}, 1 << 20).us ==
        doctest::Approx(77));
}

TEST_CASE("a thousand devices wait for the slowest of them") {
  const MachineModel gpu = machine("h100-sxm");
  const TensorDesc x{DType::bf16, {8192, 4096}}, w{DType::bf16, {4096, 4096}};
  const Signature linear{Op::linear, {{"bias", false}}, {x, w, x}};
  const double one = CostModel({&gpu, Mesh{}, 1, 0}).kernel(linear).us,
               thousand = CostModel({&gpu, Mesh{{Axis::shard, 1000}}, 8, 0}).kernel(linear).us;
  // The largest of a thousand normal deviations is expected at 3.24 standard deviations.
  CHECK(thousand / one == doctest::Approx(1 + 3.24 * gpu.device.variation.value).epsilon(0.003));
}

// But for what is read and written of the others.
TEST_CASE("products of experts take as long as the rows of their buffers that hold a choice") {
  const MachineModel gpu = machine("h100-sxm");
  const auto us = [&](std::int64_t rows, double filled) {
    const TensorDesc x{DType::bf16, Shape{1, 8, rows, 2048}}, choices{DType::i32, Shape{1, 8, rows}},
        weight{DType::bf16, Shape{8, 4096, 2048}}, y{DType::bf16, Shape{1, 8, rows, 4096}};
    return gpu_kernel(gpu,
                      {Op::expert_linear, {{"parts", std::int64_t{8}}, {"filled", filled}}, {x, choices, weight, y}})
        .us;
  };
  CHECK(us(4096, 0.5) == doctest::Approx(us(2048, 1)).epsilon(0.1));
  CHECK(us(4096, 1) > 1.8 * us(2048, 1));
}

}  // namespace trainer::cost
