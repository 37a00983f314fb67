// The sections of a job. A file says of its sections which keys they have (`..._fields`) and makes their structs of
// checked values (`bind_...`), so that a new key is a line in each of two functions side by side. `mistakes` are those
// that only show when files are looked for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/job/fields.h"
#include "engine/job/job.h"
#include "engine/job/values.h"

namespace trainer {

std::vector<FieldDef> model_fields();
ModelJob bind_model(Values& v, const LoadOptions& options, std::vector<Diagnostic>& mistakes);

std::vector<FieldDef> adapter_fields();
/// Takes the values that a folder of PEFT in `adapter.from` brings.
std::optional<AdapterJob> bind_adapter(Values& v, const std::optional<ModelFolder>& model,
                                       std::vector<Diagnostic>& mistakes);

FieldDef trainable_field();
TrainableJob bind_trainable(Values& v);

std::vector<FieldDef> data_fields();
DataJob bind_data(Values& v, const LoadOptions& options, std::vector<Diagnostic>& mistakes);
/// Of data with a mistake in it: only what says how samples look.
DataJob bind_samples(Values& v, const LoadOptions& options, std::vector<Diagnostic>& mistakes);

std::vector<FieldDef> train_fields();
TrainJob bind_train(const Values& v);

std::vector<FieldDef> eval_fields();
EvalJob bind_eval(Values& v);

std::vector<FieldDef> precision_fields();
PrecisionJob bind_precision(const Values& v);

std::vector<FieldDef> activation_checkpointing_fields();
ActivationCheckpointingJob bind_activation_checkpointing(const Values& v);

std::vector<FieldDef> strategy_fields();
/// Fills in the profile of the network first.
StrategyJob bind_strategy(Values& v);

std::vector<FieldDef> cluster_fields();
ClusterJob bind_cluster(Values& v);

std::vector<FieldDef> checkpoint_fields();
/// `name`: of the job, for the folder that `auto` is.
CheckpointJob bind_checkpoint(Values& v, const std::string& name);

std::vector<FieldDef> log_fields();
LogJob bind_log(Values& v);

}  // namespace trainer
