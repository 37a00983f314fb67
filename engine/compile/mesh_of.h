// The mesh of a job: how its ranks are arranged on the axes. A pure function of the job; it asks no machine and no
// launcher.
#pragma once

#include "engine/core/mesh.h"
#include "engine/job/job.h"

namespace trainer {

/// world = nodes × devices per node (auto: 1) = pipeline × replicate × shard × tensor. `strategy: tensor` and
/// `strategy: pipeline` put all ranks on that axis; else the data axes take what pipeline and tensor leave:
///
///   ddp, local_sgd, fsdp no_shard         replicate; with int8 compression, where each rank sums a slice, shard
///   zero1, zero2, zero3                   shard
///   fsdp full_shard, shard_grad_op        shard = rest / replicate, where replicate is 1 unless given
///   fsdp hybrid_shard                     the same, where replicate is the number of nodes unless given
///
/// Under `strategy: auto` the ranks are replicas. Throws JobError, located at the degree that does not divide, with
/// those next to it that do; a hybrid_shard on one node that says nothing of its replicas is one too.
Mesh mesh_of(const LoadedJob& loaded);

}  // namespace trainer
