// A checkpoint written once more, with other values in some of its tensors, for the simulations of `trainer verify`.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"

namespace trainer {

/// All elements of a tensor, in f64.
std::vector<double> values_of(const checkpoint::TensorStore& tensors, const checkpoint::TensorInfo& tensor);

/// The newest in a folder that has one.
checkpoint::Checkpoint newest_checkpoint(const std::string& folder);

class Rewritten {
 public:
  /// `old` outlives it. The new one is in `folder`, as of the same step, once it is committed.
  Rewritten(const std::string& folder, const checkpoint::Checkpoint& old);

  using Entry = checkpoint::FileWriter::Entry;
  /// Tensors in the order in which they have to be written.
  const std::vector<Entry>& order() const { return writer_->order(); }
  void keep(const Entry& entry);
  /// By these values, rounded to its dtype.
  void replace(const Entry& entry, const std::vector<double>& values);
  void commit();

 private:
  std::unique_ptr<checkpoint::FileWriter> begin();

  const checkpoint::Checkpoint& old_;
  checkpoint::Store store_;
  std::unique_ptr<checkpoint::FileWriter> writer_;
};

/// Values by the names of tensors.
using TensorValues = std::map<std::string, std::vector<double>>;

/// Writes `old` once more into `folder`, with these values in the place of its own.
void rewrite(const std::string& folder, const checkpoint::Checkpoint& old, const TensorValues& values);

}  // namespace trainer
