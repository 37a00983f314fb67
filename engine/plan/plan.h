// Plan: everything that happens in a step, before the first one. Persistent buffers, a few programs over them whose
// scratch memory overlaps, and the layout of the parameters. Programs are made per role (pipeline stage), not per
// rank; what differs between the ranks of a role is an Affine of its coordinates.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/mesh.h"
#include "engine/core/signature.h"
#include "engine/core/spec.h"
#include "engine/graph/graph.h"
#include "engine/plan/instruction.h"

namespace trainer {

enum class Category : std::uint8_t { parameters, gradients, optimizer, activations, communication, workspace, inputs };
inline constexpr int kNumCategories = 7;
std::string_view name_of(Category category);
std::string_view name_of(CollectiveKind kind);

/// Where bytes are kept: in the device's memory (on a CPU the host's), beside a GPU in its host's memory, or in a file.
/// What lies off the device is moved (Move), and in the host's memory kernels of the host's processor work on it too
/// (Stream::host).
enum class Space : std::uint8_t { device, host, disk };
inline constexpr int kNumSpaces = 3;
std::string_view name_of(Space space);

/// The addresses of a rank: those of a space begin at so many bytes times its number, so that every address is of one
/// space and what is true of addresses needs no word about spaces.
inline constexpr std::int64_t kSpaceStride = std::int64_t{1} << 56;
constexpr std::int64_t begin_of(Space space) { return static_cast<std::int64_t>(space) * kSpaceStride; }

/// A piece of the rank's one allocation in its space. Persistent ones live across programs; the others from their first
/// to their last access inside the program they belong to.
struct Buffer {
  NameId name = 0;
  std::int32_t micro_batch = -1;
  Category category = Category::activations;
  std::int32_t program = -1;  ///< -1: persistent
  std::int64_t bytes = 0;
  std::int64_t offset = -1;  ///< its address; set by plan_memory, a multiple of kBufferAlignment
  /// A ring, of a program with loops: its parts begin at multiples of `stride`, and each pass over a loop moves on
  /// by `advance` parts, in a circle. A value of micro-batch m lies in part m modulo their number. 0: no ring.
  std::int64_t stride = 0;
  std::int32_t advance = 0;
  bool own_parts = false;  ///< a ring that several loops go along: every micro-batch of the run has a part of its own
  Space space = Space::device;  ///< off the device buffers are persistent

  std::int64_t parts() const { return stride == 0 ? 1 : (bytes + stride - 1) / stride; }
  friend bool operator==(const Buffer&, const Buffer&) = default;
};

/// What runs beside each other. `background` and `tensor` are streams of communication too, on devices that run several
/// at a time (Target::communication_streams): what units of parameters ask of the data axes is issued in the
/// background, so that what computing waits for does not queue behind gathers and buckets; what a layer asks of the
/// tensor axis on `tensor`, so that it does not queue behind messages that wait for another stage. A group has all its
/// collectives on one stream. `fetch` moves bytes to the device, and `store` away from it. `host` runs kernels on the
/// processor of a GPU's host, whose operands all lie there.
enum class Stream : std::uint8_t { compute, communication, copy, background, tensor, fetch, store, host };
inline constexpr int kNumStreams = 8;
std::string_view name_of(Stream stream);

/// Of each stream an instruction (its issue index), that one and all before it there; -1: none.
struct StreamClock {
  std::array<std::int32_t, kNumStreams> at;
  constexpr StreamClock(std::int32_t compute = -1, std::int32_t communication = -1, std::int32_t copy = -1,
                        std::int32_t background = -1, std::int32_t tensor = -1, std::int32_t fetch = -1,
                        std::int32_t store = -1, std::int32_t host = -1)
      : at{compute, communication, copy, background, tensor, fetch, store, host} {}
  constexpr std::int32_t& operator[](std::size_t stream) { return at[stream]; }
  constexpr std::int32_t operator[](std::size_t stream) const { return at[stream]; }
  constexpr auto begin() const { return at.begin(); }
  constexpr auto end() const { return at.end(); }
  friend bool operator==(const StreamClock&, const StreamClock&) = default;
};

/// Why an instruction is there. Whoever wants to know what it is for reads this, and never its name or its op.
struct Provenance {
  enum class Phase : std::uint8_t {
    load,  ///< the batch and the loop's scalars come in, and what follows from them alone: counts of targets, the seed
    forward,  ///< a node of the graph, in an action of that kind; `backward` is both parts of an undivided backward
              ///< pass
    backward,
    backward_input,
    backward_weight,
    gather,    ///< a working copy is put together from its slices, or packed, for the pass that it is in
    transfer,  ///< messages between stages; Carried says what each part is
    reduce,    ///< a gradient is completed, summed over ranks, compressed, added to those of before
    norm,      ///< sums of squares
    update,    ///< scalars, optimizer, and copies of the weights that follow from it
    average,   ///< ranks that train apart come together
    report,    ///< what the loop is told
  };
  Phase phase = Phase::load;
  bool recomputed = false;  ///< a forward node that is repeated in a backward pass
  std::int16_t chunk =
      -1;  ///< of the pipeline, and micro-batch: of the pass that it belongs to or was asked for; -1: none
  std::int32_t micro_batch = -1;
  std::int32_t unit = -1;  ///< in Role::units, where it is about a unit as a whole; -1: none
  std::int32_t node = -1;  ///< NodeId, in the graph of the program; -1: none
  std::int32_t loop = 0;   ///< in Program::loops: the one whose work it begins, repeats or ends
  friend bool operator==(const Provenance&, const Provenance&) = default;
};
std::string_view name_of(Provenance::Phase phase);
/// Whether it is a node's part in a pass over the graph.
constexpr bool is_pass(Provenance::Phase phase) {
  return phase >= Provenance::Phase::forward && phase <= Provenance::Phase::backward_weight;
}

/// An instruction in issue order. It starts after the one before it on its stream, and after the instructions
/// `after[s]` on the others.
struct Issued {
  Stream stream = Stream::compute;
  Instruction instruction;
  StreamClock after;
  Provenance why{};
  friend bool operator==(const Issued&, const Issued&) = default;
};

/// The micro-batch of the pass that an instruction is a part of; -1: of none.
inline std::int32_t pass_micro_batch(const Issued& issued) {
  return is_pass(issued.why.phase) ? issued.why.micro_batch : -1;
}

/// What a program does. A plan has at most one of each; of `average` one for each part of the model, in order.
enum class ProgramKind : std::uint8_t {
  step,            ///< a step of training
  step_averaging,  ///< takes the place of a round's first step, and averages beside it
  evaluate,        ///< a micro-batch of held-out samples
  prompt,          ///< tokens of a prompt, forward to the logits of one of them
  sample,          ///< forward to the logits; of generation, the newest token
  average,         ///< ranks that train apart come together
  settle,          ///< ends an average that is under way
  swap,            ///< of what ranks agreed on last with what each has: before and after evaluating and saving
  refresh,         ///< working copies from masters that were set from outside
};
std::string_view name_of(ProgramKind kind);
constexpr bool makes_step(ProgramKind kind) { return kind == ProgramKind::step || kind == ProgramKind::step_averaging; }

/// Instructions [first, last) of a program, which run `times` times in a row. Each pass does what the one before did
/// for micro-batches that come `micro_batches` later, in the next parts of rings. What a program lists is itself a
/// whole step, of fewer micro-batches: that with one pass over each loop. Of more passes, what goes with a loop
/// (Provenance::loop, of an exchange its parts' `loop`) and comes behind it is moved on by all passes but one.
struct Loop {
  std::int32_t first = 0, last = 0;
  std::int32_t times = 1;
  std::int32_t micro_batches = 0;

  std::int32_t size() const { return last - first; }
  bool holds(std::int32_t instruction) const { return instruction >= first && instruction < last; }
  friend bool operator==(const Loop&, const Loop&) = default;
};

/// Runs from its first instruction to the end of all its streams. Programs follow one another in any order; each starts
/// when the one before has ended.
struct Program {
  ProgramKind kind = ProgramKind::step;
  std::vector<Issued> instructions;
  std::vector<Loop> loops{};  ///< in order, each behind a round of its own; all go over as many micro-batches

  bool repeats() const { return !loops.empty(); }
  /// The loop that an instruction is in; null: none.
  const Loop* loop_at(std::int32_t instruction) const {
    for (const Loop& loop : loops)
      if (loop.holds(instruction)) return &loop;
    return nullptr;
  }
  /// How often an instruction runs.
  std::int64_t times(std::size_t instruction) const {
    const Loop* const loop = loop_at(static_cast<std::int32_t>(instruction));
    return loop == nullptr ? 1 : loop->times;
  }
  /// Instructions that run.
  std::int64_t length() const {
    auto all = static_cast<std::int64_t>(instructions.size());
    for (const Loop& loop : loops) all += static_cast<std::int64_t>(loop.times - 1) * loop.size();
    return all;
  }
  friend bool operator==(const Program&, const Program&) = default;
};

/// Host memory that CopyIn reads and CopyOut writes.
struct Field {
  enum class Kind : std::uint8_t {
    batch,   ///< of the samples, "tokens" or "logits": each rank along the data axes has its own
    scalar,  ///< what the loop gives, "lr" or "step": the same on all ranks
    result,  ///< what the loop is told, "metrics" or "evaluation": the same on all ranks
  };
  std::string name;
  Kind kind = Kind::batch;
  Spec spec{};             ///< of a batch: one micro-batch of all ranks
  std::int64_t bytes = 0;  ///< all micro-batches of the largest program, one after the other

  /// Of one micro-batch, as a rank holds it.
  std::int64_t part_bytes(const Mesh& mesh) const { return local_shape(spec, mesh).elements() * size_of(spec.dtype()); }
  friend bool operator==(const Field&, const Field&) = default;
};

std::string_view name_of(Field::Kind kind);

/// Elements [first, last).
struct ElementRange {
  std::int64_t first = 0, last = 0;
  std::int64_t size() const { return last - first; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

/// A parameter's place in its unit.
struct UnitTensor {
  std::string name;
  Spec spec;                ///< of the parameter: as checkpoints have it, and how an axis of the graph cuts it
  std::int64_t offset = 0;  ///< of a rank's part, in elements of the unit's flat buffers
  std::int64_t elements =
      0;  ///< of a rank's part; equal on all ranks, and so padded where an axis does not divide a dim
  Init init{};
  Axes partial{};  ///< of the axes that are not the tokens' those along which its gradient is a sum that is still to be
                   ///< made
};

/// One flat buffer of a unit, or this rank's slice of one.
struct Slot {
  enum class Kind : std::uint8_t {
    master,          ///< f32, what the optimizer updates; a frozen unit has none
    working,         ///< compute dtype, what kernels read; cut: gathered for each use
    state,           ///< the optimizer's
    strategy_state,  ///< the strategy's: alike on all replicas, and 0 where a checkpoint lacks it
    residual,        ///< what compression has not sent yet
    copy,            ///< the strategy's, made anew when weights are loaded
    anchor,          ///< f32, what ranks that train apart agreed on last; saved: of parts. Then it is the model, and
                     ///< `swap` puts it in the place of the master, which each rank saves for itself
    gradient,        ///< the last one of the step program
  };
  Kind kind = Kind::working;
  std::string name;
  Spec spec;  ///< flat: [elements]; of what each rank along the token axes has for itself: [ranks, elements], cut by
              ///< them
  Region region;
  bool persistent = true;
  bool saved = false;

  /// Whether each rank along the token axes has its own.
  bool own() const { return spec.whole.rank() == 2; }
  bool sliced() const { return !own() && !spec.cuts().empty(); }
};
std::string_view name_of(Slot::Kind kind);

/// Bytes of so many elements; scales of blocks lie behind them.
std::int64_t bytes_of(const Format& format, std::int64_t elements);

/// A unit of parameters: what is gathered, reduced and updated together. Tensors with weight decay come first, and
/// neighbours lie over the mesh alike, so that what one collective or kernel takes is one run. A slice is an equal part
/// of the flat buffers.
struct Unit {
  std::string name;
  std::vector<UnitTensor> tensors;
  DType compute = DType::f32;
  std::int64_t elements = 0;         ///< padded to equal slices
  std::int64_t decay_elements = 0;   ///< elements below this index decay
  std::int32_t optimizer = 0;        ///< index in AssembleOptions::optimizers; -1: frozen
  std::vector<std::int32_t> stages;  ///< that share the unit, the first of them saves it; empty: this one only
  std::vector<Slot> slots;
  bool across_replicas = false;  ///< slices are those of all replicas together

  bool trained() const { return optimizer >= 0; }
  /// The token axes that cut the parameters themselves, all of a unit alike: along these each rank has experts of its
  /// own, whose states are not sliced and whose gradients are not summed there.
  Axes own_axes() const { return tensors.empty() ? Axes{} : axes_of(tensors.front().spec) & kTokenAxes; }
  /// The axes along which states may be sliced, and those along which gradients are summed.
  Axes slice_axes() const { return trainer::slice_axes(across_replicas) - own_axes(); }
  Axes sum_axes() const { return kTokenAxes - own_axes(); }
  /// The first slot of a kind, or of that kind and name; null: there is none.
  const Slot* find(Slot::Kind kind, std::string_view slot_name = {}) const;
  /// What checkpoints call the parameters: the master, or of a frozen unit the working copy.
  const Slot& parameters() const;
  const Slot& working() const;
  /// The whole working copy where there is one between steps; -1: it is gathered for each use.
  BufferId whole_working() const { return working().sliced() ? -1 : working().region.buffer; }
  /// What of the working copy the update writes: the master itself where the dtypes are equal.
  Region updated_working() const;
  /// Elements of `parameters` on a rank.
  std::int64_t slice() const;
  bool sharded() const { return slice() < elements; }
};

/// `step` times a rank's index in its group over `axes`.
Affine origin_over(Axes axes, std::int64_t step, const Mesh& mesh);
/// Where a rank's slice of so many elements begins in its unit.
Affine slice_origin(const Unit& unit, std::int64_t elements, const Mesh& mesh);

/// Tensors of a unit start at multiples of this many elements, or of a larger one where states have blocks: aligned as
/// operands even in 16 bits.
inline constexpr std::int64_t kTensorAlignment = kOperandAlignment / 2;
constexpr std::int64_t aligned_elements(std::int64_t elements) {
  return (elements + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

/// Neighbouring elements of a unit that the same ranks of a group have alike.
struct UnitRun {
  ElementRange elements;
  Axes alike;    ///< of tensor, and of expert where that does not slice the unit, those along which all ranks have the
                 ///< same elements
  Axes partial;  ///< UnitTensor::partial of all of its tensors
  friend bool operator==(const UnitRun&, const UnitRun&) = default;
};
/// The runs of a unit in order, padding included, which is alike along no axis.
std::vector<UnitRun> runs_of(const Unit& unit, const Mesh& mesh);

/// What stays from one run of a program to the next beside parameters: a state of the graphs (ValueKind::state).
struct State {
  std::string name;
  Spec spec;
  Region region;                    ///< of a persistent buffer
  std::optional<double> initial{};  ///< of the model's, which are loaded and saved; nothing: a cache
};

struct Role {
  std::vector<std::string> names;
  std::vector<Buffer> buffers;
  std::vector<Signature> signatures;
  std::vector<Field> fields;
  std::vector<Program> programs;
  std::vector<Unit> units;
  std::vector<State> states;
  BufferId scalars = -1;              ///< f32 [4] of update_scalars; persistent
  BufferId applied = -1;              ///< i32 [1]; persistent
  BufferId good_steps = -1;           ///< i32 [1] of a dynamic loss scale; persistent; -1: the scale stays as it is
  std::int64_t persistent_bytes = 0;  ///< of the device: offsets below this are persistent
  std::int64_t total_bytes = 0;       ///< the rank's allocation on the device
  std::int64_t host_bytes = 0;        ///< in the memory of its host,
  std::int64_t disk_bytes = 0;        ///< and in its file

  const Buffer& buffer(BufferId id) const { return buffers[static_cast<std::size_t>(id)]; }
  const std::string& name(NameId id) const { return names[static_cast<std::size_t>(id)]; }
  Space space_of(const Region& region) const { return buffer(region.buffer).space; }
  /// The rank's allocation in a space.
  std::int64_t bytes_in(Space space) const {
    return space == Space::device ? total_bytes : space == Space::host ? host_bytes : disk_bytes;
  }
  /// The one of a kind; of `average` that of a part. Null: there is none.
  const Program* program(ProgramKind kind, int part = 0) const;
  /// Index in `programs` or `fields`, or -1.
  std::int32_t program_index(ProgramKind kind, int part = 0) const;
  std::int32_t field_index(std::string_view field_name) const;
  /// Of a region on the rank at `point`.
  std::int64_t address(const Region& region, const MeshPoint& point) const {
    const std::int64_t first = buffer(region.buffer).offset + region.offset;
    return region.step == 0 ? first : first + point.index(region.over) * region.step;
  }
};

struct Plan {
  Mesh mesh;
  bool drifts = false;      ///< ranks along the data axes train alone and agree only after the program `average`
  std::vector<Role> roles;  ///< one a pipeline stage

  const Role& role_of(int rank) const;
};

/// The whole plan as text. parse(print(plan)) prints the same text; raises DataError for anything else.
std::string print(const Plan& plan);
Plan parse_plan(std::string_view text);
/// One instruction as print shows it: for errors and traces.
std::string print(const Role& role, const Instruction& instruction);
/// 16 hexadecimal digits over print(plan).
std::string hash_of(const Plan& plan);

/// Derives every `after` from reads and writes at their addresses, for all ranks of the mesh at once. REQUIRES: memory
/// is planned.
void derive_order(Role& role, const Mesh& mesh);

}  // namespace trainer
