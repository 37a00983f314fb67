// Several documents in a row of a batch, for all devices: `documents` i32 [batch, seq] has the number of each
// position's document, which never descends along a row, and -1 at its end, which pads it. Attention (attention.h)
// stays within a document, and positions start again at 0 in each.
//
//   document_positions   documents i32 [batch, all] → ids i32 [batch, seq]: offset + the place of each position in its
//                        document; of padding: offset
//
// The positions are those from Call::origin on, so that a rank with a part of the sequence finds its own places.
// REQUIRES origin + seq ≤ all. With `zigzag` (not 0) the second half of them ends as far before the last position as
// the first half is behind the first.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/core/signature.h"

namespace trainer::kernels {

/// Positions [begin, end) of a sample.
struct DocumentRun {
  std::int64_t sample = 0, begin = 0, end = 0;

  std::int64_t length() const { return end - begin; }
};

/// The documents of all rows, in order; what none of them covers is padding. Into `runs`, whose memory serves
/// again. Throws DataError, naming sample and position, where numbers descend or are less than -1.
void find_documents(std::span<const std::int32_t> documents, std::int64_t batch, std::vector<DocumentRun>& runs);

/// What is said of a number that cannot stand there.
std::string wrong_document(std::int64_t number, std::int64_t sample, std::int64_t position);

struct DocumentPositionsShape {
  std::int64_t batch = 0, seq = 0, all = 0, offset = 0;
  bool zigzag = false;
};
/// Raises Bug where operands do not fit.
DocumentPositionsShape document_positions_shape(const Signature& signature);
/// Raises Bug unless the positions from `origin` on are some of the sequence.
void expect_document_origin(const DocumentPositionsShape& shape, std::int64_t origin);

}  // namespace trainer::kernels
