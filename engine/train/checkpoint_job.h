// A checkpoint by itself is a model: it holds the files that say what its tensors are (the model folder's, or the graph
// file, and a tokenizer.json), and the settings of its job. From these a job is made for commands that use the weights.
//
// Invariant: what carry_model() puts into a checkpoint is what job_of_checkpoint() finds there.
#pragma once

#include <string>

#include "engine/checkpoint/checkpoint.h"
#include "engine/job/job.h"

namespace trainer {

/// Makes every checkpoint of `store` hold what its model is read from. IoError, DataError.
void carry_model(checkpoint::Store& store, const Job& job);

/// Whether the path is the directory of a checkpoint, or one with directories of them.
bool is_checkpoint(const std::string& path);

struct JobOfCheckpoint {
  std::string text;  ///< YAML
  std::string path;  ///< where its relative paths belong to: "runs/gpt2/step-00000500/job.yaml", which is no file
};
/// Model, adapter and data as the job of the checkpoint has them, with defaults for everything that is about training
/// or about the machine that it was trained on. Of several checkpoints the newest whose manifest can be read. Throws
/// DataError where there is none, and where it does not hold its job.
JobOfCheckpoint job_of_checkpoint(const std::string& path);

}  // namespace trainer
