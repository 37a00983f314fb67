// A job's cluster held against a hardware file, GPU clusters planned without a GPU, and what GPUs' kernels are said to
// need.
#include <doctest/doctest.h>

#include "engine/compile/compile.h"
#include "engine/compile/hardware.h"
#include "engine/core/error.h"
#include "engine/core/op_record.h"
#include "kernels/cuda/target.h"
#include "tests/temporary.h"

namespace trainer {
namespace {

const std::string kConfigs = std::string(TRAINER_SOURCE_DIR) + "/configs", kFolder = kConfigs + "/hardware";

LoadedJob job(const std::string& more,
              const std::string& with = "{layers: 2, heads: 4, dim: 64, vocab: 256, context: 64}") {
  return parse_job("model: {graph: models/gpt2.yaml, with: " + with +
                       "}\ndata: {format: text, train: a.txt, seq_len: 64}\ntrain: {steps: 1, batch: {global: 32}}\n" +
                       more,
                   "job.yaml", {}, {kConfigs, true, 0});
}

std::string refused(const std::string& more) {
  LoadedJob loaded = job(more);
  try {
    resolve_cluster(loaded, kFolder);
  } catch (const JobError& error) {
    std::string out;
    for (const Diagnostic& mistake : error.diagnostics())
      out += mistake.path + "@" + std::to_string(mistake.line) + ":" + std::to_string(mistake.column) + " ";
    return out;
  }
  return "";
}

TEST_CASE("a hardware file decides the device and how many a node has") {
  LoadedJob loaded = job("cluster: {hardware: h100-sxm, nodes: 4}\n");
  const auto machine = resolve_cluster(loaded, kFolder);
  REQUIRE(machine);
  CHECK(machine->name == "h100-sxm");
  CHECK(loaded.job.cluster.device == Device::cuda);
  CHECK(loaded.job.cluster.devices_per_node == 8);
  CHECK(world_size_of(loaded.job) == 32);

  const auto again = resolve_cluster(loaded, kFolder);
  CHECK(again->name == "h100-sxm");
  CHECK(world_size_of(loaded.job) == 32);
}

TEST_CASE("what is kept off the device is kept on a GPU's host, or on a CPU's disk") {
  CHECK(refused("strategy: {offload: {optimizer: host}}\ncluster: {hardware: h100-sxm}\n").empty());
  CHECK(refused("strategy: {offload: {optimizer: disk}}\ncluster: {hardware: cpu-avx2}\n").empty());
  CHECK(refused("strategy: {offload: {optimizer: disk}}\n").empty());
  CHECK(refused("strategy: {offload: {optimizer: disk}}\ncluster: {hardware: h100-sxm}\n") ==
        "strategy.offload.optimizer@4:33 ");
  CHECK(refused("strategy: {offload: {optimizer: host}}\ncluster: {hardware: cpu-avx2}\n") ==
        "strategy.offload.optimizer@4:33 ");
  CHECK(refused("strategy: {offload: {optimizer: host}}\n") == "strategy.offload.optimizer@4:33 ");
}

TEST_CASE("without a hardware file the job is for a CPU with one rank") {
  LoadedJob loaded = job("");
  CHECK_FALSE(resolve_cluster(loaded, kFolder));
  CHECK(loaded.job.cluster.device == Device::cpu);
  CHECK(world_size_of(loaded.job) == 1);
}

GpusHere two_h200() { return {2, "NVIDIA H200", ""}; }
GpusHere no_gpu() { return {0, "", "the driver sees no GPU"}; }

TEST_CASE(
    "on a computer with GPUs a job without a hardware file takes them, by the file that has their name, as many as "
    "there are") {
  for (const char* cluster : {"", "cluster: {device: cuda}\n", "cluster: {backend: nccl}\n",
                              "cluster: {device: auto, backend: auto, hardware: auto, devices_per_node: auto}\n"}) {
    CAPTURE(cluster);
    LoadedJob loaded = job(cluster);
    const auto machine = resolve_cluster(loaded, kFolder, two_h200);
    REQUIRE(machine);
    CHECK(machine->name == "h200");
    CHECK(loaded.job.cluster.device == Device::cuda);
    CHECK(world_size_of(loaded.job) == 2);
    const LoadedJob before = loaded;
    CHECK(resolve_cluster(loaded, kFolder, no_gpu)->name == "h200");  // a second time, wherever
    CHECK(loaded.job.cluster.hardware == before.job.cluster.hardware);
    CHECK(world_size_of(loaded.job) == 2);
  }
  LoadedJob one = job("cluster: {devices_per_node: 1}\n");
  CHECK(resolve_cluster(one, kFolder, two_h200)->name == "h200");
  CHECK(world_size_of(one.job) == 1);
}

TEST_CASE("GPUs that the job does not want are not even asked for") {
  for (const char* cluster :
       {"cluster: {device: cpu}\n", "cluster: {backend: threads, devices_per_node: 2}\n", "cluster: {backend: mpi}\n",
        "cluster: {hardware: a100-80gb}\n", "cluster: {hardware: cpu-avx512}\n"}) {
    CAPTURE(cluster);
    LoadedJob here = job(cluster), there = job(cluster);
    bool asked = false;
    resolve_cluster(here, kFolder, [&] {
      asked = true;
      return two_h200();
    });
    resolve_cluster(there, kFolder, no_gpu);
    CHECK_FALSE(asked);
    CHECK(here.job.cluster.device == there.job.cluster.device);
    CHECK(world_size_of(here.job) == world_size_of(there.job));
  }
}

std::string message_of(const std::string& more, const FindGpus& find_gpus) {
  LoadedJob loaded = job(more);
  try {
    resolve_cluster(loaded, kFolder, find_gpus);
  } catch (const JobError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE(
    "a GPU without a hardware file is named, and how to write one is said; where there is no GPU it is said why") {
  const std::string unknown = message_of("", [] { return GpusHere{1, "NVIDIA Foo 9000", ""}; });
  CHECK(unknown.find("cluster.hardware: this computer has 1 \"NVIDIA Foo 9000\"") != std::string::npos);
  CHECK(unknown.find("device: {names: [\"NVIDIA Foo 9000\"]}") != std::string::npos);
  CHECK(unknown.find("cluster.device=cpu") != std::string::npos);
  CHECK(message_of("cluster: {device: cuda}\n", no_gpu).find("the driver sees no GPU") != std::string::npos);
  CHECK(message_of("cluster: {backend: nccl}\n", no_gpu).find("the driver sees no GPU") != std::string::npos);
  CHECK(message_of("", no_gpu).empty());
}

TEST_CASE("every hardware file of a GPU is found by its names, and no two have one in common") {
  int gpus = 0;
  for (const std::string& name : cost::machine_names(kFolder)) {
    const cost::MachineModel machine = cost::load_machine(kFolder + "/" + name + ".yaml", kFolder);
    CHECK((machine.device.kind == cost::DeviceKind::cuda) == !machine.device.names.empty());
    for (const std::string& gpu : machine.device.names)
      CHECK(cost::machine_of_gpu(gpu, kFolder) == kFolder + "/" + name + ".yaml");
    gpus += machine.device.names.empty() ? 0 : 1;
  }
  CHECK(gpus == 8);
}

TEST_CASE("what job and hardware file contradict each other in is refused where the job says it, all at once") {
  CHECK(refused("cluster: {hardware: h100-sxm}") == "");
  CHECK(refused("cluster: {hardware: h100-sxm, device: cuda, backend: nccl, devices_per_node: 4}") == "");
  CHECK(refused("cluster: {hardware: h100-smx}") == "cluster.hardware@4:21 ");
  CHECK(refused("cluster: {hardware: ./none.yaml}") == "cluster.hardware@4:21 ");
  CHECK(refused("cluster: {device: cuda}") == "cluster.device@4:19 ");
  CHECK(refused("cluster: {backend: nccl}") == "cluster.backend@4:20 ");
  CHECK(refused("cluster: {hardware: h100-sxm, device: cpu, devices_per_node: 16}") ==
        "cluster.device@4:39 cluster.devices_per_node@4:62 ");
  CHECK(refused("cluster: {hardware: h100-sxm, backend: threads}") == "cluster.backend@4:40 ");
  CHECK(refused("cluster: {hardware: cpu-avx512, device: cuda}") == "cluster.device@4:41 ");
  CHECK(refused("cluster: {hardware: cpu-avx512, backend: nccl}") == "cluster.backend@4:42 ");
  CHECK(refused("cluster: {hardware: cpu-avx512, devices_per_node: 4, nodes: 2}") == "");
  CHECK(refused("goal: cost") == "goal@4:7 ");
  CHECK(refused("goal: cost\ncluster: {price_per_device_hour: 2}") == "");
}

TEST_CASE("a person's own file may lack a link or a dtype, and a job that needs it is refused") {
  const tests::TemporaryFolder folder;
  const std::string file = folder.write("mine.yaml",
                                        "device: {kind: cuda, memory: 16GiB, reserve: 1GiB, memory_bandwidth: 3e11, "
                                        "cache: 4MiB, units: 40, capability: 75, launch_us: 3,\n"
                                        "  peak: {f32: 8e12, f16: 65e12}, achievable: {matmul: 0.8, memory: "
                                        "0.9}}\ndevices_per_node: 1\nprice_per_device_hour: 0.5\n");
  CHECK(refused("cluster: {hardware: " + file + "}") == "");
  CHECK(refused("goal: cost\ncluster: {hardware: " + file + "}") == "");
  CHECK(refused("cluster: {nodes: 2, hardware: " + file + "}") == "cluster.nodes@4:18 ");
  CHECK(refused("precision: {compute: bf16}\ncluster: {hardware: " + file + "}") == "precision.compute@4:22 ");
}

TEST_CASE("products of fp8 are refused where the device has none, with what has them") {
  const auto with = [](const std::string& cluster) {
    return refused("precision: {compute: bf16, matmul: fp8}\n" + cluster);
  };
  for (const char* gpu : {"l40s", "rtx4090", "h100-sxm", "h100-pcie", "h200", "b200"})
    CHECK(with(std::string("cluster: {hardware: ") + gpu + "}\n").empty());
  for (const char* other : {"cluster: {hardware: a100-80gb}\n", "cluster: {hardware: cpu-amx}\n", ""})
    CHECK(with(other) == "precision.matmul@4:36 ");
  LoadedJob loaded = job("precision: {compute: bf16, matmul: fp8}\ncluster: {hardware: a100-40gb}\n");
  std::string why;
  try {
    resolve_cluster(loaded, kFolder);
  } catch (const JobError& error) {
    why = error.diagnostics().front().message + "; " + error.diagnostics().front().allowed;
  }
  CHECK(why ==
        "no products of fp8 on a100-40gb, whose compute capability is 8.0; none; or a GPU of compute capability "
        "8.9, 9.0, 10.0 or 10.3: cluster.hardware");
}

Hardware hardware_of(const cost::MachineModel& machine, const Target& target, int ranks) {
  return {.target = &target,
          .memory_bytes = machine.usable_bytes(),
          .threads = 1,
          .machine = &machine,
          .ranks_per_node = ranks,
          .device_bytes = machine.usable_bytes()};
}

TEST_CASE("linears in blocks multiply in fp8, the head and embeddings do not, and the plan counts their codes") {
  const auto planned = [](const std::string& machine_name, const char* matmul) {
    LoadedJob loaded = job(std::string("strategy: ddp\nprecision: {compute: bf16, matmul: ") + matmul +
                           "}\ncluster: {hardware: " + machine_name + ", devices_per_node: 1}\n");
    const cost::MachineModel machine = *resolve_cluster(loaded, kFolder);
    const kernels::cuda::CudaTarget target(machine.device.capability, machine.device.units);
    return compile(loaded, hardware_of(machine, target, 1), Purpose::train);
  };
  for (const auto& [machine, scales] : {std::pair{"l40s", "tensor"}, {"h100-sxm", "block_128"}, {"b200", "block_32"}}) {
    CAPTURE(machine);
    const CompiledJob plain = planned(machine, "none"), compiled = planned(machine, "fp8");
    CHECK(plain.fp8 == Fp8Scales::none);
    CHECK(name_of(compiled.fp8) == scales);
    int in_fp8 = 0, other = 0;
    std::int64_t plain_workspace = 0, workspace = 0;
    const auto each = [](const CompiledJob& one, const auto& look) {
      const Role& role = one.plan.roles.front();
      for (const Issued& issued : role.program(ProgramKind::step)->instructions)
        if (const auto* launch = std::get_if<Launch>(&issued.instruction))
          look(role.signatures[static_cast<std::size_t>(launch->signature)], launch->workspace.region.bytes);
    };
    each(plain, [&](const Signature&, std::int64_t bytes) { plain_workspace = std::max(plain_workspace, bytes); });
    each(compiled, [&](const Signature& signature, std::int64_t bytes) {
      workspace = std::max(workspace, bytes);
      const Op op = signature.op;
      if (op != Op::linear && op != Op::linear_grad_input && op != Op::linear_grad_weight) return;
      const bool fp8 = text(signature, "fp8") == scales;
      CHECK((fp8 || text(signature, "fp8") == "none"));
      (fp8 ? in_fp8 : other) += 1;
    });
    CHECK(in_fp8 > 0);
    CHECK(in_fp8 % 3 == 0);  // forward and both gradients
    CHECK(other == 3);       // the head
    CHECK(workspace > plain_workspace);
  }
}

TEST_CASE("a linear whose sizes fp8 does not take is refused by name, with its sizes and what they have to be") {
  LoadedJob loaded = job(
      "precision: {compute: bf16, matmul: fp8}\nstrategy: ddp\ncluster: {hardware: h100-sxm, devices_per_node: 1}\n",
      "{layers: 1, heads: 4, dim: 72, vocab: 256, context: 64}");
  const cost::MachineModel machine = *resolve_cluster(loaded, kFolder);
  const kernels::cuda::CudaTarget target(machine.device.capability, machine.device.units);
  std::string said;
  try {
    compile(loaded, hardware_of(machine, target, 1), Purpose::train);
  } catch (const JobError& error) {
    for (const Diagnostic& mistake : error.diagnostics())
      said += mistake.path + "@" + std::to_string(mistake.line) + ": " + mistake.message + "\n";
  }
  CHECK(said ==
        "precision.matmul@4: h.0.attn.c_attn has 2048 rows of 72 inputs and 216 outputs on a rank, and products of fp8 "
        "take multiples of 16 here; 3 more linears do not fit\n");
}

TEST_CASE("a GPU cluster is planned here, each rank with the memory of its own device") {
  LoadedJob loaded = job("strategy: ddp\nprecision: {compute: bf16}\ncluster: {hardware: h100-sxm, nodes: 2}\n");
  const cost::MachineModel machine = *resolve_cluster(loaded, kFolder);
  const kernels::cuda::CudaTarget target(machine.device.capability, machine.device.units);
  const CompiledJob compiled = compile(loaded, hardware_of(machine, target, 8), Purpose::train);
  CHECK(compiled.plan.mesh.world_size() == 16);
  CHECK(compiled.limit_bytes == machine.usable_bytes());
  CHECK(compiled.fits);
  const cost::Cluster cluster = cluster_of(compiled, hardware_of(machine, target, 8));
  CHECK(cluster.machine == &machine);
  CHECK(cluster.ranks_per_node == 8);
  CHECK(cluster.mesh.world_size() == 16);

  loaded.job.cluster.memory_limit = 1 << 20;
  const CompiledJob small = compile(loaded, hardware_of(machine, target, 8), Purpose::train);
  CHECK(small.limit_bytes == 1 << 20);
  CHECK_FALSE(small.fits);
}

TEST_CASE(
    "f16 is planned for GPUs, its loss scale dynamic unless the job says otherwise, and refused on a processor where "
    "the job asks for it") {
  CHECK(refused("precision: {compute: f16}") == "precision.compute@4:22 ");
  CHECK(refused("precision: {compute: f16}\ncluster: {hardware: cpu-avx512}") == "precision.compute@4:22 ");
  CHECK(refused("precision: {compute: f16}\ncluster: {hardware: h100-sxm}") == "");
  for (const bool fixed : {false, true}) {
    LoadedJob loaded =
        job("strategy: {data: {kind: fsdp}, tensor: {degree: 2}}\nprecision: {compute: f16" +
            std::string(fixed ? ", loss_scale: 1024" : "") + "}\ncluster: {hardware: h100-sxm, devices_per_node: 4}\n");
    CHECK((effective_job(loaded).find("loss_scale: dynamic") != std::string::npos) == !fixed);
    const cost::MachineModel machine = *resolve_cluster(loaded, kFolder);
    const kernels::cuda::CudaTarget target(machine.device.capability, machine.device.units);
    const CompiledJob compiled = compile(loaded, hardware_of(machine, target, 4), Purpose::train);
    const Role& role = compiled.plan.roles.front();
    CHECK((role.good_steps >= 0) == !fixed);
    CHECK(parse_plan(print(compiled.plan)).roles.front().good_steps == role.good_steps);
    int updates = 0;
    for (const Signature& signature : role.signatures) {
      if (signature.op == Op::adamw) {
        CHECK(signature.operands.back().dtype == DType::f16);
        ++updates;
      }
      if (signature.op == Op::linear) CHECK(signature.operands[0].dtype == DType::f16);
      if (signature.op == Op::linear_grad_weight) CHECK(signature.operands[2].dtype == DType::f32);
      if (signature.op == Op::update_scalars) CHECK(signature.attributes.has("growth_interval") == !fixed);
    }
    CHECK(updates > 0);
  }
}

TEST_CASE(
    "no step of GPT-2 on a GPU has a pass for GELU alone in 16 bits, but for what selective recomputation repeats") {
  for (const char* compute : {"bf16", "f16", "f32"})
    for (const char* mode : {"none", "full", "selective"})
      for (const char* strategy :
           {"{data: {kind: ddp}}", "{data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}}",
            "{pipeline: {degree: 2, schedule: zb_h1}}"}) {
        CAPTURE(compute);
        CAPTURE(mode);
        CAPTURE(strategy);
        LoadedJob loaded = job("strategy: " + std::string(strategy) + "\nprecision: {compute: " + compute +
                               "}\nactivation_checkpointing: {mode: " + mode +
                               "}\ncluster: {hardware: h100-sxm, devices_per_node: 4}\n");
        const cost::MachineModel machine = *resolve_cluster(loaded, kFolder);
        const kernels::cuda::CudaTarget target(machine.device.capability, machine.device.units);
        const CompiledJob compiled = compile(loaded, hardware_of(machine, target, 4), Purpose::train);
        const bool fuses = std::string(compute) != "f32", repeats = std::string(mode) == "selective";
        for (const Role& role : compiled.plan.roles) {
          bool gelu = false, gelu_grad = false, epilogue = false, epilogue_grad = false;
          for (const Signature& signature : role.signatures) {
            gelu = gelu || signature.op == Op::gelu;
            gelu_grad = gelu_grad || signature.op == Op::gelu_grad;
            epilogue = epilogue || (signature.op == Op::linear && flag(signature, "gelu"));
            epilogue_grad = epilogue_grad || (signature.op == Op::linear_grad_input && flag(signature, "gelu"));
          }
          CHECK(gelu == (!fuses || repeats));
          CHECK(gelu_grad == !fuses);
          CHECK(epilogue == fuses);
          CHECK(epilogue_grad == fuses);
        }
      }
}

TEST_CASE("a job that names its hardware has the same plan on a computer with GPUs and on one without") {
  for (const char* strategy : {"ddp", "fsdp", "auto"}) {
    std::string plans[2];
    for (const bool here : {false, true}) {
      LoadedJob loaded = job("strategy: " + std::string(strategy) +
                             "\nprecision: {compute: bf16}\ncluster: {hardware: h100-sxm, devices_per_node: 4}\n");
      const cost::MachineModel machine = *resolve_cluster(loaded, kFolder, here ? two_h200 : no_gpu);
      const kernels::cuda::CudaTarget target(machine.device.capability, machine.device.units);
      plans[here] = print(compile(loaded, hardware_of(machine, target, 4), Purpose::train).plan);
    }
    CHECK(plans[0] == plans[1]);
  }
}

std::int64_t activations_of(const std::string& mode) {
  LoadedJob loaded = parse_job(
      "model: {graph: models/gpt2.yaml, with: {layers: 6, heads: 8, dim: 512, vocab: 512, context: 256, dropout: "
      "0.1}}\n"
      "data: {format: text, train: a.txt, seq_len: 256}\ntrain: {steps: 1, batch: {global: 4, micro: 4}}\nstrategy: "
      "ddp\n"
      "precision: {compute: bf16}\nactivation_checkpointing: {mode: " +
          mode + "}\ncluster: {hardware: h100-sxm, devices_per_node: 1}\n",
      "job.yaml", {}, {kConfigs, true, 0});
  const cost::MachineModel machine = *resolve_cluster(loaded, kFolder);
  const kernels::cuda::CudaTarget target(machine.device.capability, machine.device.units);
  const CompiledJob compiled = compile(loaded, hardware_of(machine, target, 1), Purpose::train);
  return compiled.memory.front().by_category[static_cast<std::size_t>(Category::activations)];
}

TEST_CASE("activations of a transformer are what Korthikanti's formulas say of them") {
  // Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 4.1: 34 s·b·h
  // bytes a layer where attention keeps no s × s matrix. Two of them are masks of dropout, which here are drawn again.
  // With everything recomputed, 2 s·b·h.
  constexpr double kLayers = 6, kSbh = 256.0 * 4 * 512;
  // Beside the layers: the embedded tokens, input and output of the last norm, the logits; one layer's own when it is
  // computed again; statistics of norms and attention, some 5 numbers of 4 bytes for every 512 of 2.
  const double beside = 3 * 2 * kSbh + 2 * 256.0 * 4 * 512, none = 32 * kSbh * kLayers, full = 2 * kSbh * kLayers;
  CHECK(static_cast<double>(activations_of("none")) >= none);
  CHECK(static_cast<double>(activations_of("none")) <= none * 1.03 + beside);
  CHECK(static_cast<double>(activations_of("full")) >= full);
  CHECK(static_cast<double>(activations_of("full")) <= full + 1.1 * 34 * kSbh + beside);
  CHECK(activations_of("selective") < activations_of("none"));
  CHECK(activations_of("full") < activations_of("selective"));
}

// ---- What a GPU's kernels need ------------------------------------------------------------------------------------

TEST_CASE(
    "a product's workspace is what cuBLAS recommends for the architecture, and no workspace is kept beside another's") {
  const TensorDesc x{DType::bf16, {8, 1024}}, weight{DType::bf16, {4096, 1024}}, y{DType::bf16, {8, 4096}};
  Signature linear{Op::linear, {}, {x, weight, y}};
  linear.attributes.set("bias", false);
  CHECK(kernels::cuda::CudaTarget(90, 132).workspace_bytes(linear) == 32 << 20);
  CHECK(kernels::cuda::CudaTarget(80, 108).workspace_bytes(linear) == 4 << 20);
}

TEST_CASE("sums of columns keep the sums of the parts that their kernel makes, and one part keeps none") {
  const auto bytes = [](std::int64_t rows, std::int64_t columns) {
    const Signature s{Op::sum_leading, {}, {{DType::bf16, {rows, columns}}, {DType::bf16, {columns}}}};
    return kernels::cuda::CudaTarget(90, 132).workspace_bytes(s);
  };
  CHECK(bytes(64, 1024 * 768) == 0);           // 3072 blocks of columns are more than four a multiprocessor
  CHECK(bytes(65536, 768) == 176 * 768 * 4);   // 3 of them, so 528 / 3 parts
  CHECK(bytes(65536, 7) == 264 * 7 * 4 + 32);  // two parts a multiprocessor, and whole cache lines
  CHECK(bytes(33, 7) == 2 * 7 * 4 + 8);        // no part of fewer than 32 rows
  CHECK(bytes(32, 7) == 0);
}

TEST_CASE(
    "attention keeps turned queries and keys, a number a row for the gradient, and room for cuDNN where it may run") {
  const std::int64_t batch = 2, seq = 200, heads = 8;
  const auto bytes = [&](Op op, DType dtype, std::int64_t kv_heads, std::int64_t head_dim, double theta) {
    const TensorDesc q{dtype, {batch, seq, heads * head_dim}}, k{dtype, {batch, seq, kv_heads * head_dim}},
        lse{DType::f32, {batch, heads, seq}};
    Signature s{op, {{"heads", heads}, {"kv_heads", kv_heads}, {"packed", false}, {"rope_theta", theta}}, {}};
    if (op == Op::attention)
      s.operands = {q, k, k, q, lse};
    else
      s.operands = {q, q, k, k, q, lse, q, k, k};
    return kernels::cuda::CudaTarget(90, 132).workspace_bytes(s);
  };
  const std::int64_t delta = batch * heads * seq * 4, room = 1 << 20;
  // cuDNN's gradient in one piece: of each score two bytes, of each row four, where keys are shared dk and dv of each
  // head, and a rest; by the own kernel delta.
  const std::int64_t scores = batch * heads * 256 * 256 * 2, fused = scores + delta + 1024,
                     of_heads = 2 * batch * seq * heads * 64 * 2;
  for (const auto& [name, value] : {std::pair{"softcap", Attribute(50.0)},
                                    {"window", Attribute(std::int64_t{199})},
                                    {"window", Attribute(std::int64_t{200})},
                                    {"scale", Attribute(0.5)}}) {
    const TensorDesc qkv{DType::bf16, {batch, seq, 3 * heads * 64}}, o{DType::bf16, {batch, seq, heads * 64}};
    const Signature s{Op::attention, {{"heads", heads}, {name, value}}, {qkv, o, {DType::f32, {batch, heads, seq}}}};
    const bool whole = value == Attribute(std::int64_t{200}) || value == Attribute(0.5);
    CHECK(kernels::cuda::CudaTarget(90, 132).workspace_bytes(s) == (whole ? room : 0));
  }
  CHECK(bytes(Op::attention_grad, DType::bf16, heads, 64, 0) == fused);
  CHECK(bytes(Op::attention_grad, DType::bf16, 2, 64, 0) == fused + of_heads);
  CHECK(bytes(Op::attention_grad, DType::bf16, 2, 64, 1e4) == fused + of_heads + batch * seq * (heads + 2) * 64 * 2);
  CHECK(bytes(Op::attention_grad, DType::f32, heads, 64, 0) == delta);
  CHECK(bytes(Op::attention_grad, DType::bf16, heads, 20, 0) == delta);
  CHECK(bytes(Op::attention, DType::bf16, heads, 64, 0) == room);
  CHECK(bytes(Op::attention, DType::f32, heads, 64, 0) == 0);
  CHECK(bytes(Op::attention, DType::bf16, heads, 20, 0) == 0);   // not whole vectors
  CHECK(bytes(Op::attention, DType::bf16, heads, 136, 0) == 0);  // larger than every GPU's kernels take
  CHECK(bytes(Op::attention, DType::f16, 2, 64, 1e4) == room + batch * seq * (heads + 2) * 64 * 2);
}

}  // namespace
}  // namespace trainer
