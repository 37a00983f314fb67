// Mixed jobs: a line of words is a job, such as "gpt r8 zero1 t2 sp p2 zb_h1 m4 clip full drop". Tests of what
// strategies have in common go over tables of such lines; a line that fails says all there is to know.
//
//   gpt llama packed mlp       the model: GPT-2 with tied head; Llama with grouped heads; grouped heads in one packed
//                              linear, label smoothing and no marks of parallelism; rows of a table
//   pieces                     as packed, with products that are split by name and two embeddings that are joined
//   heads                      as Gemma: norms of heads, softcap, window, scaled rotary positions
//   token                      a place of its own before those of each sample
//   r2 r4 r8                   ranks; t2 t4 of them along tensor (sp: sequence parallel), p2 p4 along pipeline, the
//                              rest along data
//   ddp zero1 … full_shard …   data strategy; hybrid2 hybrid4 are hybrid_shard with so many replicas
//   secondary2 shards          so many ranks share a secondary copy; sequence parallelism keeps shards
//   pairs                      micro-batches go in pairs, so that tensor collectives overlap with products
//   gpipe 1f1b …               schedule; v2: virtual stages; split:uniform, split:names
//   m2 m4 m8                   micro-batches of a data rank
//   keep:… reduce:… prefetch:… wrap:transformer|size|names|none
//   clip drop ignore           clipping that bites, dropout, targets that are ignored, in unequal numbers on the ranks
//   full selective every_2     recomputation
//   lora lora_drop             an adapter of rank 3 whose B begins away from zero, beside a base; of dropout 0.1
//   dora                       beside lora: it trains magnitudes, which begin above the norms of the rows
//   norms part                 trained are norms (of mlp the head) only; the last quarter of the blocks and what
//                              follows them
//   muon groups                Muon for matrices of blocks and AdamW; SGD, AdamW of two rates, Muon and what it leaves
//                              to others
//   bf16 excluded sharded      compute dtype, norms (or the head) in f32 under it, format of checkpoints
#pragma once

#include <string>
#include <vector>

#include "tests/train/tiny_jobs.h"

namespace trainer::tests {

inline constexpr int kMixedSteps = 10;

/// The table: more than 120 lines in which every two words meet that can.
const std::vector<std::string>& mixed_jobs();
/// Lines of models over sequences, which are cut over ranks.
const std::vector<std::string>& context_jobs();
/// The same, round rings.
const std::vector<std::string>& ring_jobs();
/// Lines that freeze parameters.
const std::vector<std::string>& frozen_jobs();
/// Lines of models whose values are split, joined, repeated for samples, transposed and sliced.
const std::vector<std::string>& piece_jobs();
/// Lines of a model with norms of heads, and what else decoders have.
const std::vector<std::string>& head_jobs();
/// Lines with secondary copies of weights, and of what keeps shards.
const std::vector<std::string>& secondary_jobs();
const std::vector<std::string>& shard_jobs();
/// Lines of micro-batches in pairs.
const std::vector<std::string>& pair_jobs();
/// Lines of Muon, and of several optimizers.
const std::vector<std::string>& muon_jobs();

class MixedJobs {
 public:
  MixedJobs();
  /// The job of a line; its checkpoints go to the folder `run`.
  LoadedJob load(const std::string& line, const std::string& run, const Overrides& more = {}) const;
  std::string path(const std::string& name) const { return jobs_.path(name); }

 private:
  /// The base `<model>.base` and the first values `<model>.start.safetensors` of an adapter.
  void make_adapter(const std::string& model, const std::string& kind) const;

  TinyJobs jobs_;
};

std::vector<std::string> words_of(const std::string& line);
bool has_word(const std::string& line, const std::string& word);
/// The line without its words of parallelism, accumulation and recomputation: the same training on one rank.
std::string alone(const std::string& line);

}  // namespace trainer::tests
