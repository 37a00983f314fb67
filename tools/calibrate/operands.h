// What kernels are measured with.
#pragma once

#include <cstddef>
#include <span>

#include "engine/core/signature.h"

namespace trainer::tools {

/// What an operand is filled with, as often as it takes, so that the kernel does what it does in a step; empty: zeros.
/// Lives as long as the program.
std::span<const std::byte> contents_of(const Signature& signature, int operand);

/// Whether they are: of ids that only a job knows (which expert a token goes to, where a document ends) they are not,
/// and the kernel would do another's work.
bool knows_contents(const Signature& signature);

/// The operand that the kernel before has just written, and that caches therefore still hold as far as it fits; -1:
/// none.
int fresh_of(const Signature& signature);

}  // namespace trainer::tools
