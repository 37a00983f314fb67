// Model families: what `config.json` of a model folder (Hugging Face's layout) means. A family is a file,
// configs/families/<model_type>.yaml, and no code: which graph file the model is, how keys of config.json become the
// graph's params, which values the graph needs, which keys do not matter, how tensors are called in the folder's files.
//
//   base: common/decoder.yaml      # its keys, sections … are here too; what stands here replaces them
//   graph: models/decoder.yaml
//   architectures: [LlamaForCausalLM]
//   data: tensors                  # the format of the data of a job that the folder is; tokens where it is left out
//   part: text_config              # the model is a section of config.json; keys beside it are `ignore`d (/key: only
//                                  # there) or mistakes
//   sections: {rope: [rope_scaling, rope_parameters]}   # the first that is there is called `rope`
//   counts: {labels: id2label}     # names for the number of entries of a section; null where it is left out
//   keys: {hidden_size: 4096, rope.factor: null}        # all that are read, and their values where they are left out
//   ignore: [use_cache, id2label]                       # keys (sections with all that is in them) that do not matter
//   require: {hidden_act: [silu]}                       # other values are mistakes
//   not_applied: {attn_pdrop: 0}                        # other values have no effect, which is a warning
//   options: {mtp: false}                               # what a job's model.with may set for the expressions below
//   let: {kv: num_key_value_heads ?? num_attention_heads}   # names for the expressions below; `architecture` is one
//   refuse: {kv > 8: why}                                   # mistakes, where the expression holds
//   warn: {kv > 8: what becomes of it}                      # likewise
//   with: {heads: num_attention_heads, kv_heads: kv}        # params of the graph (engine/job/expression.h)
//   longest: max_position_embeddings                        # positions that the model knows
//   tensors: {prefixes: [transformer.], transposed: ["*.c_attn.weight"], renamed: {.gamma: .weight},
//             in_files: {.experts.up_proj.weight: ".experts.{}.up_proj.weight"}, ignore: ["*.inv_freq"], ignore_if:
//             {tie_word_embeddings: [lm_head.weight]}, copies_if: {mtp: {head.copy.weight: lm_head.weight}},
//             tell: {mtp: head.copy.weight}}              # an option that holds where the files have that tensor
//
//   gguf: {architecture: llama, …}                          # what `export` makes of it (engine/export/gguf_mapping.h)
//
// A key of config.json that is in none of these lists is a mistake at its line.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/disk_names.h"
#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/job/expression.h"
#include "engine/job/yaml.h"

namespace trainer {

/// Pairs of a mapping, in its order.
using FamilyEntries = std::vector<std::pair<std::string, yaml::Node>>;
/// Adds those of `mapping`, which may be null: a key that is there already gets the new value at its old place.
void lay_over(FamilyEntries& entries, const yaml::Node* mapping);

/// A model folder, understood.
struct ModelFolder {
  std::string path;                           ///< of the folder
  std::string family;                         ///< "llama"
  std::string graph;                          ///< path of the graph file
  Variables with;                             ///< the graph's params
  std::map<std::string, yaml::Node> origins;  ///< of those, what config.json says of them; none where it is left out
  DiskNames names;
  bool tensors = false;                     ///< its data are tensors, not tokens
  std::map<std::string, std::string> told;  ///< options, each with the tensor whose presence in files tells it
  std::string part;                         ///< the section of config.json that is the model; empty: all of it
  Variables variables;                      ///< what the family's expressions read: keys with their defaults, and `let`
  std::optional<std::int64_t> longest;      ///< positions that the model knows
  std::optional<DType> dtype;               ///< of its weights, as config.json has it
  std::vector<Diagnostic> warnings;
};

/// Whether it is a folder with a config.json.
bool is_model_folder(const std::string& path);

/// Reads its config.json by the family file in `configs_dir`/families; of `with`, a job's params, it takes the family's
/// options. Throws JobError with every mistake, at its place in config.json; IoError where a file cannot be read.
ModelFolder read_model_folder(const std::string& path, const std::string& configs_dir, const Variables& with = {});

/// Names of the families in `configs_dir`, sorted.
std::vector<std::string> family_names(const std::string& configs_dir);

}  // namespace trainer
