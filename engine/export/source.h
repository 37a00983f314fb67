// Source: the weights that are exported, under the graph's names and in its shapes, wherever they come from: a
// checkpoint of any strategy, a model folder, or an adapter and its base, added up as they are read.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/tensor_store.h"
#include "engine/export/adapter.h"
#include "engine/export/export.h"
#include "engine/job/family.h"
#include "engine/train/weights.h"

namespace trainer::exporting {

/// Elements of a tensor that are in memory at a time; a multiple of every block of quantised weights.
inline constexpr std::int64_t kWindow = std::int64_t{1} << 22;

class Source {
 public:
  /// Raises DataError where a checkpoint is damaged, or the tensors are not those of the model.
  explicit Source(const Options& options);

  const std::string& path() const { return path_; }
  /// The model folder that it is, or that the checkpoint was trained from: its config, names and small files.
  const std::optional<ModelFolder>& folder() const { return folder_; }
  /// Where config.json and the tokenizer's files lie; empty: there are none.
  const std::string& files() const { return files_; }
  const std::vector<checkpoint::TensorInfo>& tensors() const { return tensors_; }
  /// What its weights are in.
  Precision precision() const;

  /// Copies a range of a tensor, in the dtype that its info says. REQUIRES: the range is sound.
  void read(const checkpoint::TensorInfo& tensor, const checkpoint::Range& range, void* out) const;
  /// The same as f32. Raises DataError, naming the tensor, for a weight that is not finite.
  void read_f32(const checkpoint::TensorInfo& tensor, const checkpoint::Range& range, std::vector<float>& out) const;

  /// Of a matrix to which an adapter is added, the Frobenius norm of what it adds; nothing of other tensors.
  std::optional<double> change_of(const std::string& tensor) const;

 private:
  /// What an adapter makes of a matrix W [out, in]: W + scale · B A, and with DoRA its rows times `gains`.
  struct Delta {
    std::vector<float> a, b;  // [rank, in], [out, rank]
    std::int64_t rank = 0, columns = 0;
    std::vector<float> gains{};  // magnitude over norm, of each row
    double norm = 0;             // of the change
  };

  /// Rows of a table that were trained beside an adapter: elements [first, last) of the flat table.
  struct TrainedRows {
    std::string name;
    std::int64_t first = 0, last = 0;
  };

  void open_folder(const Options& options);
  void open_checkpoint(const Options& options);
  void merge(Adapter adapter);
  void take_pair(const std::string& node);
  void take_gains(const checkpoint::TensorInfo& matrix, const checkpoint::TensorInfo& magnitude, Delta& delta) const;
  void check_against_graph() const;
  std::vector<checkpoint::TensorInfo> named(const std::vector<std::string>& names) const;
  const checkpoint::TensorStore& store_of(const std::string& tensor) const;
  bool is_quantized(const std::string& tensor) const;
  void read_plain(const std::string& tensor, const checkpoint::Range& range, float* out) const;
  void put_rows(const std::vector<TrainedRows>& all, const checkpoint::Range& range, float* values) const;
  void add_delta(const Delta& delta, const checkpoint::Range& range, float* values) const;

  std::string path_, files_;
  std::optional<ModelFolder> folder_;
  std::optional<WeightSource> weights_, base_;  // base_: of an adapter
  std::vector<checkpoint::TensorInfo> tensors_;
  std::map<std::string, Delta> deltas_;                   // by matrix
  std::map<std::string, std::vector<TrainedRows>> rows_;  // by table
  Quantization quantization_ = Quantization::none;
  std::set<std::string> quantized_;  // matrices of the base that the adapter was trained beside as quantized ones
  float scale_ = 0;
};

}  // namespace trainer::exporting
