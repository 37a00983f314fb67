// Job: section by section what a job file may say, typed and checked. One table of fields (fields.cpp) says which keys
// there are, their types, defaults and ranges; it drives the reader, its messages, the effective job and the JSON
// Schema. Invariant: a Job that load_job returns is complete: every default is filled in and every rule that concerns
// the file alone holds. What this build cannot carry out yet is still in it; `unsupported` (unsupported.h) finds that.
//
// Paths are resolved: relative ones of the file against the file's folder, those given on the command line against the
// working directory.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/core/quantized.h"
#include "engine/job/family.h"
#include "engine/job/param_value.h"
#include "engine/job/strategy_job.h"
#include "engine/job/yaml.h"

namespace trainer {

struct ModelJob {
  std::string graph;                       ///< path of an existing graph file; empty where the graph is inline
  std::optional<yaml::Node> inline_graph;  ///< a graph written into the job
  std::map<std::string, ParamValue> with;  ///< replaces params of the graph
  std::optional<std::string> init_from;    ///< checkpoint directory, .safetensors file or model folder; of a job with a
                                           ///< `folder` whose weights are loaded that
  std::optional<ModelFolder> folder;       ///< of model.from: the graph and its params are what this says
  Quantization quantize = Quantization::none;  ///< how frozen matrices of linears are held
};

/// Which of the model's own parameters are trained.
struct TrainableJob {
  enum class Kind : std::uint8_t { all, adapter, globs } kind = Kind::all;  ///< adapter: none but the adapter's
  std::vector<std::string> globs{};                                         ///< over names of parameters
};

enum class AdapterKind : std::uint8_t { lora };

/// Small matrices that are trained beside frozen ones (engine/transform/adapter.h).
struct AdapterJob {
  AdapterKind kind = AdapterKind::lora;
  std::int64_t rank = 16;
  double alpha = 32;
  double dropout = 0;
  std::vector<std::string> targets{};  ///< globs over linears, or last parts of their names; empty: all but the head
  bool scaled_by_root = false;         ///< alpha / √rank in place of alpha / rank
  bool magnitude = false;              ///< DoRA: the norms of rows are trained apart
  std::optional<std::string>
      from{};  ///< a checkpoint of an adapter, a folder of PEFT or a .safetensors file, to start from
};

enum class DataFormat : std::uint8_t {
  text,
  tokens,
  table,
  idx,
  tensors,
  documents,
  chat,
  completion,
  preference,
  labelled
};
enum class Tokenizer : std::uint8_t { bytes, chars, file };
enum class TokenType : std::uint8_t { u16, u32 };
enum class Normalize : std::uint8_t { none, standard };
/// Which ids of a row count as targets: of chat the assistant's turns or the last of them, of completion the
/// completion; or all.
enum class TrainOn : std::uint8_t { assistant, last, completion, all };
/// documents: a sample holds as many rows as fit; each attends to itself only, and its positions begin at 0.
enum class Packing : std::uint8_t { none, documents };
/// What becomes of a row that is longer than a sample.
enum class TooLong : std::uint8_t { error, drop, truncate, split };

/// Where samples are: files (paths or globs), or of `idx` one file of images and one of labels.
struct DataFiles {
  std::vector<std::string> paths;
  std::string images, labels;
};

/// A part of a mix: of every batch its share is weight / the sum of weights.
struct MixPart {
  std::vector<std::string> paths;
  double weight = 1;
};

struct DataJob {
  DataFormat format = DataFormat::text;
  DataFiles train;             ///< of a mix the files of all parts
  std::vector<MixPart> mix{};  ///< of rows; empty: `train` is one part
  /// Held-out samples: none, the last fraction of `train` (0 < f < 1), or files.
  std::variant<std::monostate, double, DataFiles> val;
  Tokenizer tokenizer = Tokenizer::bytes;  ///< text, rows
  std::string tokenizer_file;              ///< of Tokenizer::file: a tokenizer.json, or a folder with one
  std::optional<TokenType> token_type;     ///< tokens; none: what the file's header says, else u16
  std::int64_t seq_len = 256;              ///< text, tokens, tensors, rows
  /// tensors: the field of a sample that each input of the graph is; empty: those that it needs, under its own names.
  /// Rows: the member of a row that each part is, where it has another name (engine/data/row_format.h).
  std::map<std::string, std::string> fields{};
  std::map<std::string, std::string> roles{};  ///< chat: the role that a word of the rows means
  TrainOn train_on = TrainOn::all;             ///< chat, completion
  std::string chat_template{};                 ///< chat: a file; empty: the template beside the tokenizer
  Packing packing = Packing::none;             ///< rows
  TooLong too_long = TooLong::error;           ///< rows
  std::variant<std::int64_t, std::string> target =
      std::int64_t{-1};                   ///< table: column number (negative from the end) or name
  Normalize normalize = Normalize::none;  ///< table
  bool shuffle = true;

  /// Whether the files hold rows, each a text of its own.
  bool is_rows() const {
    return format == DataFormat::documents || format == DataFormat::chat || format == DataFormat::completion ||
           format == DataFormat::preference || format == DataFormat::labelled;
  }
  /// Rows of the graph's inputs that a sample is: of preference a chosen and a rejected text.
  std::int64_t sequences() const { return format == DataFormat::preference ? 2 : 1; }
  /// Of a sample, where samples are tokens.
  std::int64_t tokens() const { return sequences() * seq_len; }
  /// Whether samples are seq_len tokens, and the targets the tokens that follow them.
  bool is_text() const {
    return format == DataFormat::text || format == DataFormat::tokens || (is_rows() && !is_labelled());
  }
  /// Whether a sample is a text with one target for all of it.
  bool is_labelled() const { return format == DataFormat::labelled; }
  bool has_val() const { return !std::holds_alternative<std::monostate>(val); }
};

struct BatchJob {
  std::int64_t global = 64;           ///< samples per step, all ranks
  std::optional<std::int64_t> micro;  ///< samples per micro-batch and data rank; none: auto
};

enum class OptimizerName : std::uint8_t { adamw, adam, sgd, lion, muon };
enum class Decay : std::uint8_t { matrices, all };
/// How an optimizer's states are kept: int8 in blocks of 256 with a scale each (kernels/state_codes.h).
enum class States : std::uint8_t { f32, bf16, int8 };
/// What an orthogonalized update of Muon is multiplied by: sqrt(max(1, rows / cols)), or 0.2 sqrt(max(rows, cols)),
/// with which it is about as large as one of AdamW.
enum class MuonAdjust : std::uint8_t { original, match_rms_adamw };

struct OptimizerJob {
  OptimizerName name = OptimizerName::adamw;
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};  ///< adamw, adam, lion
  double eps = 1e-8;                        ///< adamw, adam
  double momentum = 0;                      ///< sgd, muon
  bool nesterov = false;                    ///< sgd, muon
  double weight_decay = 0;                  ///< decoupled: lr · weight_decay · w
  Decay decay = Decay::matrices;            ///< matrices: parameters of two or more dims
  States states = States::f32;
  std::int64_t ns_steps = 5;                 ///< muon: of the Newton-Schulz iteration
  MuonAdjust adjust = MuonAdjust::original;  ///< muon
  std::vector<OptimizerJob> others{};        ///< muon: the one of what is not a matrix of a block
};

/// An optimizer for the parameters that one of the globs matches.
struct GroupJob {
  std::vector<std::string> match;
  OptimizerJob optimizer;
};

enum class ScheduleName : std::uint8_t { constant, linear, cosine, wsd };

struct LrScheduleJob {
  ScheduleName name = ScheduleName::cosine;
  std::int64_t warmup_steps = 0;
  double min_lr = 0;             ///< linear, cosine, wsd
  std::int64_t decay_steps = 0;  ///< wsd: the last so many steps fall linearly to min_lr
};

/// What happens at a loss or gradient that is not finite: the run stops and saves nothing; the update is left out; or
/// the run goes back to the last good checkpoint and leaves out the batches since.
enum class OnNan : std::uint8_t { stop, skip, rollback };

/// What a step makes smaller: the loss of the graph; or the one of direct preference optimization, with the model as it
/// starts for its reference (engine/transform/dpo.h).
enum class ObjectiveKind : std::uint8_t { automatic, dpo };

struct ObjectiveJob {
  ObjectiveKind kind = ObjectiveKind::automatic;
  double beta = 0.1;  ///< dpo
};

struct TrainJob {
  std::int64_t steps = 0;
  ObjectiveJob objective;
  BatchJob batch;
  OptimizerJob optimizer;
  std::vector<GroupJob> groups;  ///< a parameter takes the first that matches it, else `optimizer`
  LrScheduleJob lr_schedule;
  std::optional<double> clip_norm = 1.0;
  OnNan on_nan = OnNan::stop;
};

/// Questions whose answers an evaluation generates and compares.
struct GenerateJob {
  std::string file;              ///< rows with `prompt` and `answer`
  std::int64_t max_tokens = 64;  ///< of an answer
};

struct EvalJob {
  std::int64_t every = 250;   ///< steps
  std::int64_t batches = 20;  ///< global batches of one evaluation
  std::optional<GenerateJob> generate{};
};

/// loss_scale: none, a fixed factor, or dynamic: PyTorch's GradScaler between two bounds (kernels/optimizer.h).
struct LossScale {
  enum class Mode : std::uint8_t { none, fixed, dynamic } mode = Mode::none;
  double factor = 1;                    ///< fixed: the factor; dynamic: that of the first step
  double growth_factor = 2;             ///< dynamic, as all that follows: after growth_interval good steps in a row
  double backoff_factor = 0.5;          ///< after a step that overflowed
  std::int64_t growth_interval = 2000;  ///< steps
  double largest = 0x1p24, smallest = 1;
};

/// Of what the products of linears in blocks are made: of the compute dtype, or of fp8 (engine/core/fp8.h).
enum class MatmulPrecision : std::uint8_t { none, fp8 };

struct PrecisionJob {
  DType params = DType::f32;   ///< master weights
  DType compute = DType::f32;  ///< activations and working weights
  DType reduce = DType::f32;   ///< gradients of parameters and their reduction
  MatmulPrecision matmul = MatmulPrecision::none;
  LossScale loss_scale;
};

enum class CheckpointingMode : std::uint8_t { none, full, selective, every_n, automatic };

struct ActivationCheckpointingJob {
  CheckpointingMode mode = CheckpointingMode::none;
  std::int64_t every = 1;  ///< every_n: of so many consecutive blocks the first is recomputed
};

enum class Device : std::uint8_t { automatic, cpu, cuda };
enum class Backend : std::uint8_t { automatic, threads, mpi, nccl };

struct ClusterJob {
  Device device = Device::automatic;
  Backend backend = Backend::automatic;
  std::int64_t nodes = 1;
  std::optional<std::int64_t> devices_per_node;  ///< none: auto (one rank on a CPU)
  std::optional<std::string> hardware;           ///< name in configs/hardware/ or path; none: auto (this machine)
  std::optional<std::int64_t> memory_limit;      ///< bytes of a rank; lowers what the device has
  std::optional<double> price_per_device_hour;   ///< none: the hardware file's
};

enum class CheckpointFormat : std::uint8_t { full, sharded };

/// What `strategy: auto` makes least.
enum class Goal : std::uint8_t { time, memory, cost };

struct CheckpointJob {
  std::optional<std::string> dir;        ///< none: nothing is saved
  std::int64_t every = 500;              ///< steps
  std::optional<std::int64_t> keep = 2;  ///< newest so many; none: all
  bool keep_best = false;                ///< and the one with the lowest validation loss
  bool behind = true;                    ///< files are written while the next steps run, where memory allows it
  CheckpointFormat format = CheckpointFormat::full;
  enum class Resume : std::uint8_t { automatic, none, path } resume = Resume::automatic;
  std::string resume_from;  ///< Resume::path: a step directory
  std::vector<std::string>
      accept{};  ///< what may differ from the checkpoint's job that otherwise may not (engine/train/going_on.h)
};

struct LogJob {
  std::int64_t every = 10;  ///< steps between lines for people; log.jsonl gets every step
  std::optional<std::string> jsonl, tensorboard, trace;
};

struct Job {
  std::string name;  ///< default: the file's name without its suffix
  std::uint64_t seed = 1337;
  Goal goal = Goal::time;
  ModelJob model;
  TrainableJob trainable;
  std::optional<AdapterJob> adapter;
  DataJob data;
  TrainJob train;
  std::optional<EvalJob> eval;  ///< where data.val is, unless eval.every is null
  PrecisionJob precision;
  ActivationCheckpointingJob activation_checkpointing;
  StrategyJob strategy;
  ClusterJob cluster;
  CheckpointJob checkpoint;
  LogJob log;
};

ValueNames<AdapterKind> names_of(AdapterKind);
ValueNames<Quantization> names_of(Quantization);
ValueNames<DataFormat> names_of(DataFormat);
ValueNames<Tokenizer> names_of(Tokenizer);
ValueNames<TokenType> names_of(TokenType);
ValueNames<Normalize> names_of(Normalize);
ValueNames<TrainOn> names_of(TrainOn);
ValueNames<Packing> names_of(Packing);
ValueNames<TooLong> names_of(TooLong);
ValueNames<ObjectiveKind> names_of(ObjectiveKind);
ValueNames<OptimizerName> names_of(OptimizerName);
ValueNames<Decay> names_of(Decay);
ValueNames<States> names_of(States);
ValueNames<MuonAdjust> names_of(MuonAdjust);
ValueNames<ScheduleName> names_of(ScheduleName);
ValueNames<OnNan> names_of(OnNan);
ValueNames<MatmulPrecision> names_of(MatmulPrecision);
ValueNames<CheckpointingMode> names_of(CheckpointingMode);
ValueNames<Device> names_of(Device);
ValueNames<Backend> names_of(Backend);
ValueNames<CheckpointFormat> names_of(CheckpointFormat);
ValueNames<Goal> names_of(Goal);

/// One value of the effective job and where it came from.
struct Setting {
  enum class From : std::uint8_t {
    file,
    command_line,
    profile,
    folder,
    otherwise
  };                  ///< folder: a model folder's config.json, or an adapter's adapter_config.json;
                      ///< otherwise: the default
  std::string path;   ///< "train.optimizer.lr"
  std::string value;  ///< as YAML, on one line
  From from = From::otherwise;
  int line = 0, column = 0;  ///< of the file, or of the override's value

  /// "job.yaml:12", "command line", "profile", "config.json:12", "default".
  std::string origin(const std::string& file) const;
};

struct LoadedJob {
  std::string file;  ///< the path as given
  Job job;
  yaml::Node tree;                     ///< the file with the overrides applied
  std::vector<Setting> settings;       ///< every value that has an effect, in the order of the table
  std::vector<Diagnostic> warnings{};  ///< what is allowed and seldom meant (engine/compile/check_job.h)

  /// The setting at exactly `path`, or null.
  const Setting* setting(std::string_view path) const;
  /// A mistake about the value at `path`, located where that value stands: at it, at the nearest section around it that
  /// the file has, or at the file's start.
  Diagnostic at(std::string_view path, std::string message, std::string allowed = "") const;
};

struct LoadOptions {
  std::string configs_dir;  ///< where graph files are looked for after the job's own folder; empty: nowhere
  bool check_files = true;  ///< whether a model.graph that does not exist is a mistake
  bool bf16 = false;        ///< whether this machine's processor computes in bf16: the default of model folders
  int world_size = 0;  ///< ranks that a launcher started: `cluster.devices_per_node: auto` becomes its share of a node;
                       ///< 0: no launcher
};

/// A job as far as it can be read: what `load_job` goes through, with the mistakes beside it. Sections with a mistake
/// have their defaults in `loaded.job`; the rest is complete. Whether later stages can be asked about a part is said by
/// the flags.
struct ReadJob {
  LoadedJob loaded;
  std::vector<Diagnostic> mistakes;
  bool graph = false;    ///< model.graph is there
  bool params = false;   ///< so is all of model.with
  bool samples = false;  ///< format, tokenizer and length of the samples are as the job says
  bool cluster = false;  ///< so are cluster, precision and goal
  bool batch = false;    ///< and train.batch and the strategy
};

/// `path` may be a model folder (engine/job/folder_job.h): relative paths are then those of the working directory.
/// Throws IoError if the file cannot be read, UsageError for an override without `=`, JobError where there is no tree
/// at all.
ReadJob read_job(const std::string& path, const std::vector<std::string>& overrides = {},
                 const LoadOptions& options = {});

/// Reads a job file and applies overrides ("train.optimizer.lr=1e-3"; the value is YAML in flow style). Throws JobError
/// with every mistake, in the order of lines; IoError if the file cannot be read; UsageError for an override without
/// `=`.
LoadedJob load_job(const std::string& path, const std::vector<std::string>& overrides = {},
                   const LoadOptions& options = {});

/// The same from a text; `path` names it and gives the folder of relative paths.
LoadedJob parse_job(std::string text, const std::string& path, const std::vector<std::string>& overrides = {},
                    const LoadOptions& options = {});

/// The same from a text, whose relative paths are those of `path`'s folder.
ReadJob read_job_text(std::string text, const std::string& path, const std::vector<std::string>& overrides = {},
                      const LoadOptions& options = {});

/// The tree of the job's graph: of its file, or the inline one. Throws IoError, JobError.
yaml::Node graph_tree(const LoadedJob& loaded);

/// The whole job as YAML with a comment at each value that says where it came from. A job itself: reads back to the
/// same.
std::string effective_job(const LoadedJob& loaded);

/// The JSON Schema (draft-07) of jobs, pretty-printed: schemas/job.schema.json.
std::string job_schema();

}  // namespace trainer
