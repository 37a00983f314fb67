// Convolutions through oneDNN. The primitive chooses the layouts it likes (format `any`); operands are brought into
// them and results back by our own transpositions (layouts.h), or by oneDNN's reorders where those do not know a layout
// or where the dtype changes on the way. A result is added where a gradient accumulates.
#include "kernels/cpu/convolution/onednn.h"

#include <algorithm>
#include <dnnl.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/check.h"
#include "kernels/cpu/convolution/layouts.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu::onednn {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;
using Kind = memory::data_type;

Kind kind_of(DType dtype) {
  CHECK(dtype == DType::f32 || dtype == DType::bf16, "oneDNN takes f32 and bf16 here");
  return dtype == DType::bf16 ? Kind::bf16 : Kind::f32;
}

constexpr std::int64_t aligned(std::size_t bytes) { return (static_cast<std::int64_t>(bytes) + 63) / 64 * 64; }

/// One of the primitive's tensors: where it stands among the operands, as the caller holds it and as the primitive
/// likes it.
struct Tensor {
  int argument = 0;  ///< DNNL_ARG_…
  int operand = 0;
  memory::desc outside, inside;
  bool is_result = false;
  std::int64_t offset = 0;  ///< in the workspace, of the inside form

  bool adds(bool accumulate) const { return is_result && accumulate; }
  /// Whether it is held as the primitive likes it.
  bool fits(bool accumulate) const {
    if (adds(accumulate)) return false;
    if (outside == inside) return true;
    const std::optional<LayoutChange> change = layout_change(false);
    return change && change->is_none();
  }
  std::optional<LayoutChange> layout_change(bool add) const {
    return is_result ? LayoutChange::between(inside, outside, add) : LayoutChange::between(outside, inside, add);
  }
};

/// What is known before anything is compiled: layouts and sizes.
struct Layouts {
  std::vector<Tensor> tensors;
  memory::desc scratchpad;
  bool accumulate = false;
  std::int64_t scratch_bytes = 0;  ///< for the largest scratchpad of the sequence; lies first
  std::int64_t workspace_bytes = 0;
};

dnnl::primitive_attr attributes(bool add = false) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  return attr;
}

/// bf16 products as they are; else widened to f32, which is faster where there are no tiles.
bool multiplies_bf16(const Convolution& c) { return c.isa >= Isa::amx; }

/// The descriptors that a convolution's primitives share.
struct Descriptors {
  explicit Descriptors(const Convolution& c)
      : inner(c.dtype == DType::bf16 && multiplies_bf16(c) ? Kind::bf16 : Kind::f32),
        x{c.n, c.in, c.h, c.w},
        weight{c.out, c.in, c.kh, c.kw},
        bias{c.out},
        y{c.n, c.out, c.oh, c.ow},
        strides{c.stride, c.stride},
        padding{c.padding_rows, c.padding} {}

  memory::desc any(const memory::dims& dims, Kind kind) const { return {dims, kind, Tag::any}; }

  Kind inner;
  memory::dims x, weight, bias, y, strides, padding;
};

using Forward = dnnl::convolution_forward::primitive_desc;
using GradInput = dnnl::convolution_backward_data::primitive_desc;
using GradWeight = dnnl::convolution_backward_weights::primitive_desc;
constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

Forward describe_forward(const Descriptors& d, const dnnl::engine& engine, bool bias) {
  return Forward(engine, dnnl::prop_kind::forward_training, kAlgorithm, d.any(d.x, d.inner), d.any(d.weight, d.inner),
                 bias ? memory::desc(d.bias, Kind::f32, Tag::a) : memory::desc(), d.any(d.y, d.inner), d.strides,
                 d.padding, d.padding, attributes());
}

GradInput describe_grad_input(const Descriptors& d, const dnnl::engine& engine) {
  return GradInput(engine, kAlgorithm, d.any(d.x, d.inner), d.any(d.weight, d.inner), d.any(d.y, d.inner), d.strides,
                   d.padding, d.padding, describe_forward(d, engine, false), attributes());
}

GradWeight describe_grad_weight(const Descriptors& d, const dnnl::engine& engine, bool bias) {
  return GradWeight(engine, kAlgorithm, d.any(d.x, d.inner), d.any(d.weight, Kind::f32),
                    bias ? memory::desc(d.bias, Kind::f32, Tag::a) : memory::desc(), d.any(d.y, d.inner), d.strides,
                    d.padding, d.padding, describe_forward(d, engine, false), attributes());
}

/// Gives every tensor that is reordered, and the scratchpad, its place in the workspace.
void place(Layouts& l, const dnnl::engine& engine) {
  std::size_t scratch = l.scratchpad.get_size();
  for (const Tensor& t : l.tensors)
    if (!t.fits(l.accumulate) && !t.layout_change(t.adds(l.accumulate))) {
      const auto& from = t.is_result ? t.inside : t.outside;
      const auto& to = t.is_result ? t.outside : t.inside;
      scratch =
          std::max(scratch, dnnl::reorder::primitive_desc(engine, from, engine, to, attributes(t.adds(l.accumulate)))
                                .scratchpad_desc()
                                .get_size());
    }
  l.scratch_bytes = aligned(scratch);
  l.workspace_bytes = l.scratch_bytes;
  for (Tensor& t : l.tensors)
    if (!t.fits(l.accumulate)) {
      t.offset = l.workspace_bytes;
      l.workspace_bytes += aligned(t.inside.get_size());
    }
}

/// Layouts of a pass, and its convolution if `primitive` is asked for.
Layouts layouts_of(const Convolution& c, Pass pass, const dnnl::engine& engine, dnnl::primitive* primitive) {
  const Descriptors d(c);
  const Kind outer = kind_of(c.dtype), gradients = kind_of(c.parameter_gradients);
  const auto plain = [](const memory::dims& dims, Kind kind) {
    return memory::desc(dims, kind, dims.size() == 1 ? Tag::a : Tag::abcd);
  };
  Layouts l;
  switch (pass) {
    case Pass::forward: {
      const Forward p = describe_forward(d, engine, c.bias);
      l.tensors = {{DNNL_ARG_SRC, 0, plain(d.x, outer), p.src_desc()},
                   {DNNL_ARG_WEIGHTS, 1, plain(d.weight, outer), p.weights_desc()}};
      if (c.bias) l.tensors.push_back({DNNL_ARG_BIAS, 2, plain(d.bias, outer), p.bias_desc()});
      l.tensors.push_back({DNNL_ARG_DST, c.bias ? 3 : 2, plain(d.y, outer), p.dst_desc(), true});
      l.scratchpad = p.scratchpad_desc();
      if (primitive) *primitive = dnnl::convolution_forward(p);
      break;
    }
    case Pass::grad_input: {
      const GradInput p = describe_grad_input(d, engine);
      l.tensors = {{DNNL_ARG_DIFF_DST, 0, plain(d.y, outer), p.diff_dst_desc()},
                   {DNNL_ARG_WEIGHTS, 1, plain(d.weight, outer), p.weights_desc()},
                   {DNNL_ARG_DIFF_SRC, 2, plain(d.x, outer), p.diff_src_desc(), true}};
      l.scratchpad = p.scratchpad_desc();
      if (primitive) *primitive = dnnl::convolution_backward_data(p);
      break;
    }
    case Pass::grad_weight: {
      const GradWeight p = describe_grad_weight(d, engine, c.bias);
      l.tensors = {{DNNL_ARG_SRC, 0, plain(d.x, outer), p.src_desc()},
                   {DNNL_ARG_DIFF_DST, 1, plain(d.y, outer), p.diff_dst_desc()},
                   {DNNL_ARG_DIFF_WEIGHTS, 2, plain(d.weight, gradients), p.diff_weights_desc(), true}};
      if (c.bias) l.tensors.push_back({DNNL_ARG_DIFF_BIAS, 3, plain(d.bias, gradients), p.diff_bias_desc(), true});
      l.scratchpad = p.scratchpad_desc();
      l.accumulate = c.accumulate;
      if (primitive) *primitive = dnnl::convolution_backward_weights(p);
      break;
    }
  }
  place(l, engine);
  return l;
}

dnnl::engine cpu_engine() { return dnnl::engine(dnnl::engine::kind::cpu, 0); }

/// The changes of layout, the convolution between them, and the memory objects whose addresses each run sets.
class ConvolutionSequence final : public Sequence {
 public:
  ConvolutionSequence(const Convolution& c, Pass pass, int threads)
      : threads_(threads), isa_(c.isa), engine_(cpu_engine()), stream_(engine_) {
    const TeamOf team(threads_);
    dnnl::primitive convolution;
    layouts_ = layouts_of(c, pass, engine_, &convolution);
    scratchpad_ = add_memory(layouts_.scratchpad, kInWorkspace, 0);
    Step main{convolution, {{DNNL_ARG_SCRATCHPAD, scratchpad_}}};
    std::vector<Step> after;
    for (const Tensor& t : layouts_.tensors) {
      if (t.fits(layouts_.accumulate)) {
        main.arguments.push_back({t.argument, add_memory(t.inside, t.operand, 0)});
        continue;
      }
      const std::size_t outside = add_memory(t.outside, t.operand, 0);
      const std::size_t inside = add_memory(t.inside, kInWorkspace, t.offset);
      main.arguments.push_back({t.argument, inside});
      (t.is_result ? after : steps_).push_back(change_layout(t, outside, inside));
    }
    steps_.push_back(std::move(main));
    steps_.insert(steps_.end(), after.begin(), after.end());
    for (Step& step : steps_)
      for (const auto& [argument, index] : step.arguments)
        step.bound.push_back({argument, memories_[index].object.get()});
  }

  void run(std::span<void* const> operands, void* workspace) override {
    const FlushDenormals flush;
    const TeamOf team(threads_);
    for (Memory& m : memories_)
      m.object.set_data_handle(m.operand == kInWorkspace ? static_cast<char*>(workspace) + m.offset
                                                         : operands[static_cast<std::size_t>(m.operand)]);
    for (const Step& step : steps_) {
      if (step.change)
        step.change->run(address(step.arguments[0]), address(step.arguments[1]), threads_, isa_);
      else
        dnnl::error::wrap_c_api(dnnl_primitive_execute(step.primitive.get(), stream_.get(),
                                                       static_cast<int>(step.bound.size()), step.bound.data()),
                                "oneDNN could not run a convolution");
    }
    stream_.wait();
  }

 private:
  static constexpr int kInWorkspace = -1;

  struct Memory {
    memory object;
    int operand;
    std::int64_t offset;
  };
  using Argument = std::pair<int, std::size_t>;  ///< DNNL_ARG_…, index of a memory
  struct Step {
    dnnl::primitive primitive;
    std::vector<Argument> arguments;
    std::optional<LayoutChange> change = {};  ///< in place of a primitive, from the first argument to the second
    std::vector<dnnl_exec_arg_t> bound = {};
  };

  void* address(const Argument& argument) const { return memories_[argument.second].object.get_data_handle(); }

  std::size_t add_memory(const memory::desc& desc, int operand, std::int64_t offset) {
    memories_.push_back({memory(desc, engine_, DNNL_MEMORY_NONE), operand, offset});
    return memories_.size() - 1;
  }

  Step change_layout(const Tensor& t, std::size_t outside, std::size_t inside) {
    const auto [from, to] = t.is_result ? std::pair(inside, outside) : std::pair(outside, inside);
    const bool add = t.adds(layouts_.accumulate);
    std::vector<Argument> arguments{{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    if (std::optional<LayoutChange> change = t.layout_change(add)) return {{}, std::move(arguments), change};
    const dnnl::reorder::primitive_desc p(engine_, memories_[from].object.get_desc(), engine_,
                                          memories_[to].object.get_desc(), attributes(add));
    arguments.push_back({DNNL_ARG_SCRATCHPAD, add_memory(p.scratchpad_desc(), kInWorkspace, 0)});
    return {dnnl::reorder(p), std::move(arguments)};
  }

  int threads_;
  Isa isa_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  Layouts layouts_;
  std::vector<Memory> memories_;
  std::size_t scratchpad_ = 0;
  std::vector<Step> steps_;
};

}  // namespace

std::int64_t workspace_bytes(const Convolution& c, Pass pass, int threads) {
  const TeamOf team(threads);
  return layouts_of(c, pass, cpu_engine(), nullptr).workspace_bytes;
}

std::unique_ptr<Sequence> prepare(const Convolution& c, Pass pass, int threads) {
  return std::make_unique<ConvolutionSequence>(c, pass, threads);
}

}  // namespace trainer::kernels::cpu::onednn
