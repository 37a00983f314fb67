// How IDX headers are checked and samples are read.
#include "engine/data/idx.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/data/data_file.h"
#include "engine/data/recognise.h"

namespace trainer::data {
namespace {

// The header of an IDX file of bytes, checked against the file's length.
class IdxFile {
 public:
  IdxFile(const std::string& path, std::uint32_t dims) : file_(path) {
    refuse_foreign(file_, DataFormat::idx);
    const std::uint32_t magic = 0x800 + dims;
    if (word(0) != magic) file_.fail(0, "is not an IDX file of bytes in " + std::to_string(dims) + " dims");
    header_ = 4 + 4 * dims;
    unsigned __int128 bytes = header_, elements = 1;
    for (std::uint32_t dim = 0; dim < dims; ++dim) {
      sizes_[dim] = word(4 + 4 * dim);
      elements *= static_cast<std::uint64_t>(sizes_[dim]);
    }
    bytes += elements;
    const auto there = static_cast<unsigned __int128>(file_.bytes());
    if (bytes != there)
      file_.fail(static_cast<std::int64_t>(std::min(bytes, there)),
                 there < bytes ? "ends before the data that the header announces" : "has bytes after its data");
  }

  std::int64_t size(int dim) const { return sizes_[dim]; }
  /// Bytes [first, first + count) of the data.
  void read(std::int64_t first, std::int64_t count, std::uint8_t* out) const {
    file_.read(header_ + first, out, static_cast<std::size_t>(count));
  }
  /// `at` counts from the data's start; negative: in the header.
  [[noreturn]] void fail(std::int64_t at, const std::string& what) const { file_.fail(header_ + at, what); }

 private:
  std::uint32_t word(std::int64_t offset) const {
    if (offset + 4 > file_.bytes()) file_.fail(file_.bytes(), "ends inside the header");
    std::uint8_t bytes[4];
    file_.read(offset, bytes, sizeof bytes);
    std::uint32_t value = 0;
    for (std::uint8_t byte : bytes) value = value << 8 | byte;
    return value;
  }

  DataFile file_;
  std::int64_t header_ = 0;
  std::int64_t sizes_[3] = {};
};

std::vector<std::uint8_t> all_of(const IdxFile& file) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(file.size(0)));
  file.read(0, file.size(0), bytes.data());
  return bytes;
}

class IdxImages final : public Dataset {
 public:
  IdxImages(const std::string& images, const std::string& labels, std::int64_t num_classes)
      : images_(images, 3),
        fields_{{"images", DType::f32, Shape{1, images_.size(1), images_.size(2)}}, {"targets", DType::i32, Shape{}}} {
    const IdxFile file(labels, 1);
    if (file.size(0) != images_.size(0))
      file.fail(-4, std::to_string(file.size(0)) + " labels for the " + std::to_string(images_.size(0)) +
                        " images of " + images);
    labels_ = all_of(file);
    const auto bad = std::find_if(labels_.begin(), labels_.end(),
                                  [&](std::uint8_t label) { return num_classes > 0 && label >= num_classes; });
    if (bad != labels_.end())
      file.fail(bad - labels_.begin(), "label " + std::to_string(*bad) + " is not below " +
                                           std::to_string(num_classes) + ", the number of classes");
  }

  std::int64_t num_samples() const override { return images_.size(0); }
  const std::vector<SampleField>& fields() const override { return fields_; }

  void read(std::int64_t sample, std::span<std::byte* const> out) const override {
    const std::int64_t pixels = fields_[0].shape.elements();
    auto* to = reinterpret_cast<float*>(out[0]);
    std::uint8_t bytes[16384];
    for (std::int64_t done = 0; done < pixels;) {
      const std::int64_t part = std::min(pixels - done, static_cast<std::int64_t>(sizeof bytes));
      images_.read(sample * pixels + done, part, bytes);
      for (std::int64_t i = 0; i < part; ++i) to[done + i] = static_cast<float>(bytes[i]) / 255.0f;
      done += part;
    }
    *reinterpret_cast<std::int32_t*>(out[1]) = labels_[static_cast<std::size_t>(sample)];
  }

 private:
  IdxFile images_;
  std::vector<std::uint8_t> labels_;
  std::vector<SampleField> fields_;
};

}  // namespace

std::shared_ptr<const Dataset> idx_images(const std::string& images, const std::string& labels,
                                          std::int64_t num_classes) {
  return std::make_shared<IdxImages>(images, labels, num_classes);
}

}  // namespace trainer::data
