// IDX files.
#include "engine/data/idx.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/file.h"

namespace trainer::data {
namespace {

// The header of an IDX file of bytes, checked against the file's length.
class IdxFile {
 public:
  IdxFile(const std::string& path, std::uint32_t dims) : file_(path) {
    const std::uint32_t magic = 0x800 + dims;
    if (file_.text().starts_with("\x1f\x8b")) fail(0, "is compressed; unpack it with gunzip");
    if (word(0) != magic) fail(0, "is not an IDX file of bytes in " + std::to_string(dims) + " dims");
    header_ = 4 + 4 * dims;
    unsigned __int128 bytes = header_, elements = 1;
    for (std::uint32_t dim = 0; dim < dims; ++dim) {
      sizes_[dim] = word(4 + 4 * dim);
      elements *= static_cast<std::uint64_t>(sizes_[dim]);
    }
    bytes += elements;
    if (bytes != file_.bytes().size()) {
      fail(static_cast<std::size_t>(std::min<unsigned __int128>(bytes, file_.bytes().size())),
           file_.bytes().size() < bytes ? "ends before the data that the header announces" : "has bytes after its data");
    }
  }

  const std::string& path() const { return file_.path(); }
  std::int64_t size(int dim) const { return sizes_[dim]; }
  std::size_t header() const { return header_; }
  const std::uint8_t* data() const { return reinterpret_cast<const std::uint8_t*>(file_.bytes().data()) + header_; }
  [[noreturn]] void fail(std::size_t offset, const std::string& what) const {
    throw DataError(file_.path() + ": offset " + std::to_string(offset) + ": " + what);
  }

 private:
  std::uint32_t word(std::size_t offset) const {
    if (offset + 4 > file_.bytes().size()) fail(file_.bytes().size(), "ends inside the header");
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(file_.bytes()[offset + i]);
    return value;
  }

  MappedFile file_;
  std::size_t header_ = 0;
  std::int64_t sizes_[3] = {};
};

class IdxImages final : public Dataset {
 public:
  IdxImages(const std::string& images, const std::string& labels, std::int64_t num_classes)
      : images_(images, 3),
        labels_(labels, 1),
        fields_{{"images", DType::f32, Shape{1, images_.size(1), images_.size(2)}}, {"targets", DType::i32, Shape{}}} {
    if (labels_.size(0) != images_.size(0)) {
      labels_.fail(4, std::to_string(labels_.size(0)) + " labels for the " + std::to_string(images_.size(0)) + " images of " + images);
    }
    for (std::int64_t i = 0; num_classes > 0 && i < labels_.size(0); ++i) {
      if (labels_.data()[i] < num_classes) continue;
      labels_.fail(labels_.header() + static_cast<std::size_t>(i), "label " + std::to_string(labels_.data()[i]) + " is not below " +
                                                                       std::to_string(num_classes) + ", the number of classes");
    }
  }

  std::int64_t num_samples() const override { return images_.size(0); }
  const std::vector<SampleField>& fields() const override { return fields_; }

  void read(std::int64_t sample, std::span<std::byte* const> out) const override {
    const std::int64_t pixels = fields_[0].shape.elements();
    const std::uint8_t* from = images_.data() + sample * pixels;
    auto* to = reinterpret_cast<float*>(out[0]);
    for (std::int64_t i = 0; i < pixels; ++i) to[i] = static_cast<float>(from[i]) / 255.0f;
    *reinterpret_cast<std::int32_t*>(out[1]) = labels_.data()[sample];
  }

 private:
  IdxFile images_, labels_;
  std::vector<SampleField> fields_;
};

}  // namespace

std::shared_ptr<const Dataset> idx_images(const std::string& images, const std::string& labels, std::int64_t num_classes) {
  return std::make_shared<IdxImages>(images, labels, num_classes);
}

}  // namespace trainer::data
