// StagedUnits: what units keep off the device comes to it part by part, as an update or a copy needs it, and goes back
// when it has been changed. Each part, a *chunk*, has buffers of its own in the program. The chunk after the one at
// hand is asked for before that is worked on, and memory.h holds a chunk that leaves until the next one does: so one
// chunk comes, one is worked on and one leaves, and three are on the device at a time.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/assemble/emitter.h"

namespace trainer {

class StagedUnits {
 public:
  /// Some elements of a rank's slice of a unit.
  struct Chunk {
    struct Part {
      std::string name;
      Region home, here{};
      bool changes = true;  ///< false: it need not go back
    };
    const Unit* unit = nullptr;
    ElementRange elements;
    std::vector<Part> parts{};

    /// Where kernels find what is kept at `home`: there, unless that is off the device.
    Region here(const Region& home) const;
  };

  /// Of the role's units those that keep their masters, or with `states` any of masters and states, off the device.
  /// They are staged in the order of units.
  StagedUnits(Emitter& emit, const Role& role, const AssembleOptions& options, bool states);

  bool has(const Unit& unit) const;
  /// The unit's gradient of so many bytes an element lies at `home`, and comes with its chunks.
  void add_gradient(const Unit& unit, const Region& home, std::int64_t width);
  /// Asks for the first chunk; what is issued next runs beside that.
  void begin();
  /// work(chunk) for each chunk of the unit, here; if `changed`, it is then moved back.
  void for_each_chunk(const Unit& unit, bool changed, const std::function<void(const Chunk&)>& work);

 private:
  void add(const Unit& unit, std::int64_t most, bool states);
  void fetch_until(std::size_t end);
  void move(const Chunk& chunk, bool here);

  Emitter& emit_;
  const Role& role_;
  const bool gradients_;  // some are kept off the device
  std::vector<Chunk> chunks_;
  std::size_t next_ = 0, fetched_ = 0;
};

}  // namespace trainer
