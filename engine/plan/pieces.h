// Pieces: which elements of a parameter a rank holds, and which of them it saves. A parameter is cut twice: along an
// axis of the graph (UnitTensor::spec), and as a part of its unit's flat order along the slice axes (Slot::spec). What
// remains is a handful of runs, repeated at a stride where a dim other than the first is cut. Everything that moves
// parameters between names and buffers (drawing, loading, saving, gathering) asks here, so that no two of them can
// disagree.
//
// Invariant: over all ranks of the mesh the saved pieces of a tensor hold each of its elements once; padding is in no
// piece.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// For r in [0, repeat): elements [global + r · global_stride, + count) of the flat global tensor are elements
/// [local + r · local_stride, + count) of the unit's flat order. Strides are at least `count`, and 0 where repeat is 1.
struct Piece {
  std::int64_t global = 0;
  std::int64_t local = 0;
  std::int64_t count = 0;
  std::int64_t repeat = 1;
  std::int64_t global_stride = 0;
  std::int64_t local_stride = 0;

  std::int64_t elements() const { return count * repeat; }
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// The model on a rank: its units of parameters, and each state that is the model's (State::initial) as a frozen unit
/// of its own, whose tensor has the state's name.
std::vector<Unit> model_units(const Role& role);

/// The elements of a unit's flat order that the rank at `at` has masters and states of.
ElementRange held_range(const Unit& unit, const Mesh& mesh, const Coordinates& at);

/// The rank's part of a tensor, in the unit's order.
std::vector<Piece> pieces_of(const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at);

/// What the rank at `at` holds of a tensor.
std::vector<Piece> held_pieces(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at);

/// What it saves: of the ranks that hold the same elements each saves an equal share of the unit, and of the stages
/// that share a unit the first alone.
std::vector<Piece> saved_pieces(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at);

/// Of what ranks keep for themselves along the token axes (Slot::own): which of the holders of a unit a rank is. Stages
/// that share a unit are holders apart; ranks along the tensor axis hold parts of one holder's.
struct StateOwner {
  int index = 0, count = 1;
};
StateOwner state_owner_of(const Unit& unit, const Mesh& mesh, const Coordinates& at);
/// What the rank saves of its holder's, of which it holds pieces_of.
std::vector<Piece> saved_own(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at);

/// The part of a piece whose global elements lie in `within`; at most three pieces, in the same order.
std::vector<Piece> clip_global(const Piece& piece, ElementRange within);
/// The same by its local elements.
std::vector<Piece> clip_local(const Piece& piece, ElementRange within);

/// The piece in pieces of at most `limit` elements, in order. REQUIRES: limit > 0.
std::vector<Piece> chunks_of(const Piece& piece, std::int64_t limit);

}  // namespace trainer
