// Reading a manifest: its checksum, then its JSON as a stream of events through a small state machine. The checksum has
// no key, so a manifest may be forged: every key, type and number is checked where it occurs, depth is bounded, and
// memory stays near what the manifest holds. Whether the pieces cover their tensors is decided by check_complete.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/counting_iterator.h"
#include "engine/checkpoint/manifest.h"
#include "engine/core/error.h"

namespace trainer::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr int kMaxMetadataDepth = 64;  // readers of metadata may recurse
constexpr std::size_t kChecksumDigits = 32;
constexpr std::size_t kPieceNumbers = 3, kRepeatingPieceNumbers = 5;

// Raises DataError unless the text ends with the checksum of what is before it.
void check_checksum(std::string_view text, const std::string& path) {
  const std::size_t tail = kBeforeChecksum.size() + kChecksumDigits + kAfterChecksum.size();
  const std::size_t body = text.size() < tail ? 0 : text.size() - tail;
  if (body == 0 || !text.ends_with(kAfterChecksum) || text.substr(body, kBeforeChecksum.size()) != kBeforeChecksum) {
    throw DataError(path + ": offset " + std::to_string(text.size()) +
                    ": does not end with its checksum: cut off or changed");
  }
  const std::string_view stored = text.substr(body + kBeforeChecksum.size(), kChecksumDigits);
  const std::string computed = checksum_of(text.substr(0, body));
  if (computed != stored) {
    throw DataError(path + ": its checksum is " + computed + ", but it says " + std::string(stored) + ": damaged");
  }
}

class ManifestEvents {
 public:
  ManifestEvents(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  std::int64_t* count() { return &count_; }
  Manifest take() { return std::move(manifest_); }

  bool start_object(std::size_t) {
    switch (where_) {
      case Where::start:
        return begin(Where::top);
      case Where::files:
        manifest_.files.emplace_back();
        return begin(Where::file);
      case Where::tensors:
        manifest_.tensors.emplace_back();
        return begin(Where::tensor);
      case Where::metadata:
        return deeper();
      case Where::top:
        if (key_ != kMetadata) break;
        metadata_first_ = count_ - 1;
        where_ = Where::metadata;
        return deeper();
      default:
        break;
    }
    fail("an object where none belongs");
  }

  bool key(std::string& name) {
    if (where_ == Where::metadata) return true;
    const auto known = std::find(std::begin(kKeys), std::end(kKeys), Key{where_, name});
    if (known == std::end(kKeys)) fail("unknown key " + quoted(name));
    key_ = known->name;
    const unsigned bit = 1U << (known - std::begin(kKeys));
    if ((seen() & bit) != 0) fail("a second " + std::string(key_));
    seen() |= bit;
    return true;
  }

  bool string(std::string& value) {
    if (where_ == Where::metadata) return true;
    if (where_ == Where::top && key_ == kFormat) {
      if (value != kFormatName) fail("is not the manifest of a checkpoint");
    } else if (where_ == Where::top && key_ == kPlanHash) {
      manifest_.plan_hash = value;
    } else if (where_ == Where::file && key_ == kName) {
      manifest_.files.back().name = value;
    } else if (where_ == Where::file && key_ == kChecksum) {
      manifest_.files.back().checksum = value;
    } else if (where_ == Where::tensor && key_ == kName) {
      tensor().info.name = value;
    } else if (where_ == Where::tensor && key_ == kDtype) {
      const std::optional<DType> dtype = dtype_named(value);
      if (!dtype) fail("unknown dtype " + quoted(value));
      tensor().info.dtype = *dtype;
    } else if (where_ != Where::top || key_ != kChecksum) {  // the checksum of the manifest is known to be right
      fail("a string where none belongs");
    }
    return true;
  }

  bool number_unsigned(std::uint64_t value) {
    if (where_ == Where::metadata) return true;
    if (value > static_cast<std::uint64_t>(INT64_MAX)) fail(std::to_string(value) + " is too large");
    const auto number = static_cast<std::int64_t>(value);
    if (where_ == Where::top && key_ == kVersion) {
      if (number != kFormatVersion)
        fail("has version " + std::to_string(number) + ", but this program reads version 1");
    } else if (where_ == Where::top && key_ == kStep) {
      if (number > kMaxStep) fail("step " + std::to_string(number) + " is too large");
      manifest_.step = number;
    } else if (where_ == Where::file && key_ == kBytes) {
      manifest_.files.back().bytes = number;
    } else if (where_ == Where::shape || where_ == Where::piece) {
      numbers_.push_back(number);
      if (numbers_.size() > kMostNumbers) fail("a list that is too long");
    } else {
      fail("a number where none belongs");
    }
    return true;
  }

  bool start_array(std::size_t) {
    switch (where_) {
      case Where::metadata:
        return deeper();
      case Where::top:
        if (key_ == kFiles) return go(Where::files);
        if (key_ == kTensors) return go(Where::tensors);
        break;
      case Where::tensor:
        numbers_.clear();
        if (key_ == kShape) return go(Where::shape);
        if (key_ == kPieces) return go(Where::pieces);
        break;
      case Where::pieces:
        numbers_.clear();
        return go(Where::piece);
      default:
        break;
    }
    fail("a list where none belongs");
  }

  bool end_array() {
    switch (where_) {
      case Where::metadata:
        --depth_;
        return true;
      case Where::shape:
        finish_shape();
        return go(Where::tensor);
      case Where::piece:
        finish_piece();
        return go(Where::pieces);
      case Where::pieces:
        return go(Where::tensor);
      default:
        return go(Where::top);
    }
  }

  bool end_object() {
    if (where_ == Where::metadata) {
      if (--depth_ > 0) return true;
      const auto first = static_cast<std::size_t>(metadata_first_);
      manifest_.metadata = text_.substr(first, static_cast<std::size_t>(count_) - first);
      return go(Where::top);
    }
    unsigned wanted = 0;
    for (std::size_t i = 0; i < std::size(kKeys); ++i)
      if (kKeys[i].where == where_) wanted |= 1U << i;
    if (seen() != wanted) fail("lacks " + std::string(first_missing(wanted & ~seen())));
    if (where_ == Where::tensor) check_size();
    return go(where_ == Where::file ? Where::files : where_ == Where::tensor ? Where::tensors : Where::end);
  }

  bool null() { return only_in_metadata("null"); }
  bool boolean(bool) { return only_in_metadata("a boolean"); }
  bool number_integer(std::int64_t) { return only_in_metadata("a negative number"); }
  bool number_float(double, const std::string&) { return only_in_metadata("a number that is not whole"); }
  bool binary(Json::binary_t&) { return only_in_metadata("binary data"); }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) { fail("not valid JSON"); }

 private:
  enum class Where { start, top, metadata, files, file, tensors, tensor, shape, pieces, piece, end };
  struct Key {
    Where where;
    std::string_view name;
    friend bool operator==(const Key&, const Key&) = default;
  };
  static constexpr std::string_view kFormat = "format", kVersion = "version", kStep = "step", kPlanHash = "plan_hash",
                                    kMetadata = "metadata", kFiles = "files", kTensors = "tensors",
                                    kChecksum = "checksum", kName = "name", kBytes = "bytes", kDtype = "dtype",
                                    kShape = "shape", kPieces = "pieces";
  static constexpr Key kKeys[] = {
      {Where::top, kFormat},   {Where::top, kVersion},  {Where::top, kStep},      {Where::top, kPlanHash},
      {Where::top, kMetadata}, {Where::top, kFiles},    {Where::top, kTensors},   {Where::top, kChecksum},
      {Where::file, kName},    {Where::file, kBytes},   {Where::file, kChecksum}, {Where::tensor, kName},
      {Where::tensor, kDtype}, {Where::tensor, kShape}, {Where::tensor, kPieces},
  };
  static constexpr std::size_t kMostNumbers = 8;  // more than any list has; so a long one takes no memory

  [[noreturn]] void fail(const std::string& what) const {
    std::string text = path_ + ": offset " + std::to_string(count_) + ": ";
    const bool in_tensor =
        where_ == Where::tensor || where_ == Where::shape || where_ == Where::pieces || where_ == Where::piece;
    if (in_tensor && !manifest_.tensors.back().info.name.empty())
      text += "tensor " + manifest_.tensors.back().info.name + ": ";
    throw DataError(text + what);
  }

  static std::string quoted(const std::string& text) {
    return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
  }

  bool go(Where where) {
    where_ = where;
    return true;
  }

  bool begin(Where where) {
    where_ = where;
    seen() = 0;
    return true;
  }

  bool deeper() {
    if (++depth_ > kMaxMetadataDepth)
      fail("metadata nested deeper than " + std::to_string(kMaxMetadataDepth) + " levels");
    return true;
  }

  bool only_in_metadata(const std::string& what) {
    if (where_ != Where::metadata) fail(what + " where none belongs");
    return true;
  }

  // Keys so far of the object that is being read: the manifest itself, or a file or tensor in it.
  unsigned& seen() { return where_ == Where::top ? seen_at_top_ : seen_in_item_; }

  static std::string_view first_missing(unsigned bits) {
    return kKeys[static_cast<std::size_t>(__builtin_ctz(bits))].name;
  }

  StoredTensor& tensor() { return manifest_.tensors.back(); }

  void finish_shape() {
    if (numbers_.size() > Shape::kMaxDims) fail("too many dims");
    tensor().info.shape = Shape(numbers_);
  }

  void finish_piece() {
    if (numbers_.size() != kPieceNumbers && numbers_.size() != kRepeatingPieceNumbers)
      fail("a piece of " + std::to_string(numbers_.size()) + " numbers");
    Range range{numbers_[0], numbers_[1]};
    if (numbers_.size() == kRepeatingPieceNumbers) {
      range.repeat = numbers_[3];
      range.stride = numbers_[4];
      if (range.repeat < 2) fail("a piece that repeats " + std::to_string(range.repeat) + " times");
    }
    tensor().pieces.push_back({range, static_cast<std::size_t>(numbers_[2])});
  }

  void check_size() {
    std::int64_t bytes = size_of(tensor().info.dtype);
    for (const std::int64_t size : tensor().info.shape.sizes())
      if (__builtin_mul_overflow(bytes, size, &bytes)) fail("the shape has more elements than fit any file");
  }

  const std::string_view text_;
  const std::string& path_;
  std::int64_t count_ = 0;
  Where where_ = Where::start;
  std::string_view key_;
  unsigned seen_at_top_ = 0, seen_in_item_ = 0;
  std::int64_t metadata_first_ = 0;
  int depth_ = 0;  // within the metadata
  std::vector<std::int64_t> numbers_;
  Manifest manifest_;
};

}  // namespace

Manifest parse_manifest(std::string_view text, const std::string& path) {
  check_checksum(text, path);
  ManifestEvents events(text, path);
  Json::sax_parse(CountingIterator(text.data(), events.count()),
                  CountingIterator(text.data() + text.size(), events.count()), &events);
  return events.take();
}

}  // namespace trainer::checkpoint
