// Fingerprint: what data a run was trained on, small enough to keep in every checkpoint, so that a run that goes on can
// tell whether its data changed meanwhile. A file counts by its size and by a hash of its first and last 64 KiB: enough
// for a file that was replaced, extended, shortened or tokenized differently, and cheap for one of any size. Names do
// not count: data may be moved.
#pragma once

#include <string>
#include <vector>

#include "engine/job/job.h"

namespace trainer::data {

/// JSON: {"train": {"files": 2, "bytes": 300, "hash": "…", "first": [{"file": "a.bin", "bytes": 100, "hash": "…"}, …]},
/// "val": {…}}. `val` is there where data.val names files; `first` lists at most 16 files. Equal data gives equal
/// hashes. Of more than 1024 files all sizes count, and the contents of 1024. Raises what opening the files raises.
std::string fingerprint(const DataJob& job);

/// How the data of two fingerprints differs, a sentence for each of "data.train" and "data.val" that does, as
/// "data.train: a.bin has 90 bytes, where it had 100". Empty: the data is the same. `saved` may be any text: what is no
/// fingerprint is a difference.
std::vector<std::string> fingerprint_differences(const std::string& saved, const std::string& now);

}  // namespace trainer::data
