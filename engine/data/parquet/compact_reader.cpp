// Reads each value of Thrift's compact protocol within the bounds of the bytes.
#include "engine/data/parquet/compact_reader.h"

#include <limits>
#include <utility>

#include "engine/data/parquet/mistakes.h"

namespace trainer::data::parquet {
namespace {

constexpr int kMostNesting = 32;

}  // namespace

void CompactReader::enter() {
  if (++depth_ > kMostNesting) throw Damaged("the metadata nests too deep");
}

std::uint8_t CompactReader::byte() {
  if (at_ == bytes_.size()) throw CutOff("the metadata ends too early");
  return static_cast<std::uint8_t>(bytes_[at_++]);
}

void CompactReader::advance(std::uint64_t bytes) {
  if (bytes > bytes_.size() - at_) throw CutOff("the metadata ends too early");
  at_ += static_cast<std::size_t>(bytes);
}

std::uint64_t CompactReader::varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const std::uint8_t next = byte();
    value |= static_cast<std::uint64_t>(next & 0x7F) << shift;
    if (next < 0x80) return value;
  }
  throw Damaged("the metadata has a number of more than 64 bits");
}

std::int64_t CompactReader::zigzag() {
  const std::uint64_t value = varint();
  return static_cast<std::int64_t>(value >> 1 ^ (0 - (value & 1)));
}

bool CompactReader::begin_field(std::int16_t& id) {
  const std::uint8_t head = byte();
  pending_ = head & 0x0F;
  in_list_ = false;
  if (pending_ == kStop) return false;
  const std::int64_t next = head >> 4 != 0 ? id + (head >> 4) : zigzag();
  if (next < std::numeric_limits<std::int16_t>::min() || next > std::numeric_limits<std::int16_t>::max())
    throw Damaged("the metadata has a field of no valid number");
  id = static_cast<std::int16_t>(next);
  return true;
}

std::size_t CompactReader::begin_list(std::uint8_t& type) {
  if (pending_ == kSet) pending_ = kList;
  take(kList);
  const std::uint8_t head = byte();
  const std::uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
  type = head & 0x0F;
  if (type == kStop && count > 0) throw Damaged("the metadata has a list of no type");
  if (count > bytes_.size() - at_) throw CutOff("the metadata ends too early");  // each element takes at least one byte
  return static_cast<std::size_t>(count);
}

void CompactReader::take(std::uint8_t type) {
  if (std::exchange(pending_, kStop) != type) throw Damaged("the metadata has a value of another type than its field");
}

std::int8_t CompactReader::i8() {
  take(kI8);
  return static_cast<std::int8_t>(byte());
}

std::int32_t CompactReader::i32() {
  take(kI32);
  const std::int64_t value = zigzag();
  if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max())
    throw Damaged("the metadata has a number of more than 32 bits");
  return static_cast<std::int32_t>(value);
}

std::int64_t CompactReader::i64() {
  take(kI64);
  return zigzag();
}

bool CompactReader::boolean() {
  const std::uint8_t type = std::exchange(pending_, kStop);
  if (type != kTrue && type != kFalse) throw Damaged("the metadata has a value of another type than its field");
  return (in_list_ ? byte() : type) == kTrue;
}

std::string_view CompactReader::binary() {
  take(kBinary);
  const std::uint64_t bytes = varint();
  const std::size_t start = at_;
  advance(bytes);
  return bytes_.substr(start, static_cast<std::size_t>(bytes));
}

void CompactReader::skip_map() {
  const std::uint64_t count = varint();
  if (count == 0) return;
  const std::uint8_t types = byte();
  if (types >> 4 == kStop || (types & 0x0F) == kStop) throw Damaged("the metadata has a map of no type");
  if (count > (bytes_.size() - at_) / 2) throw CutOff("the metadata ends too early");
  enter();
  for (std::uint64_t i = 0; i < 2 * count; ++i) {
    pending_ = i % 2 == 0 ? types >> 4 : types & 0x0F;
    in_list_ = true;
    skip();
  }
  --depth_;
}

void CompactReader::skip() {
  switch (pending_) {
    case kTrue:
    case kFalse:
      if (in_list_) byte();
      break;
    case kI8:
      byte();
      break;
    case kI16:
    case kI32:
    case kI64:
      varint();
      break;
    case kDouble:
      advance(8);
      break;
    case kBinary:
      advance(varint());
      break;
    case kList:
    case kSet:
      list([] {});
      break;
    case kMap:
      skip_map();
      break;
    case kStruct:
      fields([](std::int16_t) {});
      break;
    default:
      throw Damaged("the metadata has a value of no known type");
  }
  pending_ = kStop;
}

}  // namespace trainer::data::parquet
