// Ranges are wide enough for any machine of the next years and narrow enough to catch a wrong unit: GB/s for bytes/s,
// TFLOP/s for FLOP/s, seconds for microseconds.
#include "engine/cost/machine_fields.h"

#include <algorithm>

namespace trainer::cost {
namespace {

using namespace form;
using Fields = std::vector<FieldDef>;
using Forms = std::vector<Form>;

FieldDef required(std::string_view name, std::string_view doc, Forms forms) {
  return {name, doc, std::move(forms), FieldDef::Absent::required};
}
FieldDef optional(std::string_view name, std::string_view doc, Forms forms, std::string_view otherwise) {
  return {name, doc, std::move(forms), FieldDef::Absent::otherwise, otherwise};
}
FieldDef extra(std::string_view name, std::string_view doc, Forms forms) {
  return {name, doc, std::move(forms), FieldDef::Absent::nothing};
}

/// A figure whose value has this form.
Forms figure(const Form& value) {
  return {value, section({
                     required("value", "The figure.", {value}),
                     optional("spread", "Half the width of its interval, as a share of the value.",
                              {form::between(0, 1, false, true)}, "0"),
                     extra("source", "Where it is from: a name in sources.", {text()}),
                 })};
}

Forms bandwidth(double most) { return figure(number(1e5, most)); }
Forms share() { return figure(form::between(0, 1, true, false)); }
Forms bytes_figure() { return figure(form::bytes()); }

const std::vector<std::string_view> kDtypes{"f32", "bf16", "f16"};

Fields peaks() {
  const Forms rate = figure(number(1e8, 1e17));
  return {
      required("f32", "FLOP/s of dense products of f32.", rate),
      extra("bf16", "FLOP/s of dense products of bf16, summed in f32.", rate),
      extra("f16", "FLOP/s of dense products of f16, summed in f32.", rate),
      extra("fp8", "FLOP/s of dense products of fp8, summed in f32.", rate),
  };
}

Fields achievable() {
  return {
      required("matmul", "Of the peak: the best matrix products under sustained load.", share()),
      extra("attention_forward", "Of the peak: attention with heads of 128, long, without a mask.", share()),
      extra("attention_backward", "Of the peak: its gradient, counted as 2.5 times the FLOPs.", share()),
      extra(
          "cudnn_attention_forward",
          "The same by cuDNN's kernels, which trainer runs where they take the sizes; attention_forward if not given.",
          share()),
      extra("cudnn_attention_backward", "Its gradient; attention_backward if not given.", share()),
      required("memory", "Of the memory bandwidth: elementwise kernels, norms, optimizers.", share()),
  };
}

Form measured_work() {
  return section({
      required("work", "Class of work.", {text()}),
      required("dtype", "Of its operands.", {word(kDtypes)}),
      optional("threads", "Of a rank on a CPU; 0: a GPU.", {integer(0, 1e5)}, "0"),
      optional("ranks", "That ran it at the same time on the machine.", {integer(1, 1e5)}, "1"),
      required("sizes", "What was measured, as the class of work counts it.", {list(integer(0, 1e15), 1, 8)}),
      required("rate", "FLOP/s of products and attention, bytes/s of all else.", figure(number(1, 1e17))),
  });
}

Form measured_collective() {
  return section({
      required("collective", "The collective, or send.",
               {word({"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send"})}),
      required("backend", "What communicated.", {word({"threads", "mpi", "nccl"})}),
      required("ranks", "Of the group.", {integer(2, 1e6)}),
      required("bytes", "Of the larger side.", {form::bytes()}),
      required("us", "Microseconds.", figure(number(0, 1e9))),
  });
}

Fields device() {
  return {
      required("kind", "What computes.", {word({"cpu", "cuda"})}),
      extra("names", "What CUDA calls GPUs of this kind: a machine that has one finds this file by it.",
            {list(text(), 1)})
          .when("kind", {"cuda"}),
      required("memory", "Bytes of a GPU's memory; of a CPU, the node's.", bytes_figure()),
      required("reserve", "Bytes of it that plans leave alone: the driver's context, communicators, the system.",
               bytes_figure()),
      required("memory_bandwidth", "bytes/s.", figure(number(1e8, 1e14))),
      required("cache", "Bytes of the last level; of a CPU's, as many as a step finds there again.", bytes_figure()),
      required("units", "Streaming multiprocessors, or cores.", figure(integer(1, 1e5))),
      extra("clock", "Hz, under load.", figure(number(1e8, 1e10))),
      required("capability", "CUDA's compute capability: 80 for 8.0.", figure(integer(70, 999))).when("kind", {"cuda"}),
      required("launch_us", "Microseconds from the end of a kernel to the start of the next.", figure(number(0, 1e4))),
      required("peak", "FLOP/s by dtype; a dtype that is not here cannot be used.", {section(peaks())}),
      required("achievable", "What well-made kernels reach at their best size.", {section(achievable())}),
      extra("variation", "Standard deviation of the speed of devices of this kind under full load, as a share of it.",
            figure(form::between(0, 0.2, false, true))),
      extra("measured", "Times of kernels, as trainer calibrate writes them.", {list(measured_work(), 0)}),
  };
}

Fields link(std::vector<std::string_view> kinds, bool between_nodes) {
  Fields out{
      required("kind", "What it is.", {word(std::move(kinds))}),
      required("bandwidth", "bytes/s of one device in one direction.", bandwidth(1e13)),
      required("latency_us", "Microseconds of one hop.", figure(number(0, 1e5))),
      required("achievable", "Share of the bandwidth that large collectives reach.", share()),
      optional("switch", "Whether every device reaches every other at full bandwidth.", {flag()}, "true"),
      optional("reduces", "Whether the switch sums.", {flag()}, "false"),
      extra("reducing", "Share of the bandwidth at which the bytes of a large all-reduce are summed by the switch.",
            share()),
  };
  if (between_nodes)
    out.push_back(optional("oversubscription", "How many times fewer uplinks there are than downlinks.",
                           figure(number(1, 1000)), "1"));
  return out;
}

Fields links() {
  return {
      extra("inside", "Between the devices of a node; null: there is one.",
            {null(), section(link({"nvlink", "pcie", "memory"}, false))}),
      extra("between", "Between nodes; null: there is one.", {null(), section(link({"infiniband", "ethernet"}, true))}),
  };
}

Fields machine() {
  return {
      extra("description", "For people.", {text()}),
      extra("base", "A name in configs/hardware/ or a path: a machine from which this one differs in what stands here.",
            {text()}),
      extra("sources", "Where figures are from, by short names.", {map({text()})}),
      required("device", "What a rank computes on.", {section(device())}),
      required("devices_per_node", "GPUs of a node; of a CPU, 1.", figure(integer(1, 4096))),
      {"links", "What joins devices.", {section(links())}, FieldDef::Absent::fill},
      extra("collectives", "Times of collectives, as trainer calibrate writes them.", {list(measured_collective(), 0)}),
      optional("overlap_slowdown", "How many times longer kernels take while communication runs.",
               figure(number(1, 10)), "1"),
      extra("price_per_device_hour", "In any currency.", figure(positive())),
      extra("host_memory", "Bytes of a node's main memory.", bytes_figure()),
      extra("host_link", "bytes/s of copies between a GPU and pinned memory of its host, in one direction.",
            bandwidth(1e13)),
      extra("host_bandwidth", "bytes/s at which all cores of a GPU's node read and write its main memory together.",
            bandwidth(1e13)),
      extra("disk", "A node's disk, by large parts one after the other.",
            {section({
                required("read", "bytes/s.", bandwidth(1e13)),
                required("write", "bytes/s.", bandwidth(1e13)),
            })}),
      optional("measured_here", "Whether trainer calibrate wrote the file.", {flag()}, "false"),
  };
}

}  // namespace

const std::vector<FieldDef>& machine_fields() {
  static const std::vector<FieldDef> fields = machine();
  return fields;
}

bool is_figure(const std::vector<Form>& forms) {
  return std::ranges::any_of(
      forms, [](const Form& form) { return !form.fields.empty() && form.fields.front().name == "value"; });
}

}  // namespace trainer::cost
