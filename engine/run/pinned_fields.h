// PinnedFields: a role's fields in host memory that a GPU copies from and to without waiting. A captured program knows
// its addresses; what is bound may change from run to run, and is copied here when a program starts, and from here when
// it has ended. There are two sets of fields: one program may be started while another still uses the other set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// Bytes of host memory that the GPU reads and writes directly.
class PinnedMemory {
 public:
  /// Throws IoError where the system gives none.
  explicit PinnedMemory(std::int64_t bytes);
  std::byte* data() const { return data_.get(); }
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* at) const;
  };
  std::int64_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

class PinnedFields {
 public:
  explicit PinnedFields(const Role& role);

  void bind(std::int32_t field, void* data) {
    bound_.at(static_cast<std::size_t>(field)) = static_cast<std::byte*>(data);
  }
  static constexpr int kSets = 2;
  /// Where the device finds field `field` of set `set`.
  std::byte* at(int set, std::int32_t field) const {
    return memory_.data() + set * offsets_.back() + offsets_[static_cast<std::size_t>(field)];
  }

  /// Bytes of a field that a program copies, each once however often it does.
  struct Part {
    std::int32_t field = 0;
    std::int64_t offset = 0, bytes = 0;
    friend auto operator<=>(const Part&, const Part&) = default;
  };
  struct Parts {
    std::vector<Part> read, written;  ///< by the program
  };
  static Parts parts_of(const Program& program);
  /// REQUIRES: the fields are bound.
  void take(int set, const std::vector<Part>& parts) const;
  void give(int set, const std::vector<Part>& parts) const;

 private:
  std::byte* bound(const Part& part) const;

  const Role& role_;
  std::vector<std::int64_t> offsets_;
  PinnedMemory memory_;
  std::vector<std::byte*> bound_;
};

}  // namespace trainer
