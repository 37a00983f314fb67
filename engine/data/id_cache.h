// A cache of token ids on the disk: files `<folder>/tokens/<key>.ids`, each the ids of one text under one tokenizer,
// and named by a hash of both. Anyone may remove them at any time.
//
// Invariants: a file of that name is whole (it is written under another name, and renamed) or was damaged later, which
// its checksums show: then it is made again. Where the file system has locks, one process at a time makes a file, and
// others that want it wait. So any number of processes may use a cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/data/data_file.h"
#include "engine/data/token_stream.h"

namespace trainer::data {

struct Hash128 {
  std::uint64_t high = 0, low = 0;

  std::string str() const;  ///< 32 hexadecimal digits
};

Hash128 hash_of(std::string_view text);

/// Of the bytes of a file. Of one that did not change since (its inode, size, times and ends are the same) what the
/// cache in `folder` remembers; empty: nothing. A file is remembered once it did not change for `settled_s` seconds:
/// until then it may change again without another time.
inline constexpr std::int64_t kSettledSeconds = 60;
Hash128 content_hash(const DataFile& file, const std::string& folder, std::int64_t settled_s = kSettledSeconds);

/// The ids that `make` gives, from the cache if it has them: memory-mapped, and checked once. `make` is called under
/// the file's lock. Ids are below `limit`. Raises IoError where the cache cannot be written, and what `make` raises.
std::shared_ptr<const TokenStream> cached_ids(const std::string& folder, const Hash128& key, std::int64_t limit,
                                              const std::function<void(const TakeIds&)>& make,
                                              const std::function<void(const std::string&)>& say);

/// Makes the folder of a cache. Raises IoError where it cannot be made, or not be written.
void make_cache(const std::string& folder);

}  // namespace trainer::data
