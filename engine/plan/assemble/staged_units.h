// StagedUnits: moves what units keep off the device to it, one *chunk* at a time, when an update or a copy needs it,
// and back if it was changed. Each chunk has its own buffers in the program. The next chunk is fetched before the
// current one is used, and memory.h keeps a chunk's memory until the next chunk is stored. So three chunks are on the
// device: one is fetched, one is used, and one is stored.
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
      Region home;
      bool comes = true, returns = true;
      Region here{};
    };
    const Unit* unit = nullptr;
    ElementRange elements;
    std::vector<Part> parts{};

    /// Where kernels find what is kept at `home`: there, unless that is off the device.
    Region here(const Region& home) const;
  };

  /// What the chunks are for.
  enum class For : std::uint8_t {
    update,  ///< masters, states and working copies come, and return updated
    renewal  ///< masters come, and working copies are made of them, which return
  };
  /// Of the role's units those that keep any of that off the device. They are staged in the order of units.
  StagedUnits(Emitter& emit, const Role& role, const AssembleOptions& options, For use);

  bool has(const Unit& unit) const;
  /// The unit's gradient of so many bytes an element lies at `home`, and comes with its chunks.
  void add_gradient(const Unit& unit, const Region& home, std::int64_t width);
  /// Asks for the first chunk; what is issued next runs beside that.
  void begin();
  /// work(chunk) for each chunk of the unit, here; what it changes is then moved back.
  void for_each_chunk(const Unit& unit, const std::function<void(const Chunk&)>& work);

 private:
  void add(const Unit& unit, std::int64_t most, For use);
  void fetch_until(std::size_t end);
  void move(const Chunk& chunk, bool here);

  Emitter& emit_;
  const Role& role_;
  const bool gradients_;  // some are kept off the device
  std::vector<Chunk> chunks_;
  std::size_t next_ = 0, fetched_ = 0;
};

}  // namespace trainer
