// The declarations behind definition(op): one function an op, each in the file of its family. ops.cpp calls them all;
// nothing else does.
#pragma once

#include "engine/ops/op_def.h"

namespace trainer::define {

#define TRAINER_OP(name, kernel) OpDef name();
#include "engine/core/ops.inc"

}  // namespace trainer::define
