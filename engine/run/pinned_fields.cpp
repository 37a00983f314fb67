// All fields lie in one pinned block, each aligned, in the order of Role::fields.
#include "engine/run/pinned_fields.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "engine/core/check.h"
#include "kernels/cuda/runtime/runtime.h"

namespace trainer {
namespace {

std::vector<std::int64_t> offsets_of(const Role& role) {
  std::vector<std::int64_t> offsets{0};
  for (const Field& field : role.fields) offsets.push_back(offsets.back() + aligned(field.bytes));
  return offsets;
}

void make_unique(std::vector<PinnedFields::Part>& parts) {
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
}

}  // namespace

PinnedMemory::PinnedMemory(std::int64_t bytes) : bytes_(bytes) {
  void* at = nullptr;
  kernels::cuda::check(
      cudaHostAlloc(&at, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), cudaHostAllocDefault),
      "cudaHostAlloc");
  data_.reset(static_cast<std::byte*>(at));
}

void PinnedMemory::Free::operator()(std::byte* at) const { cudaFreeHost(at); }

PinnedFields::PinnedFields(const Role& role)
    : role_(role), offsets_(offsets_of(role)), memory_(kSets * offsets_.back()), bound_(role.fields.size()) {}

PinnedFields::Parts PinnedFields::parts_of(const Program& program) {
  Parts parts;
  for (const Issued& issued : program.instructions) {
    if (const auto* in = std::get_if<CopyIn>(&issued.instruction))
      parts.read.push_back({in->field, in->field_offset, in->region.region.bytes});
    if (const auto* out = std::get_if<CopyOut>(&issued.instruction))
      parts.written.push_back({out->field, out->field_offset, out->region.region.bytes});
  }
  make_unique(parts.read);
  make_unique(parts.written);
  return parts;
}

void PinnedFields::take(int set, const std::vector<Part>& parts) const {
  for (const Part& part : parts)
    std::memcpy(at(set, part.field) + part.offset, bound(part), static_cast<std::size_t>(part.bytes));
}

void PinnedFields::give(int set, const std::vector<Part>& parts) const {
  for (const Part& part : parts)
    std::memcpy(bound(part), at(set, part.field) + part.offset, static_cast<std::size_t>(part.bytes));
}

std::byte* PinnedFields::bound(const Part& part) const {
  std::byte* const data = bound_[static_cast<std::size_t>(part.field)];
  CHECK(data != nullptr,
        "field " + role_.fields[static_cast<std::size_t>(part.field)].name + " is bound before a program uses it");
  return data + part.offset;
}

}  // namespace trainer
