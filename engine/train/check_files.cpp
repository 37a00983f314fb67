// Parts of the data are looked at one by one only where something is wrong: data that is right is read once.
#include "engine/train/check_files.h"

#include <sstream>

#include "engine/checkpoint/checkpoint.h"
#include "engine/core/error.h"
#include "engine/data/files.h"
#include "engine/train/base.h"
#include "engine/train/checkpoint_plan.h"
#include "engine/train/inputs.h"

namespace trainer {
namespace {

class Checker {
 public:
  Checker(const LoadedJob& loaded, const CompiledJob& compiled) : loaded_(loaded), compiled_(compiled) {}

  FileProblems all() {
    const ModelJob& model = loaded_.job.model;
    const bool of_folder = model.folder && model.init_from == model.folder->path;
    if (model.init_from)
      attempt(of_folder ? "model.from" : "model.init_from",
              [&] { check_first_weights(loaded_, compiled_, "model.init_from"); });
    if (const auto& adapter = loaded_.job.adapter; adapter && adapter->from)
      attempt("adapter.from", [&] { check_first_weights(loaded_, compiled_, "adapter.from"); });
    attempt("checkpoint.dir", [&] { check_space(); });
    const DataJob& job = loaded_.job.data;
    const auto* val = std::get_if<DataFiles>(&job.val);
    const bool train_there = names_training_files(job), val_there = !val || names_files("data.val", *val);
    if (train_there && val_there) {
      open_all(job);
    } else if (train_there) {
      DataJob train = job;
      train.val = std::monostate();
      open("data.train", train);
    } else if (val && val_there) {
      open_val_alone(job, *val);
    }
    if (loaded_.job.eval && loaded_.job.eval->generate)
      attempt("eval.generate.file", [&] {
        data::Questions(job, *loaded_.job.eval->generate, graph_inputs(loaded_.job, compiled_).id_limit);
      });
    return std::move(problems_);
  }

 private:
  // Does `action`; whether it raised no error of a file.
  template <typename Action>
  bool attempt(const std::string& key, Action&& action) {
    try {
      action();
      return true;
    } catch (const DataError& error) {
      const bool rows = loaded_.job.data.is_rows() &&
                        (key.starts_with("data.") || key.starts_with("eval."));  // a mistake on each line
      std::istringstream lines(error.what());
      for (std::string line; std::getline(lines, line, rows ? '\n' : '\0');)
        problems_.diagnostics.push_back(about_files(loaded_, key, line));
    } catch (const IoError& error) {
      problems_.diagnostics.push_back(about_files(loaded_, key, error.what()));
      problems_.unreadable = true;
    }
    return false;
  }

  // Of a run that goes on from what it has saved.
  void check_space() {
    const CheckpointJob& checkpoint = loaded_.job.checkpoint;
    if (!checkpoint.dir) return;
    const std::vector<checkpoint::CheckpointPath> saved = checkpoint::list_checkpoints(*checkpoint.dir);
    const bool goes_on = !saved.empty() && checkpoint.resume == CheckpointJob::Resume::automatic;
    const std::string lack = lack_of_space(loaded_.job, compiled_, goes_on ? saved.front().step : 0);
    if (!lack.empty()) throw IoError(lack);
  }

  // Whether every path and pattern names files; each that does not is told.
  bool names_files(const std::string& key, const DataFiles& files) {
    bool good = true;
    for (const std::string& path : files.paths) good = attempt(key, [&] { data::expand_paths({path}); }) && good;
    return good;
  }

  bool names_training_files(const DataJob& job) {
    if (job.mix.empty()) return names_files("data.train", job.train);
    bool good = true;
    for (std::size_t i = 0; i < job.mix.size(); ++i)
      good = names_files("data.mix[" + std::to_string(i) + "].files", {job.mix[i].paths, {}, {}}) && good;
    return good;
  }

  void open_all(const DataJob& job) {
    std::string wrong;
    try {
      const data::Data data = data::open_data(job, graph_inputs(loaded_.job, compiled_), data::IdStream::Check::all,
                                              {.cache = cache_for(loaded_.job.data)});
      for (Diagnostic& problem : too_few_samples(loaded_, compiled_, data))
        problems_.diagnostics.push_back(std::move(problem));
    } catch (const data::BadData& error) {
      attempt(wrong = error.key, [&] { throw DataError(error.what()); });
    } catch (const data::UnreadableData& error) {
      attempt(wrong = error.key, [&] { throw IoError(error.what()); });
    }
    if (const auto* val = std::get_if<DataFiles>(&job.val); val && wrong == "data.train") open_val_alone(job, *val);
  }

  // Validation files may have mistakes of their own where the training files have some.
  void open_val_alone(const DataJob& job, const DataFiles& val) {
    DataJob alone = job;
    alone.train = val;
    alone.mix.clear();
    alone.val = std::monostate();
    open("data.val", alone);
  }

  void open(const std::string& key, const DataJob& job) {
    attempt(key, [&] {
      data::open_data(job, graph_inputs(loaded_.job, compiled_), data::IdStream::Check::all,
                      {.cache = cache_for(loaded_.job.data)});
    });
  }

  const LoadedJob& loaded_;
  const CompiledJob& compiled_;
  FileProblems problems_;
};

}  // namespace

FileProblems check_files(const LoadedJob& loaded, const CompiledJob& compiled) {
  return Checker(loaded, compiled).all();
}

}  // namespace trainer
