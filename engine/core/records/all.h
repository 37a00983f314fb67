// The record of every op is a function of its name, in the file of its family. An op without one does not link.
#pragma once

#include "engine/core/op_record.h"

namespace trainer::records {

#define TRAINER_OP(name, kernel) OpRecord name(Op op);
#include "engine/core/ops.inc"

}  // namespace trainer::records
