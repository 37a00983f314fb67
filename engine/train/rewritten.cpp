// Tensor by tensor, in the order of the file.
#include "engine/train/rewritten.h"

#include <cstddef>
#include <utility>

#include "engine/core/narrow.h"

namespace trainer {

using checkpoint::Checkpoint;
using checkpoint::TensorInfo;

namespace {

std::vector<std::byte> bytes_for(const TensorInfo& tensor) {
  return std::vector<std::byte>(static_cast<std::size_t>(tensor.shape.elements() * size_of(tensor.dtype)));
}

std::vector<std::byte> bytes_of(const checkpoint::TensorStore& tensors, const TensorInfo& tensor) {
  std::vector<std::byte> bytes = bytes_for(tensor);
  tensors.read(tensor.name, 0, tensor.shape.elements(), bytes.data());
  return bytes;
}

}  // namespace

std::vector<double> values_of(const checkpoint::TensorStore& tensors, const TensorInfo& tensor) {
  const std::int64_t elements = tensor.shape.elements();
  const std::vector<std::byte> bytes = bytes_of(tensors, tensor);
  std::vector<float> values(static_cast<std::size_t>(elements));
  to_f32(tensor.dtype, bytes.data(), elements, values.data());
  return {values.begin(), values.end()};
}

Checkpoint newest_checkpoint(const std::string& folder) {
  return checkpoint::open_checkpoint(checkpoint::list_checkpoints(folder).front().path);
}

Rewritten::Rewritten(const std::string& folder, const Checkpoint& old) : old_(old), store_(folder), writer_(begin()) {}

std::unique_ptr<checkpoint::FileWriter> Rewritten::begin() {
  store_.begin(old_.manifest.step);
  std::vector<Entry> entries;
  for (const TensorInfo& tensor : old_.tensors.tensors()) entries.push_back({tensor, {0, tensor.shape.elements()}});
  return std::make_unique<checkpoint::FileWriter>(store_.dir(), old_.manifest.step,
                                                  checkpoint::file_name("model", 0, 1), std::move(entries));
}

void Rewritten::keep(const Entry& entry) {
  writer_->write(entry, bytes_of(old_.tensors, entry.tensor).data(), entry.tensor.shape.elements());
}

void Rewritten::replace(const Entry& entry, const std::vector<double>& values) {
  const std::int64_t elements = entry.tensor.shape.elements();
  const std::vector<float> rounded(values.begin(), values.end());
  std::vector<std::byte> bytes = bytes_for(entry.tensor);
  from_f32(rounded.data(), elements, entry.tensor.dtype, bytes.data());
  writer_->write(entry, bytes.data(), elements);
}

void Rewritten::commit() {
  writer_->finish();
  writer_.reset();
  store_.commit(old_.manifest.step, old_.manifest.plan_hash, old_.manifest.metadata);
}

void rewrite(const std::string& folder, const Checkpoint& old, const TensorValues& values) {
  Rewritten next(folder, old);
  for (const Rewritten::Entry& entry : next.order()) {
    const auto found = values.find(entry.tensor.name);
    found == values.end() ? next.keep(entry) : next.replace(entry, found->second);
  }
  next.commit();
}

}  // namespace trainer
