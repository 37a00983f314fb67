// StagedUnits: moves what units keep elsewhere to where an update or a copy of them runs, one *chunk* at a time, and
// back if it was changed. That is the device, for units that keep something off it, or the memory of a GPU's host, if
// the update runs on its processor. The next chunk comes before the current one is used, so three chunks are there: one
// comes, one is used, and one returns. On the device each chunk has its own buffers in the program, and memory.h keeps
// their memory until the next chunk is stored. In the host's memory three sets of persistent buffers take turns.
#pragma once

#include <functional>
#include <map>
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
      std::string kind;  ///< "master", "working", "gradient", or a state's name
      Region home;
      bool comes = true, returns = true;
      Region here{};
    };
    const Unit* unit = nullptr;
    ElementRange elements;
    std::vector<Part> parts{};

    /// Where kernels find what is kept at `home`: there, unless that is in another space than they work in.
    Region here(const Region& home) const;
  };

  /// What the chunks are for.
  enum class For : std::uint8_t {
    update,  ///< masters and states come, and return updated; working copies are made
    renewal  ///< masters come, and working copies are made of them, on the device
  };
  /// Of the role's units those that keep any of that in another space than `options` has the work done in. They are
  /// staged in the order of units.
  StagedUnits(Emitter& emit, const Role& role, const AssembleOptions& options, For use);

  bool has(const Unit& unit) const;
  /// The unit's gradient of so many bytes an element lies at `home`, and comes with its chunks.
  void add_gradient(const Unit& unit, const Region& home, std::int64_t width);
  /// Asks for the first chunk; what is issued next runs beside that.
  void begin();
  /// work(chunk) for each chunk of the unit, here; what it changes is then moved back.
  void for_each_chunk(const Unit& unit, const std::function<void(const Chunk&)>& work);
  /// Where kernels work on chunks.
  Space space() const { return space_; }

 private:
  void add(const Unit& unit, For use);
  std::vector<Chunk::Part> homes(const Unit& unit, const ElementRange& elements, For use) const;
  void fetch_until(std::size_t end);
  void move(const Chunk& chunk, bool here);
  Region buffer(const Chunk& chunk, const Chunk::Part& part);

  Emitter& emit_;
  const Role& role_;
  const Space space_;
  const bool gradients_;   // some come with their chunks
  std::int64_t most_ = 0;  // elements of a chunk
  std::vector<Chunk> chunks_;
  std::size_t next_ = 0, fetched_ = 0;
  std::map<std::string, BufferId> turns_;  // of the host's memory, by name
};

}  // namespace trainer
