// Plans of cuDNN for attention and its gradient, made for GPUs that are described to the library: on a machine without
// one, with a driver that does nothing (no_driver.cpp). What the library proposes is deterministic and keeps within the
// bytes that planning counts (engine/core/fused_attention.h). For a B200 that takes cuDNN 9.18 or newer.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/core/fused_attention.h"
#include "kernels/cuda/attention/cudnn_attention.h"

#undef CHECK  // the program's; the rest is doctest's
#include <doctest/doctest.h>

using namespace trainer;
using namespace trainer::kernels::cuda;

namespace {

/// The properties of a device that cuDNN 9.19 reads: those that cudaDeviceGetAttribute gives (NVIDIA's data sheets, and
/// "Compute Capabilities" in the CUDA programming guide).
FusedDevice described(const std::string& name, int capability, int units, int shared_kib, int l2_mib, int memory_gib) {
  const auto number = [](std::int64_t x) { return std::to_string(x); };
  std::string text = R"({"deviceName":")" + name + R"(","deviceVer":)" + number(capability * 10) +
                     R"(,"multiProcessorCount":)" + number(units) + R"(,"maxSharedMemoryPerBlockOptin":)" +
                     number(shared_kib * 1024) + R"(,"l2CacheSize":)" + number(std::int64_t{l2_mib} << 20) +
                     R"(,"totalGlobalMem":)" + number(std::int64_t{memory_gib} << 30);
  text += R"(,"regsPerBlock":65536,"maxRegistersPerSM":65536,"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
          R"("reservedSharedMemoryPerBlock":1024,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,)"
          R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"smClockRateKHz":1755000,)"
          R"("memClockRateKHz":2619000,"pciDeviceId":0,"cudaDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
          R"("driverVer":13000})";
  return {.handle = nullptr, .description = text, .capability = capability, .units = units};
}

struct Sizes {
  DType dtype;
  int batch, seq, heads, kv_heads, dim;
  bool causal = true, packed = true;
};

AttentionArguments arguments(const Sizes& z) {
  AttentionArguments a;
  a.batch = z.batch, a.queries = a.keys = z.seq, a.heads = z.heads, a.kv_heads = z.kv_heads;
  a.head_dim = a.v_dim = z.dim, a.causal = z.causal, a.scale = 0.125f;
  const std::int64_t q = z.heads * z.dim, k = z.kv_heads * z.dim, row = q + 2 * k;
  a.q.stride = a.dq.stride = z.packed ? row : q;
  a.k.stride = a.v.stride = a.dk.stride = a.dv.stride = z.packed ? row : k;
  a.o.stride = a.d_o.stride = q;
  return a;
}

}  // namespace

TEST_CASE("cuDNN has deterministic plans for attention and its gradient, within the planned bytes") {
  for (const FusedDevice& device :
       {described("NVIDIA A100-SXM4-80GB", 80, 108, 163, 40, 80), described("NVIDIA H100", 90, 132, 227, 50, 80),
        described("NVIDIA B200", 100, 148, 227, 126, 180)})
    for (const Sizes& z : {Sizes{DType::bf16, 16, 1024, 12, 12, 64}, Sizes{DType::bf16, 1, 4096, 8, 2, 128},
                           Sizes{DType::f16, 3, 1000, 4, 2, 96, false, false}, Sizes{DType::bf16, 2, 17, 3, 3, 8}}) {
      CAPTURE(device.description);
      CAPTURE(z.seq);
      CAPTURE(z.dim);
      const AttentionArguments a = arguments(z);
      std::string refused;
      const auto forward = fused_attention(device, z.dtype, a, 1 << 20, refused);
      CHECK_MESSAGE(forward != nullptr, refused);
      if (device.capability < 90) continue;
      const FusedGradPieces pieces =
          fused_grad_pieces({z.dtype, z.batch, z.heads, z.kv_heads, z.seq, z.seq, z.dim, z.dim}, device.capability);
      REQUIRE(pieces.count == 1);
      const auto backward = fused_attention_grad(device, z.dtype, a, pieces.bytes, refused);
      REQUIRE_MESSAGE(backward != nullptr, refused);
      if (z.seq < 1000) continue;
      // Not many more bytes are planned than are used; what does not fit is refused with the reason.
      CHECK(backward->workspace_bytes() > pieces.bytes * 9 / 10);
      refused.clear();
      CHECK(fused_attention_grad(device, z.dtype, a, backward->workspace_bytes() - 1, refused) == nullptr);
      CHECK(refused != "");
    }
}
