// IDX: images and labels in the format of MNIST. Source: yann.lecun.com/exdb/mnist.
//   images: big-endian u32 0x00000803, count, rows, cols; then count·rows·cols bytes
//   labels: big-endian u32 0x00000801, count; then count bytes
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/data/dataset.h"

namespace trainer::data {

/// `images` f32 [1, rows, cols], the bytes / 255, and `targets` i32 []. The labels are held in memory. A label of
/// `num_classes` or more is a DataError; 0 allows all.
std::shared_ptr<const Dataset> idx_images(const std::string& images, const std::string& labels,
                                          std::int64_t num_classes);

}  // namespace trainer::data
