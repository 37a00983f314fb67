// Tensors: samples as safetensors files hold them, for models whose inputs no other format has (features of sound,
// lengths of sequences, targets that are masked). Each tensor is one field of all samples of its file, its dim 0 counts
// them, and the files are joined in their order.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/dataset.h"

namespace trainer::data {

/// `fields` of a sample, as the graph reads them; `names` says which tensors they are. An i32 field takes any integers
/// that fit, an f32 one any floats. Without `names` they are called as the fields, and a tensor that is none of them is
/// a DataError, as are a field that is missing, another shape, and fields that differ in their number of samples.
std::shared_ptr<const Dataset> tensor_samples(const std::vector<std::string>& paths,
                                              const std::vector<SampleField>& fields,
                                              const std::map<std::string, std::string>& names);

}  // namespace trainer::data
