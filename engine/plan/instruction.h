// Instructions: what a program is made of. A closed variant of plain structs. Every byte an instruction touches stands
// in a field typed Read, Write or Update, and `for_each_access` visits them: liveness, order, verification and printing
// need no code per instruction beyond that.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/mesh.h"

namespace trainer {

using BufferId = std::int32_t;
using NameId = std::int32_t;

/// Bytes [offset, offset + bytes) of a buffer, moved by `step` times the rank's index in its group over the axes
/// `over`: a rank's slice of what the group shares. Everything else of a region is the same on all ranks of a role.
struct Region {
  BufferId buffer = -1;
  Axes over{};
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::int64_t step = 0;  ///< 0 exactly where `over` is empty

  Region() = default;
  Region(BufferId in, std::int64_t first, std::int64_t size) : buffer(in), offset(first), bytes(size) {}
  Region(BufferId in, std::int64_t first, std::int64_t size, std::int64_t each, Axes axes)
      : buffer(in), over(axes), offset(first), bytes(size), step(each) {}
  friend bool operator==(const Region&, const Region&) = default;
};

/// This rank's slice of a whole that `ranks` ranks share along `axes`.
inline Region own_slice(const Region& whole, Axes axes, int ranks) {
  if (ranks == 1) return whole;
  return {whole.buffer, whole.offset, whole.bytes / ranks, whole.bytes / ranks, axes};
}

enum class Access : std::uint8_t { read, write, update };  // update: read, then written

struct Read {
  Region region;
  friend bool operator==(const Read&, const Read&) = default;
};
struct Write {
  Region region;
  friend bool operator==(const Write&, const Write&) = default;
};
struct Update {
  Region region;
  friend bool operator==(const Update&, const Update&) = default;
};
using Operand = std::variant<Read, Write, Update>;

inline const Region& region_of(const Operand& operand) {
  return std::visit([](const auto& access) -> const Region& { return access.region; }, operand);
}
inline Access access_of(const Operand& operand) { return static_cast<Access>(operand.index()); }

/// Runs the kernel of a signature on operands, in the order of the signature. An operand that is written in place of
/// an input names the same region in both positions, once as Read and once as Write.
struct Launch {
  std::int32_t signature = 0;  ///< index in Role::signatures
  NameId name = 0;             ///< the node, "h.0.attn.c_attn", or the unit
  std::vector<Operand> operands;
  Write workspace{};  ///< bytes 0: none
  Affine origin{};    ///< Call::origin
  std::int64_t origin_step =
      0;  ///< of a program with loops: by how much origin.base grows from one micro-batch to the next
  friend bool operator==(const Launch&, const Launch&) = default;
};

enum class CollectiveKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, shift };

/// A collective over the ranks that differ from me along `axes`; sums. Rank i of n of the group owns slice i of the
/// larger side, and may hold it there (its input of an all_gather, its output of a reduce_scatter). all_reduce works in
/// place: input and output are one region. all_to_all: slice i of the input goes to member i, and what member i sends
/// becomes slice i of the output; of a graph's value, [1, n, …] becomes [n, 1, …] with `dim` 1, and back with 0. shift:
/// a member's input becomes the next member's output, the last one's the first's.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  DType dtype = DType::f32;
  Axes axes;
  std::int8_t dim = -1;  ///< the dim of a graph's value that is gathered or scattered, of which the regions are one
                         ///< run; -1: flat buffers
  std::vector<std::int32_t> stages;  ///< where `axes` has pipeline: the stages that take part, ascending; empty: all
  NameId name = 0;
  Read input;
  Write output;
  friend bool operator==(const Collective&, const Collective&) = default;
};

/// What one part of an exchange carries: a value of the graph, of one micro-batch, across the boundary between chunks
/// `boundary` and `boundary` + 1. Both ends of a message carry the same.
struct Carried {
  std::int32_t boundary = -1;
  bool backward = false;  ///< from the later chunk to the earlier one
  std::int32_t micro_batch = -1;
  std::int32_t value = -1;  ///< ValueId; both ends plan the same graph
  friend bool operator==(const Carried&, const Carried&) = default;
};

/// Sends and receives that are issued together, and so cannot wait on each other. Peers are ranks relative to me along
/// one axis: +1 is the next.
struct Exchange {
  struct Send {
    Axis axis = Axis::pipeline;
    std::int32_t peer = 0;
    Read region;
    Carried carried{};
    std::int32_t loop = 0;  ///< as Provenance::loop
    friend bool operator==(const Send&, const Send&) = default;
  };
  struct Receive {
    Axis axis = Axis::pipeline;
    std::int32_t peer = 0;
    Write region;
    Carried carried{};
    std::int32_t loop = 0;  ///< as Provenance::loop
    friend bool operator==(const Receive&, const Receive&) = default;
  };
  NameId name = 0;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  friend bool operator==(const Exchange&, const Exchange&) = default;
};

/// Bytes from a field of host memory to the device.
struct CopyIn {
  std::int32_t field = 0;  ///< index in Role::fields
  std::int64_t field_offset = 0;
  Write region;
  friend bool operator==(const CopyIn&, const CopyIn&) = default;
};

/// Bytes from the device to a field of host memory.
struct CopyOut {
  std::int32_t field = 0;
  std::int64_t field_offset = 0;
  Read region;
  friend bool operator==(const CopyOut&, const CopyOut&) = default;
};

/// Bytes from one space to another (Space, plan.h), of which one is the device's. Comes here: a buffer that is kept
/// elsewhere, as kernels need it; leaves: what they have made of it.
struct Move {
  NameId name = 0;
  Read from;
  Write to;
  friend bool operator==(const Move&, const Move&) = default;
};

using Instruction = std::variant<Launch, Collective, Exchange, CopyIn, CopyOut, Move>;

/// Calls visit(Access, const Region&) for every region the instruction touches.
template <typename Visit>
void for_each_access(const Launch& launch, Visit&& visit) {
  for (const Operand& operand : launch.operands) visit(access_of(operand), region_of(operand));
  if (launch.workspace.region.bytes > 0) visit(Access::write, launch.workspace.region);
}
template <typename Visit>
void for_each_access(const Collective& collective, Visit&& visit) {
  visit(Access::read, collective.input.region);
  visit(Access::write, collective.output.region);
}
template <typename Visit>
void for_each_access(const Exchange& exchange, Visit&& visit) {
  for (const auto& send : exchange.sends) visit(Access::read, send.region.region);
  for (const auto& receive : exchange.receives) visit(Access::write, receive.region.region);
}
template <typename Visit>
void for_each_access(const CopyIn& copy, Visit&& visit) {
  visit(Access::write, copy.region.region);
}
template <typename Visit>
void for_each_access(const CopyOut& copy, Visit&& visit) {
  visit(Access::read, copy.region.region);
}
template <typename Visit>
void for_each_access(const Move& move, Visit&& visit) {
  visit(Access::read, move.from.region);
  visit(Access::write, move.to.region);
}
template <typename Visit>
void for_each_access(const Instruction& instruction, Visit&& visit) {
  std::visit([&](const auto& one) { for_each_access(one, visit); }, instruction);
}

}  // namespace trainer
