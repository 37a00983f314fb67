// The models and data of mixed jobs, and what each word stands for.
#include "tests/train/mixed_jobs.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <stdexcept>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/core/random.h"
#include "engine/job/pipeline_schedules.h"

namespace trainer::tests {
namespace {

const std::vector<std::string> kJobs{
    "gpt r8 zero3 t2 sp p2 1f1b m4 wrap:transformer clip full drop bf16 excluded",
    "packed r8 hybrid2 t2 m2 keep:pass prefetch:3 wrap:size ignore bf16 excluded sharded",
    "llama r4 zero1 p4 zb_h1 m4 wrap:none selective bf16 excluded",
    "mlp r4 zero2 m2 wrap:names clip every_2 drop bf16 excluded",
    "packed r8 zero3 t2 p2 1f1b split:uniform m2 reduce:step wrap:size selective drop",
    "gpt r8 shard_grad_op t2 sp p2 zb_h1 split:names m8 keep:pass prefetch:3 wrap:none clip every_2 sharded",
    "packed r4 full_shard p4 zb_h2 m4 keep:step reduce:micro_batch prefetch:0 wrap:none clip every_2 ignore bf16",
    "gpt r4 shard_grad_op t2 p2 interleaved v2 m2 keep:pass reduce:micro_batch prefetch:0 wrap:size full ignore bf16",
    "mlp r8 full_shard t2 p2 interleaved v2 split:uniform m4 prefetch:3 wrap:names drop bf16 sharded",
    "gpt r8 shard_grad_op t4 sp p2 zb_v m4 keep:step full drop ignore bf16",
    "mlp r8 zero3 p4 zb_h1 m8 reduce:step prefetch:0 wrap:transformer clip bf16",
    "llama r4 full_shard p2 zb_v split:names m2 keep:use wrap:transformer clip every_2 sharded",
    "packed r2 full_shard p2 gpipe m4 keep:use reduce:micro_batch prefetch:3 selective ignore sharded",
    "packed r8 full_shard t4 p2 zb_h1 split:uniform m1 keep:step reduce:micro_batch prefetch:0 clip",
    "packed r8 zero2 p4 looped_bfs v1 split:names m8 wrap:size clip full drop sharded",
    "llama r8 full_shard t2 p4 zb_v split:uniform m4 keep:pass reduce:step prefetch:3 wrap:none selective",
    "gpt r4 ddp t2 sp p2 looped_bfs v1 split:names m4 wrap:names clip every_2 ignore bf16",
    "packed r8 zero3 t2 sp p4 1f1b split:names m4 keep:use reduce:micro_batch prefetch:0 clip selective ignore bf16 "
    "sharded",
    "gpt r4 shard_grad_op p4 zb_h2 split:uniform m8 keep:step reduce:step prefetch:3 wrap:names selective sharded",
    "mlp r8 ddp t4 p2 gpipe split:names m8 wrap:none clip drop",
    "gpt r8 hybrid2 p2 zb_h2 split:names m4 keep:use reduce:micro_batch bf16 sharded",
    "gpt r8 zero3 t4 sp p2 zb_h1 split:names m2 reduce:step prefetch:3 wrap:transformer every_2 drop ignore bf16 "
    "sharded",
    "mlp r2 zero3 p2 looped_bfs v2 split:uniform m8 keep:use wrap:transformer clip full drop bf16",
    "packed r8 zero1 t2 sp p2 zb_v split:uniform m4 wrap:names clip ignore sharded",
    "mlp r4 no_shard t4 sp m1 wrap:size bf16 sharded",
    "gpt r8 no_shard t2 p2 interleaved v2 split:names m8 wrap:transformer clip every_2 drop sharded",
    "llama r8 zero3 t2 p2 zb_h2 split:names m2 keep:step reduce:micro_batch prefetch:0 wrap:names full bf16 sharded",
    "packed r8 full_shard p4 gpipe m1 keep:pass reduce:step prefetch:3 wrap:names clip every_2 drop bf16 sharded",
    "llama r4 ddp p4 1f1b m1 clip selective bf16 sharded",
    "packed r8 hybrid4 m1 wrap:names selective drop ignore bf16 sharded",
    "mlp r8 hybrid2 p2 1f1b split:uniform m4 prefetch:3 clip every_2 bf16",
    "gpt r2 zero1 t2 m1 wrap:transformer clip every_2 drop bf16 sharded",
    "packed r8 hybrid2 p2 interleaved v2 split:uniform m2 keep:step reduce:micro_batch wrap:transformer selective drop",
    "packed r2 shard_grad_op p2 looped_bfs v1 m4 keep:step prefetch:0 wrap:none sharded",
    "mlp r8 shard_grad_op t4 p2 1f1b split:names m4 keep:pass reduce:micro_batch wrap:transformer clip bf16",
    "gpt r8 zero2 t2 sp p2 zb_h2 split:uniform m2 drop ignore",
    "llama r8 full_shard t2 sp p2 looped_bfs v2 split:uniform m4 reduce:step prefetch:3 wrap:size full bf16 sharded",
    "mlp r8 no_shard t2 p4 looped_bfs v1 split:names m4 clip selective drop",
    "llama r4 zero1 p4 1f1b split:names m4 wrap:none full bf16 sharded",
    "packed r8 hybrid2 t2 m1 keep:use reduce:step prefetch:0 wrap:none every_2 drop",
    "mlp r8 zero2 t2 p2 gpipe split:names m1 wrap:transformer clip every_2 bf16",
    "llama r2 no_shard p2 interleaved v2 split:names m2 wrap:size full sharded",
    "packed r2 ddp p2 zb_v split:names m8 wrap:size every_2 bf16 sharded",
    "mlp r2 zero1 p2 gpipe m2 wrap:size clip bf16",
    "llama r8 shard_grad_op t4 p2 zb_h2 split:names m2 keep:use wrap:size clip",
    "mlp r4 zero3 t2 sp p2 gpipe m8 keep:step prefetch:3 wrap:none full drop",
    "packed r4 zero2 t2 sp p2 interleaved v2 split:uniform m4 wrap:none selective bf16 sharded",
    "gpt r8 hybrid4 m1 keep:pass reduce:step wrap:names clip full",
    "gpt r4 ddp t2 sp p2 zb_h1 split:uniform m4 wrap:transformer full drop ignore bf16 sharded",
    "llama r2 zero3 p2 looped_bfs v2 split:names m8 keep:pass reduce:micro_batch prefetch:0 wrap:names clip every_2",
    "llama r8 hybrid2 p2 gpipe split:uniform m4 keep:pass reduce:step prefetch:0 wrap:size clip every_2 bf16",
    "gpt r8 shard_grad_op p4 zb_h1 m8 keep:use clip every_2 drop",
    "packed r8 no_shard t4 p2 zb_h1 m8 wrap:names clip selective drop bf16",
    "mlp r4 shard_grad_op m2 reduce:micro_batch wrap:none clip selective",
    "mlp r8 hybrid4 m1 keep:step reduce:micro_batch prefetch:3 wrap:transformer sharded",
    "llama r8 zero2 t2 p2 1f1b m8 wrap:names every_2",
    "packed r2 full_shard t2 sp m4 reduce:step drop sharded",
    "packed r4 no_shard t2 p2 gpipe split:uniform m8 wrap:none selective drop ignore",
    "mlp r4 ddp p4 zb_h2 split:names m2 clip every_2 bf16",
    "llama r8 zero1 t4 sp p2 interleaved v2 split:names m8 wrap:transformer clip selective bf16",
    "gpt r8 full_shard p4 interleaved v2 m8 keep:step reduce:step every_2 ignore bf16 sharded",
    "mlp r8 hybrid2 p2 zb_v m4 keep:use reduce:micro_batch prefetch:0 wrap:names clip every_2",
    "llama r8 zero1 p2 zb_h1 m4 every_2 sharded",
    "gpt r8 ddp p4 interleaved v2 m1 wrap:size drop bf16 sharded",
    "packed r8 zero3 t2 sp p2 zb_v m1 keep:use reduce:micro_batch prefetch:3 wrap:none drop bf16 sharded",
    "gpt r8 shard_grad_op p2 gpipe split:names m4 reduce:step prefetch:0 wrap:names",
    "packed r2 zero3 p2 zb_h2 m4 keep:pass reduce:step clip every_2 sharded",
    "gpt r8 hybrid4 m1 keep:use reduce:step prefetch:0 wrap:none clip every_2 ignore bf16",
    "gpt r8 no_shard t2 sp p2 1f1b m8 wrap:size clip sharded",
    "packed r4 hybrid2 m2 reduce:micro_batch prefetch:0 wrap:transformer full ignore sharded",
    "mlp r8 zero2 t2 sp p2 zb_h1 m4 wrap:size selective drop",
    "packed r8 zero1 t4 sp p2 looped_bfs v1 m8 wrap:none clip every_2 drop ignore",
    "mlp r8 full_shard p2 1f1b split:uniform m4 keep:step reduce:step prefetch:3 wrap:size drop",
    "mlp r4 zero1 t2 p2 zb_h2 split:names m4 wrap:transformer clip full drop sharded",
    "gpt r8 hybrid4 m2 keep:use reduce:micro_batch full ignore sharded",
    "llama r8 hybrid4 m2 reduce:micro_batch wrap:size clip bf16",
    "packed r8 zero3 t2 p2 interleaved v2 m8 keep:use reduce:step prefetch:0 every_2 sharded",
    "packed r2 ddp p2 1f1b split:uniform m4 wrap:none full drop ignore sharded",
    "mlp r2 zero2 m8 wrap:transformer clip selective bf16",
    "mlp r8 shard_grad_op p2 gpipe m1 keep:use reduce:step wrap:transformer drop sharded",
    "llama r8 no_shard p4 zb_h2 split:uniform m1 selective sharded",
    "gpt r8 no_shard t2 sp p2 zb_v split:names m4 wrap:transformer clip every_2 ignore sharded",
    "llama r8 hybrid2 p2 looped_bfs v1 split:names m2 keep:step reduce:step prefetch:0 wrap:size clip every_2 bf16 "
    "sharded",
    "gpt r4 zero3 p4 zb_v m4 prefetch:3 wrap:names ignore sharded",
    "gpt r4 zero1 p2 dualpipe_v m4 clip ignore",
    "llama r4 ddp p4 dualpipe_v m8 selective sharded",
    "mlp r4 full_shard p2 dualpipe_v m2 bf16",
    "packed r4 ddp p2 dualpipe_v m4 full",
    "gpt r2 ddp p2 dualpipe_v m4 every_2",
    "mlp r8 zero2 t2 p2 zb_v m4 wrap:none clip selective bf16",
    "mlp r8 zero2 t4 m1 wrap:names sharded",
    "gpt r8 hybrid2 p2 zb_h2 m2 wrap:transformer every_2 drop bf16 sharded",
    "packed r2 zero3 p2 zb_h1 split:uniform m8 keep:use prefetch:3 wrap:size clip every_2 ignore",
    "mlp r8 hybrid2 t2 sp m1 keep:use wrap:size clip full drop bf16 sharded",
    "llama r4 zero2 p2 interleaved v2 split:uniform m8 wrap:names clip every_2 sharded",
    "llama r8 no_shard t2 sp p2 interleaved v2 split:uniform m4 clip full sharded",
    "llama r8 no_shard m1 wrap:none clip full bf16 sharded",
    "packed r8 shard_grad_op t2 p2 zb_h2 split:names m4 keep:use reduce:micro_batch prefetch:0 wrap:names full drop "
    "ignore sharded",
    "llama r4 ddp p2 zb_v m4 wrap:transformer full bf16",
    "packed r2 zero2 p2 interleaved v2 split:uniform m2 wrap:none ignore",
    "packed r2 no_shard m2 wrap:transformer every_2 drop ignore",
    "gpt r4 full_shard t2 m4 keep:pass wrap:size clip full drop sharded",
    "llama r8 zero1 p4 zb_v m8 wrap:size every_2 sharded",
    "gpt r2 shard_grad_op m4 keep:step prefetch:3 full drop",
    "gpt r8 full_shard t2 sp p2 looped_bfs v2 split:names m1 keep:step wrap:names drop sharded",
    "llama r8 shard_grad_op p2 interleaved v2 m4 keep:pass prefetch:3 wrap:none clip full bf16",
    "gpt r4 ddp t4 m2 wrap:transformer clip drop ignore bf16",
    "mlp r8 full_shard p4 1f1b split:uniform m4 reduce:micro_batch wrap:none sharded",
    "mlp r8 hybrid2 p2 zb_h1 split:names m4 keep:use reduce:micro_batch wrap:none clip full sharded",
    "llama r4 shard_grad_op t2 sp m1 keep:step prefetch:3 wrap:transformer clip every_2 sharded",
    "llama r8 ddp t2 sp p4 interleaved v2 m2 clip every_2 sharded",
    "gpt r4 no_shard t2 sp m2 wrap:none",
    "mlp r4 ddp p4 zb_h1 split:uniform m4 wrap:size drop bf16",
    "mlp r4 full_shard m2 keep:step reduce:step clip full drop",
    "llama r8 full_shard t2 m4 keep:use wrap:names full sharded",
    "packed r4 ddp t4 m8 wrap:names clip full drop sharded",
    "mlp r8 no_shard t4 m4 wrap:size clip bf16",
    "mlp r4 ddp t2 sp p2 zb_h2 split:names m4 wrap:size clip full bf16 sharded",
    "mlp r4 zero1 t2 m2 wrap:names clip full drop",
    "gpt r4 full_shard m1 keep:pass wrap:size clip full bf16",
    "packed r8 no_shard p4 zb_h2 split:names m4 wrap:transformer clip ignore",
    "packed r8 zero1 t2 m1 clip every_2 drop ignore sharded",
    "gpt r8 zero2 m2 clip every_2 ignore bf16 sharded",
    "packed r2 no_shard m8 wrap:size selective ignore sharded",
    "gpt r8 full_shard t2 m1 reduce:step wrap:size clip drop ignore sharded",
    "mlp r4 ddp t2 sp p2 zb_h1 split:uniform m2 wrap:names drop sharded",
    "mlp r4 ddp t2 p2 looped_bfs v2 m4 clip drop bf16 sharded",
    "gpt r8 ddp m2 wrap:none every_2 drop sharded",
    "packed r8 full_shard t2 p2 looped_bfs v1 split:uniform m8 keep:pass reduce:micro_batch wrap:names drop bf16 "
    "sharded",
    "mlp r4 ddp t2 sp m1 wrap:size full drop sharded",
    "mlp r4 ddp m4 wrap:transformer clip every_2 drop sharded",
    "llama r8 full_shard t2 p4 zb_h2 split:names m4 keep:step prefetch:3 wrap:none",
    "mlp r8 zero2 t2 sp p2 1f1b split:names m4 wrap:names clip every_2",
    "gpt r8 ddp t2 sp p2 zb_h2 m4 wrap:size every_2 ignore sharded",
    "llama r8 zero1 t2 sp p2 interleaved v2 m4 wrap:names clip bf16 sharded",
    "gpt r4 zero2 p2 1f1b m8 wrap:names full drop ignore bf16 sharded",
    "gpt r2 ddp t2 m2 clip every_2 drop ignore sharded",
    "mlp r8 ddp t4 p2 zb_v split:uniform m4 wrap:names clip full",
    "mlp r8 ddp p2 1f1b split:uniform m4 wrap:transformer",
    "packed r2 zero3 p2 zb_h1 split:uniform m8 keep:step prefetch:0 every_2",
    "gpt r4 no_shard p2 1f1b split:uniform m8 wrap:none ignore",
};

// Matrices of blocks under Muon, in ways that one rank, several slices and pieces of matrices meet; and five optimizers
// at once.
const std::vector<std::string> kMuonJobs{
    "gpt r2 ddp m2 muon clip",
    "packed r2 zero1 m2 muon clip every_2",
    "llama r4 zero2 m2 muon wrap:size",
    "gpt r4 zero3 m2 muon wrap:transformer clip full drop",
    "packed r4 full_shard m4 keep:use reduce:micro_batch prefetch:3 muon sharded",
    "llama r8 hybrid2 m2 keep:pass muon clip",
    "mlp r4 shard_grad_op m2 muon wrap:none clip",
    "gpt r4 ddp t4 m2 muon ignore",
    "packed r4 ddp t2 sp m2 muon clip",
    "llama r4 zero1 t2 sp m2 muon clip selective sharded",
    "packed r8 zero3 t2 m2 muon wrap:names",
    "mlp r8 full_shard t4 sp m1 muon wrap:transformer clip bf16",
    "gpt r2 ddp p2 1f1b m4 muon clip",
    "llama r4 zero2 p2 zb_h1 m4 muon",
    "packed r8 zero1 t2 p2 interleaved v2 m4 muon clip drop",
    "gpt r4 zero1 c2 m2 muon clip",
    "llama r8 full_shard c2 t2 sp m2 muon",
    "packed r2 ddp m2 groups clip",
    "llama r4 zero1 t2 m2 groups sharded",
    "gpt r8 full_shard t2 sp p2 1f1b m4 groups clip",
    "packed r4 zero3 c2 m2 groups wrap:transformer",
    "llama r4 zero2 lora muon m2",
};

// Sequences of 8 over 2 or 4 ranks.
const std::vector<std::string> kContextJobs{
    "gpt r2 ddp c2 m2 clip drop",
    "packed r2 ddp c2 m4 full drop ignore sharded",
    "llama r4 ddp c4 m2 clip",
    "llama r4 zero1 c2 m2 selective bf16 sharded",
    "gpt r4 zero2 c2 m4 clip every_2 drop ignore",
    "packed r4 zero3 c2 m2 clip full",
    "gpt r4 full_shard c4 m4 keep:use wrap:transformer drop sharded",
    "llama r8 hybrid2 c2 m2 keep:pass reduce:micro_batch prefetch:3 clip bf16",
    "packed r4 ddp t2 c2 m2 clip",
    "llama r8 zero1 t2 sp c2 m2 clip sharded",
    "gpt r8 full_shard t2 sp c2 m2 reduce:step wrap:size clip selective",
    "llama r4 ddp c2 p2 1f1b m4 clip",
    "gpt r8 zero2 c2 p2 zb_h1 split:uniform m4 drop ignore bf16",
    "packed r8 zero3 c2 t2 p2 interleaved v2 m2 wrap:transformer clip every_2",
};

// Keys and values travel round a ring, zigzag.
const std::vector<std::string> kRingJobs{
    "gpt r2 ddp c2 ring m2 clip drop",
    "llama r2 ddp c2 ring m2 clip",
    "packed r2 ddp c2 ring m4 full drop ignore sharded",
    "llama r4 ddp c4 ring m2 clip",
    "gpt r4 ddp c4 ring m4 clip every_2",
    "llama r4 zero1 c2 ring m2 selective bf16 sharded",
    "gpt r4 zero2 c2 ring m4 clip every_2 drop ignore",
    "packed r4 zero3 c2 ring m2 clip full",
    "gpt r4 full_shard c4 ring m4 keep:use wrap:transformer drop sharded",
    "llama r8 hybrid2 c2 ring m2 keep:pass reduce:micro_batch prefetch:3 clip bf16",
    "packed r4 ddp t2 c2 ring m2 clip",
    "llama r8 zero1 t2 c4 ring m2 clip sharded",
    "gpt r8 full_shard t2 sp c2 ring m2 reduce:step wrap:size clip selective",
    "llama r4 ddp c2 p2 ring 1f1b m4 clip",
    "gpt r8 zero2 c2 p2 ring zb_h1 split:uniform m4 drop ignore bf16",
    "packed r8 zero3 c2 t2 p2 ring interleaved v2 m2 wrap:transformer clip every_2",
    "llama r4 zero1 c2 ring lora norms m2 bf16",
};

// The first stages of pipelines may have nothing that is trained.
const std::vector<std::string> kFrozenJobs{
    "gpt r2 ddp lora m2 clip",
    "llama r4 ddp t2 sp lora m2 clip",
    "packed r2 ddp t2 lora lora_drop m4",
    "gpt r4 zero1 t2 lora m2 clip full",
    "llama r2 zero1 lora norms m2 wrap:none sharded",
    "packed r4 zero2 lora m2 clip selective wrap:size",
    "gpt r4 zero2 p2 1f1b lora m4 clip drop",
    "llama r4 full_shard lora m2 clip wrap:transformer",
    "gpt r8 full_shard t2 sp lora m2 keep:use prefetch:3 sharded",
    "packed r4 zero3 lora norms m2 reduce:step keep:pass full",
    "mlp r4 shard_grad_op lora m2 clip every_2",
    "llama r4 hybrid2 lora m2 keep:use clip bf16",
    "gpt r2 ddp p2 zb_h1 lora m4 clip",
    "packed r4 ddp p2 t2 interleaved v2 lora m4 clip",
    "llama r4 ddp c2 lora m2 clip",
    "llama r4 zero1 c2 lora norms m2 bf16",
    "packed r4 zero2 c2 lora lora_drop m2",
    "gpt r8 zero3 c2 t2 sp lora m2",
    "llama r8 full_shard p2 t2 1f1b lora m2 clip bf16 sharded",
    "gpt r2 ddp lora dora m2 clip",
    "gpt r4 zero1 t2 lora dora m2 clip full",
    "llama r4 ddp t2 sp lora dora m2 clip",
    "packed r4 zero2 t2 lora lora_drop dora m4",
    "llama r4 full_shard lora dora m2 clip wrap:transformer",
    "gpt r2 ddp p2 zb_h1 lora dora m4 clip sharded",
    "llama r4 zero1 c2 lora dora norms m2 bf16",
    "gpt r2 ddp part m2 clip",
    "packed r4 zero1 p2 1f1b part m4 clip",
    "gpt r4 ddp p4 zb_h2 part m4 clip",
    "llama r4 zero3 part m2 wrap:transformer selective",
    "packed r4 full_shard t2 part m2 sharded",
    "llama r4 zero2 t2 sp norms m2 clip",
    "mlp r4 zero1 p2 zb_v norms m4 drop",
    "gpt r4 zero1 c2 norms m2",
    "packed r4 shard_grad_op p2 looped_bfs v2 norms m4 keep:step bf16",
};

// A step's first gather of a unit is over all data ranks, the others are among those that share a secondary copy.
const std::vector<std::string> kSecondaryJobs{
    "gpt r4 zero3 secondary2 m2 clip drop ignore",
    "llama r8 full_shard secondary4 m2 wrap:transformer prefetch:0 clip",
    "llama r8 full_shard secondary2 m1 prefetch:3 reduce:step bf16 sharded",
    "packed r8 zero3 secondary2 t2 m2 clip selective",
    "packed r8 full_shard secondary2 t2 sp m2 bf16 drop",
    "mlp r4 full_shard secondary2 m4 wrap:none",
    "mlp r8 zero3 secondary4 m2 wrap:names every_2 excluded bf16",
    "gpt r8 full_shard secondary4 c2 m2 clip",
    "llama r8 zero3 secondary2 c2 m2 full sharded",
    "gpt r8 full_shard secondary2 p2 1f1b m4 clip drop",
    "llama r8 zero3 secondary2 p2 zb_h1 m4 wrap:transformer",
    "packed r8 full_shard secondary2 p2 interleaved v2 m4 bf16 ignore",
    "mlp r8 zero3 secondary2 p2 zb_v m4 keep:use",
    "gpt r8 full_shard secondary2 p2 gpipe m4 wrap:size",
    "llama r4 full_shard secondary2 lora m2 wrap:transformer clip",
    "packed r4 zero3 secondary2 part m2",
    "gpt r4 full_shard secondary2 muon m2",
};

// Sequence parallelism that keeps a rank's shard of what it gathers.
const std::vector<std::string> kShardJobs{
    "gpt r2 ddp t2 sp shards m2 clip drop",
    "llama r4 ddp t4 sp shards m2",
    "packed r4 zero1 t2 sp shards m4 ignore bf16",
    "heads r2 ddp t2 sp shards m2",
    "pieces r4 zero3 t2 sp shards m2 selective",
    "gpt r4 full_shard t2 sp shards m2 every_2",
    "llama r8 full_shard secondary2 t2 sp shards m2 full",
    "llama r4 ddp t2 sp shards p2 1f1b m4 clip",
    "gpt r8 zero2 t2 sp shards p2 zb_h1 m4 drop",
    "packed r4 ddp t2 sp shards p2 zb_v m2 bf16",
    "gpt r4 ddp t2 sp shards c2 m2 clip",
    "llama r4 ddp t2 sp shards lora m2",
    "packed r2 ddp t2 sp shards part m2",
};

// Micro-batches in pairs, one of which computes while what the other sends travels.
const std::vector<std::string> kPairJobs{
    "llama r2 ddp t2 m2 clip pairs",
    "gpt r4 zero1 t2 sp m4 drop ignore bf16 pairs",
    "packed r4 full_shard t2 sp m4 keep:use reduce:micro_batch wrap:transformer clip pairs sharded",
    "llama r8 zero3 t4 sp shards m2 prefetch:3 selective pairs",
    "heads r4 zero2 t2 m4 pairs",
    "mlp r4 ddp t2 m4 clip drop pairs",
    "gpt r4 ddp t2 p2 1f1b m8 clip drop ignore pairs",
    "llama r8 zero1 t2 sp p2 interleaved v2 m8 full bf16 pairs",
    "packed r4 ddp t2 p2 zb_h1 m8 drop pairs",
    "llama r8 full_shard t2 p2 zb_v m4 keep:pass pairs",
    "gpt r4 ddp t2 sp p2 gpipe m4 every_2 muon pairs",
    "packed r8 shard_grad_op t2 p2 looped_bfs v2 m4 pairs",
    "llama r4 ddp t2 p2 dualpipe_v m8 clip pairs",
    "gpt r4 no_shard t2 c2 m4 drop pairs",
    "llama r4 ddp t2 c2 ring m4 clip pairs",
    "llama r4 zero1 t2 lora m4 pairs",
};

// Products that are several in one: queries, keys and values, gate and up, and an embedding made of two.
const std::vector<std::string> kPieceJobs{
    "pieces r2 ddp t2 m2 clip",
    "pieces r4 zero3 t2 sp m2 full drop ignore",
    "pieces r4 ddp t4 m2 selective",
    "pieces r4 zero1 c2 m2 clip",
    "pieces r4 zero2 p2 1f1b m4 ignore",
    "pieces r2 full_shard m2 bf16 sharded",
    "token r2 ddp m2 clip drop",
    "token r4 zero3 t2 m2 full",
    "token r4 zero2 p2 1f1b m4 ignore",
    "token r2 zero1 t2 m1 bf16",
    "token r4 hybrid2 m2 wrap:size selective sharded",
};

// Queries and keys that are normalised head by head, and what else decoders have.
const std::vector<std::string> kHeadJobs{
    "heads r2 ddp t2 m2 clip",
    "heads r4 zero3 t2 sp m2 full drop ignore",
    "heads r4 ddp t4 m2 selective",
    "heads r4 zero1 c2 m2 clip",
    "heads r4 zero2 p2 1f1b m4 ignore",
    "heads r4 full_shard t2 c2 m2",
    "heads r2 shard_grad_op t2 m2 bf16 sharded",
};

constexpr std::string_view kGpt = R"(
name: gpt
params: {layers: 8, dropout: 0.0, ignore: -100}
inputs:
  tokens:  {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: wte, op: embedding, input: tokens, rows: 33, dim: 16, init: {normal: 0.2}}
  - {name: wpe, op: positions, input: tokens, rows: 8, dim: 16, init: {normal: 0.2}}
  - {name: embed, op: add, input: [wte, wpe]}
  - {name: drop, op: dropout, p: "${dropout}"}
  - repeat: "${layers}"
    name: "h.{index}"
    block: TransformerBlock
    nodes:
      - {name: ln_1, op: layer_norm}
      - {name: c_attn, op: linear, out: 48, parallel: column, init: {normal: 0.2}}
      - {name: core, op: attention, heads: 4, causal: true}
      - {name: c_proj, op: linear, out: 16, parallel: row, init: {normal: 0.1}}
      - {name: drop_1, op: dropout, p: "${dropout}"}
      - {name: res_1, op: add, input: [block.input, drop_1]}
      - {name: ln_2, op: layer_norm}
      - {name: c_fc, op: linear, out: 32, parallel: column, init: {normal: 0.2}}
      - {name: act, op: gelu, approximate: tanh}
      - {name: c_out, op: linear, out: 16, parallel: row, init: {normal: 0.1}}
      - {name: drop_2, op: dropout, p: "${dropout}"}
      - {name: res_2, op: add, input: [res_1, drop_2]}
  - {name: ln_f, op: layer_norm}
  - {name: logits, op: linear, out: 33, bias: false, weight: wte}
  - {name: loss, op: cross_entropy, input: [logits, targets], ignore_index: "${ignore}"}
outputs: {loss: loss, logits: logits}
)";

// 8 heads of 4 read 4 of keys and values, side by side in one product; no node says how it is to be cut.
constexpr std::string_view kPacked = R"(
name: packed
params: {layers: 8, dropout: 0.0, ignore: -100}
inputs:
  tokens:  {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: embed, op: embedding, input: tokens, rows: 35, dim: 32, init: {normal: 0.2}}
  - repeat: "${layers}"
    name: "layer.{index}"
    block: TransformerBlock
    nodes:
      - {name: norm_1, op: rms_norm}
      - {name: qkv, op: linear, out: 64, init: {normal: 0.2}}
      - {name: core, op: attention, heads: 8, kv_heads: 4, causal: true, rope: {theta: 100}}
      - {name: out, op: linear, out: 32, init: {normal: 0.1}}
      - {name: drop_1, op: dropout, p: "${dropout}"}
      - {name: res_1, op: add, input: [block.input, drop_1]}
      - {name: norm_2, op: layer_norm}
      - {name: up, op: linear, out: 24, init: {normal: 0.2}}
      - {name: act, op: silu}
      - {name: inner_drop, op: dropout, p: "${dropout}"}
      - {name: down, op: linear, out: 32, init: {normal: 0.1}}
      - {name: res_2, op: add, input: [res_1, down]}
  - {name: norm, op: layer_norm, bias: false}
  - {name: head, op: linear, out: 35, init: {normal: 0.2}}
  - {name: loss, op: cross_entropy, input: [head, targets], ignore_index: "${ignore}", label_smoothing: 0.1}
outputs: {loss: loss, logits: head}
)";

// As `packed`, with the pieces of each product cut out by name.
constexpr std::string_view kPieces = R"(
name: pieces
params: {layers: 8, dropout: 0.0, ignore: -100}
inputs:
  tokens:  {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: narrow, op: embedding, input: tokens, rows: 36, dim: 12, init: {normal: 0.2}}
  - {name: wide, op: embedding, input: tokens, rows: 36, dim: 20, init: {normal: 0.2}}
  - {name: embed, op: concat, input: [narrow, wide]}
  - repeat: "${layers}"
    name: "layers.{index}"
    block: TransformerBlock
    nodes:
      - {name: norm_1, op: rms_norm}
      - {name: qkv_proj, op: linear, out: 64, bias: false, init: {normal: 0.2}}
      - {name: qkv, op: split, into: {q: 32, k: 16, v: 16}}
      - {name: core, op: attention, input: [qkv.q, qkv.k, qkv.v], heads: 8, kv_heads: 4, rope: {theta: 100}}
      - {name: out, op: linear, out: 32, init: {normal: 0.1}}
      - {name: drop_1, op: dropout, p: "${dropout}"}
      - {name: res_1, op: add, input: [block.input, drop_1]}
      - {name: norm_2, op: rms_norm}
      - {name: gate_up_proj, op: linear, out: 48, init: {normal: 0.2}}
      - {name: gate_up, op: split, into: {gate: 24, up: 24}}
      - {name: act, op: silu, input: gate_up.gate}
      - {name: product, op: mul, input: [act, gate_up.up]}
      - {name: down, op: linear, out: 32, init: {normal: 0.1}}
      - {name: res_2, op: add, input: [res_1, down]}
  - {name: norm, op: rms_norm}
  - {name: head, op: linear, out: 33, init: {normal: 0.2}}
  - {name: loss, op: cross_entropy, input: [head, targets], ignore_index: "${ignore}"}
outputs: {loss: loss, logits: head}
)";

// As Gemma: heads of a size of their own, normalised before they turn, scores scaled and bounded, a window, norms
// before and after, stored less 1. Rotary positions of neighbours, of half of a head, scaled. No node says how it is to
// be cut.
constexpr std::string_view kHeads = R"(
name: heads
params: {layers: 8, dropout: 0.0, ignore: -100}
inputs:
  tokens:  {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: embed, op: embedding, input: tokens, rows: 36, dim: 24, init: {normal: 0.2}}
  - repeat: "${layers}"
    name: "layers.{index}"
    block: TransformerBlock
    nodes:
      - {name: norm_1, op: rms_norm, offset: 1}
      - {name: q_proj, op: linear, input: norm_1, out: 64, bias: false, init: {normal: 0.2}}
      - {name: q_heads, op: reshape, shape: [batch, seq, 8, -1]}
      - {name: q_norm, op: rms_norm, offset: 1, eps: 1.0e-6}
      - {name: q, op: reshape, shape: [batch, seq, -1]}
      - {name: k_proj, op: linear, input: norm_1, out: 32, bias: false, init: {normal: 0.2}}
      - {name: k_heads, op: reshape, shape: [batch, seq, 4, 8]}
      - {name: k_norm, op: rms_norm, offset: 1, eps: 1.0e-6}
      - {name: k, op: reshape, shape: [batch, seq, 32]}
      - {name: v_proj, op: linear, input: norm_1, out: 32, bias: false, init: {normal: 0.2}}
      - {name: core, op: attention, input: [q, k, v_proj], heads: 8, kv_heads: 4, scale: 0.3, softcap: 2.0, window: 5,
         rope: {theta: 100, style: interleaved, partial: 0.5, scaling: {kind: yarn, factor: 4, original_max_position_embeddings: 4}}}
      - {name: o_proj, op: linear, out: 24, bias: false, init: {normal: 0.1}}
      - {name: norm_2, op: rms_norm, offset: 1}
      - {name: drop_1, op: dropout, p: "${dropout}"}
      - {name: res_1, op: add, input: [block.input, drop_1]}
      - {name: norm_3, op: rms_norm, offset: 1, cast: before}
      - {name: gate, op: linear, input: norm_3, out: 32, bias: false, init: {normal: 0.2}}
      - {name: up, op: linear, input: norm_3, out: 32, bias: false, init: {normal: 0.2}}
      - {name: act, op: gelu, input: gate}
      - {name: product, op: mul, input: [act, up]}
      - {name: down, op: linear, out: 24, bias: false, init: {normal: 0.1}}
      - {name: res_2, op: add, input: [res_1, down]}
  - {name: norm, op: rms_norm, cast: before}
  - {name: head, op: linear, out: 36, bias: false, weight: embed}
  - {name: loss, op: cross_entropy, input: [head, targets], ignore_index: "${ignore}"}
outputs: {loss: loss, logits: head}
)";

// A place before those of each sample, that every place sees and that is cut off at the end; places as a parameter.
constexpr std::string_view kToken = R"(
name: token
params: {layers: 8, dropout: 0.0, ignore: -100}
inputs:
  tokens:  {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: embed, op: embedding, input: tokens, rows: 33, dim: 16, init: {normal: 0.2}}
  - {name: start, op: parameter, shape: [1, 16], init: {normal: 0.2}}
  - {name: starts, op: expand, input: [start, embed]}
  - {name: longer, op: concat, input: [starts, embed], dim: 1}
  - {name: places, op: parameter, shape: [1, 9, 16], init: {normal: 0.2}}
  - {name: flat, op: reshape, shape: [9, 16]}
  - {name: placed, op: add, input: [longer, flat]}
  - repeat: "${layers}"
    name: "layers.{index}"
    block: TransformerBlock
    nodes:
      - {name: norm_1, op: layer_norm}
      - {name: qkv, op: linear, out: 48, parallel: column, init: {normal: 0.2}}
      - {name: core, op: attention, heads: 4, causal: false}
      - {name: out, op: linear, out: 16, parallel: row, init: {normal: 0.1}}
      - {name: drop_1, op: dropout, p: "${dropout}"}
      - {name: res_1, op: add, input: [block.input, drop_1]}
  - {name: norm, op: layer_norm}
  - {name: turned, op: transpose, dims: [0, 2, 1]}
  - {name: rest, op: slice, dim: -1, start: 1, size: 8}
  - {name: back, op: transpose, dims: [0, 2, 1]}
  - {name: head, op: linear, out: 33, init: {normal: 0.2}}
  - {name: loss, op: cross_entropy, input: [head, targets], ignore_index: "${ignore}"}
outputs: {loss: loss, logits: head}
)";

// Smooth: in bf16 a unit that switches would make of a rounding a step.
constexpr std::string_view kMlp = R"(
name: mlp
params: {dropout: 0.0}
inputs:
  features: {dtype: f32, shape: [batch, 6]}
  targets:  {dtype: i32, shape: [batch]}
nodes:
  - {name: stem, op: linear, input: features, out: 32, init: {normal: 0.4}}
  - {name: stem_act, op: gelu, approximate: none}
  - {name: stem_drop, op: dropout, p: "${dropout}"}
  - repeat: 8
    name: "layers.{index}"
    block: HiddenLayer
    nodes:
      - {name: fc, op: linear, out: 32, init: {normal: 0.25}}
      - {name: act, op: silu}
      - {name: drop, op: dropout, p: "${dropout}"}
  - {name: head, op: linear, out: 4, init: {normal: 0.2}}
  - {name: loss, op: cross_entropy, input: [head, targets]}
outputs: {loss: loss, logits: head}
)";

constexpr std::string_view kTokens = R"(
data: {format: tokens, token_type: u16, train: mixed.bin, val: {fraction: 0.2}, seq_len: 8, shuffle: true}
)";
constexpr std::string_view kTable = R"(
data: {format: table, train: table.csv, val: {fraction: 0.2}, target: -1, normalize: standard, shuffle: true}
)";

// The large eps of AdamW keeps an update linear in the gradient where the gradient is nothing but rounding.
constexpr std::string_view kTraining = R"(
seed: 7
train:
  steps: 10
  batch: {global: 16, micro: 16}
  optimizer: {name: adamw, lr: 1.0e-2, betas: [0.9, 0.95], eps: 1.0e-1, weight_decay: 0.1}
  lr_schedule: {name: cosine, warmup_steps: 2, min_lr: 1.0e-3}
  clip_norm: null
eval: {every: 5, batches: 2}  # the second is not full
checkpoint: {every: 1000000, keep: null, format: full, resume: none}
)";

constexpr std::string_view kMuon =
    "{name: muon, lr: 1.0e-2, momentum: 0.9, weight_decay: 0.1, others: {name: adamw, lr: 1.0e-2, betas: [0.9, 0.95], "
    "eps: 1.0e-1, weight_decay: 0.1}}";

// Samples of 8 ids; id 5 fills none, a quarter, a half or three quarters of a sample.
std::string tokens(std::int64_t samples) {
  std::string bytes;
  for (std::int64_t i = 0; i < samples * 8 + 1; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    const bool five = random_below(3, 0, at, 4) < random_below(3, 1, at / 8, 4);
    bytes.push_back(static_cast<char>(five                             ? 5
                                      : random_below(3, 2, at, 3) == 0 ? random_below(3, 3, at, 33)
                                                                       : (i * 2) % 33));
    bytes.push_back('\0');
  }
  return bytes;
}

bool is_number(const std::string& word, char letter) {
  return word.size() == 2 && word[0] == letter && word[1] >= '1' && word[1] <= '9';
}

template <typename E>
bool names(const std::string& word) {
  return std::ranges::any_of(names_of(E()), [&](const auto& one) { return one.second == word; });
}

// Of a line: its sizes, and the overrides of its words.
class Line {
 public:
  Line(const std::string& line, std::string folder)
      : words_(words_of(line)), model_(words_.front()), folder_(std::move(folder)) {
    for (std::size_t i = 1; i < words_.size(); ++i) word(words_[i]);
    const int data = ranks_ / tensor_ / pipeline_ / context_;
    set("cluster.devices_per_node", std::to_string(ranks_));
    set("train.batch.micro", std::to_string(16 / data / micro_batches_));
    if (excluded_)
      set("strategy.wrap.excluded", model_ == "gpt" ? "[\"**ln_*\"]" : model_ == "mlp" ? "[head]" : "[\"**norm*\"]");
    if (split_names_) set("strategy.pipeline.split", split(pipeline_ * virtual_));
  }

  const std::string& model() const { return model_; }
  const Overrides& overrides() const { return overrides_; }

 private:
  void set(const std::string& key, const std::string& value) { overrides_.push_back(key + "=" + value); }

  void word(const std::string& word) {
    const std::string rest = word.substr(word.find(':') + 1);
    if (is_number(word, 'r'))
      ranks_ = word[1] - '0';
    else if (is_number(word, 'm'))
      micro_batches_ = word[1] - '0';
    else if (is_number(word, 't'))
      set("strategy.tensor.degree", std::to_string(tensor_ = word[1] - '0'));
    else if (is_number(word, 'c'))
      set("strategy.context.degree", std::to_string(context_ = word[1] - '0'));
    else if (word == "ring")
      set("strategy.context.kind", word);
    else if (is_number(word, 'p'))
      set("strategy.pipeline.degree", std::to_string(pipeline_ = word[1] - '0'));
    else if (is_number(word, 'v'))
      set("strategy.pipeline.virtual_stages", std::to_string(virtual_ = word[1] - '0'));
    else if (word.starts_with("secondary"))
      set("strategy.data.secondary", word.substr(9));
    else if (word == "shards")
      set("strategy.tensor.keep", "shard");
    else if (word == "pairs")
      set("strategy.tensor.overlap", "true");
    else if (word == "sp")
      set("strategy.tensor.sequence_parallel", "true");
    else if (names<DataKind>(word))
      set("strategy.data.kind", word);
    else if (names<Sharding>(word))
      fsdp(word);
    else if (word.starts_with("hybrid"))
      fsdp("hybrid_shard"), set("strategy.data.replicate", word.substr(6));
    else if (const auto* record = std::ranges::find(kScheduleRecords, word, &ScheduleRecord::name);
             record != std::end(kScheduleRecords))
      schedule(*record);
    else if (word == "split:uniform")
      set("strategy.pipeline.split", "uniform");
    else if (word == "split:names")
      split_names_ = true;
    else if (word.starts_with("keep:"))
      set("strategy.data.keep", rest);
    else if (word.starts_with("reduce:"))
      set("strategy.data.reduce", rest);
    else if (word.starts_with("prefetch:"))
      set("strategy.data.prefetch", rest);
    else if (word.starts_with("wrap:"))
      set("strategy.wrap", wrap(rest));
    else if (word == "clip")
      set("train.clip_norm", "0.2");
    else if (word == "drop")
      set("model.with.dropout", "0.1");
    else if (word == "ignore")
      set("model.with.ignore", "5");
    else if (word == "full" || word == "selective")
      set("activation_checkpointing.mode", word);
    else if (word == "every_2")
      set("activation_checkpointing", "{mode: every_n, every: 2}");
    else if (word == "lora")
      set("adapter", "{rank: 3, alpha: 6, from: " + folder_ + model_ + ".start.safetensors}"),
          set("model.init_from", folder_ + model_ + ".base");
    else if (word == "dora")
      set("adapter.magnitude", "true"), set("adapter.from", folder_ + model_ + ".dora.start.safetensors");
    else if (word == "lora_drop")
      set("adapter.dropout", "0.1");
    else if (word == "norms")
      set("trainable", model_ == "gpt" ? "[\"*ln_*\"]" : model_ == "mlp" ? "[\"head*\"]" : "[\"*norm*\"]");
    else if (word == "part")
      set("trainable", model_ == "gpt" ? "[\"h.6.*\", \"h.7.*\", \"ln_f*\"]"
                                       : "[\"" + block(6) + ".*\", \"" + block(7) + ".*\", \"*head*\"]");
    else if (word == "muon")
      set("train.optimizer", std::string(kMuon));
    else if (word == "groups")
      groups();
    else if (word == "bf16")
      set("precision.compute", "bf16");
    else if (word == "excluded")
      excluded_ = true;
    else if (word == "sharded")
      set("checkpoint.format", "sharded");
    else
      throw std::invalid_argument("no word of a mixed job: " + word);
  }

  // SGD for norms, Muon for matrices of blocks, AdamW of three rates for biases of blocks, embeddings and the head.
  void groups() {
    const std::string norms = model_ == "gpt" ? "*ln_*" : "*norm*", embedding = model_ == "gpt" ? "w*" : "*embed*";
    set("train.groups", "[{match: [\"" + norms +
                            "\"], optimizer: {name: sgd, lr: 5.0e-3, momentum: 0.9}},"
                            " {match: [\"" +
                            embedding +
                            "\"], optimizer: {name: adamw, lr: 2.0e-3}},"
                            " {match: [\"" +
                            block(0).substr(0, block(0).size() - 1) + "*\"], optimizer: " + std::string(kMuon) + "}]");
  }

  void fsdp(const std::string& sharding) {
    set("strategy.data.kind", "fsdp");
    set("strategy.data.sharding", sharding);
  }

  void schedule(const ScheduleRecord& record) {
    set("strategy.pipeline.schedule", std::string(record.name));
    if (record.takes(2)) virtual_ = 2;  // by default
  }

  std::string block(int index) const {
    const std::string prefix = model_ == "gpt"      ? "h."
                               : model_ == "llama"  ? "model.layers."
                               : model_ == "packed" ? "layer."
                                                    : "layers.";
    return prefix + std::to_string(index);
  }

  std::string wrap(const std::string& policy) const {
    if (policy == "transformer")
      return "{policy: transformer, block: " + std::string(model_ == "mlp" ? "HiddenLayer" : "TransformerBlock") + "}";
    if (policy == "size") return "{policy: size, min_params: 1500}";
    if (policy == "names") return "{policy: names, names: [\"" + block(0) + ".*\", \"" + block(2) + "**\"]}";
    return "{policy: " + policy + "}";
  }

  std::string split(int chunks) const {
    std::string names;
    for (int chunk = 1; chunk < chunks; ++chunk) names += (chunk > 1 ? ", " : "") + block(chunk * 8 / chunks);
    return "[" + names + "]";
  }

  std::vector<std::string> words_;
  std::string model_, folder_;
  Overrides overrides_;
  int ranks_ = 1, tensor_ = 1, pipeline_ = 1, context_ = 1, virtual_ = 1, micro_batches_ = 1;
  bool split_names_ = false, excluded_ = false;
};

}  // namespace

const std::vector<std::string>& mixed_jobs() { return kJobs; }
const std::vector<std::string>& context_jobs() { return kContextJobs; }
const std::vector<std::string>& ring_jobs() { return kRingJobs; }
const std::vector<std::string>& frozen_jobs() { return kFrozenJobs; }
const std::vector<std::string>& muon_jobs() { return kMuonJobs; }
const std::vector<std::string>& piece_jobs() { return kPieceJobs; }
const std::vector<std::string>& head_jobs() { return kHeadJobs; }
const std::vector<std::string>& secondary_jobs() { return kSecondaryJobs; }
const std::vector<std::string>& shard_jobs() { return kShardJobs; }
const std::vector<std::string>& pair_jobs() { return kPairJobs; }

MixedJobs::MixedJobs() {
  const auto job = [&](const std::string& name, std::string_view model, std::string_view data) {
    jobs_.write(name + ".yaml", "model: " + std::string(model) + std::string(data) + std::string(kTraining));
  };
  jobs_.write("mixed.bin", tokens(120));
  jobs_.write("gpt_graph.yaml", kGpt);
  jobs_.write("packed_graph.yaml", kPacked);
  jobs_.write("pieces_graph.yaml", kPieces);
  jobs_.write("heads_graph.yaml", kHeads);
  jobs_.write("token_graph.yaml", kToken);
  jobs_.write("mlp_graph.yaml", kMlp);
  job("gpt", "{graph: gpt_graph.yaml}", kTokens);
  job("packed", "{graph: packed_graph.yaml}", kTokens);
  job("llama",
      "{graph: models/llama.yaml, with: {layers: 8, heads: 8, kv_heads: 4, dim: 32, hidden: 24, vocab: 33, rope_theta: "
      "100}}",
      kTokens);
  job("pieces", "{graph: pieces_graph.yaml}", kTokens);
  job("heads", "{graph: heads_graph.yaml}", kTokens);
  job("token", "{graph: token_graph.yaml}", kTokens);
  job("mlp", "{graph: mlp_graph.yaml}", kTable);
}

namespace {

std::string start_of(const std::string& model, const std::string& kind) {
  return model + (kind == "dora" ? ".dora" : "") + ".start.safetensors";
}

}  // namespace

LoadedJob MixedJobs::load(const std::string& line, const std::string& run, const Overrides& more) const {
  const Line parsed(line, path("") + "/");
  for (const char* kind : {"lora", "dora"})
    if (has_word(line, kind) && !std::filesystem::exists(path(start_of(parsed.model(), kind))))
      make_adapter(parsed.model(), kind);
  Overrides overrides = parsed.overrides();
  overrides.insert(overrides.end(), more.begin(), more.end());
  return jobs_.load(parsed.model(), run, overrides);
}

void MixedJobs::make_adapter(const std::string& model, const std::string& kind) const {
  const std::string adapter = "adapter={rank: 3, magnitude: " + std::string(kind == "dora" ? "true" : "false") + "}",
                    base = "model.init_from=" + path(model + ".base");
  if (!std::filesystem::exists(path(model + ".base")))
    run(jobs_.load(model, model + ".base", {"train.steps=0", "seed=5"}));
  const Trained initial = run(jobs_.load(model, model + "." + kind + ".start", {"train.steps=0", adapter, base}));
  const checkpoint::Checkpoint drawn = checkpoint::open_checkpoint(initial.report.checkpoint);
  std::vector<checkpoint::TensorSpec> specs;
  for (const checkpoint::TensorInfo& info : drawn.tensors.tensors())
    if (info.name.ends_with(".weight") || info.name.ends_with("_vector"))
      specs.push_back({info.name, info.dtype, info.shape});
  checkpoint::SafetensorsWriter writer(path(start_of(model, kind)), specs, {});
  for (const checkpoint::TensorSpec& spec : writer.order()) {
    std::vector<float> values(static_cast<std::size_t>(spec.shape.elements()));
    drawn.tensors.read(spec.name, 0, spec.shape.elements(), values.data());
    if (spec.name.ends_with(".lora_B.weight")) {
      fill_normal(random_key(9, spec.name), 0, 0, spec.shape.elements(), values.data());
      for (float& value : values) value *= 0.1F;
    }
    if (spec.name.ends_with("_vector"))
      for (std::size_t i = 0; i < values.size(); ++i) values[i] *= 1 + 0.05F * static_cast<float>(i % 7);
    writer.write(spec.name, values.data(), spec.bytes());
  }
  writer.finish();
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

bool has_word(const std::string& line, const std::string& word) {
  const std::vector<std::string> words = words_of(line);
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string alone(const std::string& line) {
  std::string result = words_of(line).front();
  for (const char* kept :
       {"clip", "drop", "ignore", "lora", "lora_drop", "dora", "norms", "part", "muon", "groups", "bf16", "excluded"})
    if (has_word(line, kept)) result += std::string(" ") + kept;
  return result;
}

}  // namespace trainer::tests
