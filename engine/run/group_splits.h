// Group splits: the groups of a plan as a library makes them that splits a world in turn (ncclCommSplit). Every rank
// has to split alike, also for groups that only other roles use, or the ranks wait for one another for ever; so all go
// by this one list, which depends on the plan alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// Groups over `axes` (those longer than 1) whose collectives are issued on `stream`. Groups of the same ranks on two
/// streams are two: a group has its work on one stream (engine/plan/verify/communication.h).
struct GroupSplit {
  Axes axes;
  std::vector<std::int32_t> stages;  ///< where `axes` has pipeline: the stages that take part, ascending; empty: all
  Stream stream = Stream::communication;
  friend bool operator==(const GroupSplit&, const GroupSplit&) = default;
};

/// What a rank says in a split: ranks of one color become a group, ordered by key. color -1: in none.
struct SplitPart {
  int color = -1;
  int key = 0;
};

/// Every group that any program of any role uses, each once, in an order that is the same on all ranks. Groups of one
/// rank are left out.
std::vector<GroupSplit> group_splits(const Plan& plan);

/// The part of `rank` in a split. Those of its color, by key, are Mesh::group's members.
SplitPart part_of(const Mesh& mesh, const GroupSplit& split, int rank);

/// The split that a collective goes over; nothing: it is of one rank.
std::optional<GroupSplit> split_of(const Mesh& mesh, const Collective& collective, Stream stream);

}  // namespace trainer
