// GgufMapping: what a family is as GGUF, read from the section `gguf` of its file (configs/families) and evaluated with
// its config.json. Expressions read keys of config.json, `let` of the family and of the section, and the graph's
// params.
//
//   gguf:
//     architecture: llama
//     let: {rot: head_dim * rope_partial}
//     integers: {block_count: layers}                  # keys behind "<architecture>."; null: the key is left out
//     floats: {rope.freq_base: rope_theta}
//     words: {rope.scaling.type: "if yarn then 'yarn' else null"}
//     flags: {attention.sliding_window_pattern: "each(i, layers, window[i] > 0)"}
//     tensors: {rope_freqs.weight: factors}            # lists of f32 that are tensors there
//     names: {model.layers.{}.mlp.up_proj: blk.{}.ffn_up}   # of the graph's nodes; {} is a number
//     pairs: {model.layers.{}.self_attn.q_proj: heads} # rows of each head go from two halves to pairs of neighbours
//
//     plus_one: [model.norm]                           # weights that count from 1 here
//
//     f32: [wpe]                                       # never rounded
//
//     refuse: {"post_norms": "why"}                    # where true: the model would compute something else there
//
//     warn: {"window > 0": "what is lost"}
//
// Sources: docs/gguf.md of ggml; names and keys: gguf-py's constants.py and llama.cpp's src/models of 2026.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/export/gguf_format.h"
#include "engine/job/family.h"

namespace trainer::exporting {

/// How a parameter of the graph is called and lies in the file.
struct GgufPlace {
  std::string name;
  std::int64_t pair_heads = 0;  ///< heads whose rows become pairs; 0: rows stay
  float add = 0;
  bool f32 = false;
};

class GgufMapping {
 public:
  /// Raises DataError where the family cannot be GGUF, or this model of it.
  GgufMapping(const ModelFolder& folder, const std::string& configs_dir);

  const std::string& architecture() const { return architecture_; }
  const std::vector<GgufKey>& keys() const { return keys_; }
  /// Tensors that the graph does not have, by name.
  const std::map<std::string, std::vector<float>>& tensors() const { return tensors_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Of a parameter of the graph. Raises DataError where GGUF has no name for it.
  GgufPlace place(const std::string& parameter) const;

 private:
  struct Section;
  std::string architecture_, family_;
  std::vector<GgufKey> keys_;
  std::map<std::string, std::vector<float>> tensors_;
  std::vector<std::string> warnings_;
  std::vector<std::pair<std::string, std::string>> names_;  // patterns
  std::map<std::string, std::int64_t> pairs_;               // by pattern
  std::vector<std::string> plus_one_, f32_;                 // patterns
};

}  // namespace trainer::exporting
