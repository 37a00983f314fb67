// Header, ids of two or four bytes; everything little-endian, as the machine has it.
#include "engine/data/id_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <vector>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/core/file.h"

// The hash is compiled in.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trainer::data {
namespace {

namespace fs = std::filesystem;
using Say = std::function<void(const std::string&)>;

constexpr std::uint64_t kMagic = 0x3153444954524E54;  // "TNRTIDS1"
constexpr std::int64_t kWideFrom = 65536;             // ids from here on take four bytes
constexpr std::size_t kBlock = std::size_t{1} << 20;

struct Header {
  std::uint64_t magic = kMagic;
  std::uint64_t id_bytes = 0, count = 0;
  std::uint64_t key_high = 0, key_low = 0;
  std::uint64_t ids_high = 0, ids_low = 0;  // hash of the ids' bytes
  std::uint64_t check = 0;                  // of everything above

  std::uint64_t checksum() const { return XXH3_64bits(this, offsetof(Header, check)); }
};

const char* advice() { return "; TRAINER_CACHE=FOLDER puts the cache elsewhere, TRAINER_CACHE=off does without"; }

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    CHECK(state_ != nullptr, "memory for a hash");
    XXH3_128bits_reset(state_);
  }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  ~Hasher() { XXH3_freeState(state_); }

  void add(const void* data, std::size_t bytes) { XXH3_128bits_update(state_, data, bytes); }
  Hash128 hash() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_);
    return {hash.high64, hash.low64};
  }

 private:
  XXH3_state_t* state_;
};

// ---- A file of ids ----

class CachedIds final : public TokenStream {
 public:
  /// What is wrong with the file is left in `damage`.
  CachedIds(const std::string& path, const Hash128& key, std::int64_t limit, std::string& damage) : file_(path) {
    const std::span<const std::byte> bytes = file_.bytes();
    if (bytes.size() < sizeof header_) {
      damage = "is cut off";
      return;
    }
    std::memcpy(&header_, bytes.data(), sizeof header_);
    const std::span<const std::byte> ids = bytes.subspan(sizeof header_);
    const bool mine = header_.magic == kMagic && header_.check == header_.checksum() && header_.key_high == key.high &&
                      header_.key_low == key.low && header_.id_bytes == (limit <= kWideFrom ? 2U : 4U);
    if (!mine)
      damage = "has another header";
    else if (ids.size() / header_.id_bytes != header_.count || ids.size() % header_.id_bytes != 0)
      damage = "is cut off";
    else if (const XXH128_hash_t hash = XXH3_128bits(ids.data(), ids.size());
             hash.high64 != header_.ids_high || hash.low64 != header_.ids_low)
      damage = "has other ids than were written";
    first_ = ids.data();
  }

  std::int64_t num_tokens() const override { return static_cast<std::int64_t>(header_.count); }

  void read(std::int64_t first, std::int64_t count, std::int32_t* out) const override {
    const auto size = static_cast<std::int64_t>(header_.id_bytes);
    const std::byte* from = first_ + first * size;
    if (size == 4) {
      if (count > 0) std::memcpy(out, from, static_cast<std::size_t>(count) * 4);
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint16_t id;
      std::memcpy(&id, from + 2 * i, sizeof id);
      out[i] = id;
    }
  }

 private:
  MappedFile file_;
  Header header_;
  const std::byte* first_ = nullptr;
};

/// Nothing where the cache does not have it; a damaged one is told.
std::shared_ptr<const TokenStream> open_cached(const std::string& path, const Hash128& key, std::int64_t limit,
                                               const Say& say) {
  if (!exists(path)) return nullptr;
  std::string damage;
  try {
    auto stream = std::make_shared<CachedIds>(path, key, limit, damage);
    if (damage.empty()) return stream;
  } catch (const DataError& error) {  // removed meanwhile, or no regular file
    damage = error.what();
  }
  if (say) say(fmt::format("{} {}: the text is tokenized again", path, damage));
  return nullptr;
}

/// Writes a file of ids under a name of its own; what is not finished is removed.
class IdWriter {
 public:
  IdWriter(std::string path, const Hash128& key, std::int64_t limit)
      : path_(std::move(path)), limit_(limit), file_(create_file(path_)) {
    header_.id_bytes = limit <= kWideFrom ? 2 : 4;
    header_.key_high = key.high;
    header_.key_low = key.low;
    write_all(file_, &header_, sizeof header_, path_);
  }
  IdWriter(const IdWriter&) = delete;
  IdWriter& operator=(const IdWriter&) = delete;
  ~IdWriter() {
    if (file_) ::unlink(path_.c_str());
  }

  void add(std::span<const std::int32_t> ids) {
    for (const std::int32_t id : ids) CHECK(id >= 0 && id < limit_, "ids are in the vocabulary");
    header_.count += ids.size();
    if (header_.id_bytes == 4) return write(ids.data(), ids.size_bytes());
    narrow_.assign(ids.begin(), ids.end());
    write(narrow_.data(), narrow_.size() * sizeof narrow_.front());
  }

  /// Gives the finished file its name.
  void finish(const std::string& name) {
    const Hash128 hash = hasher_.hash();
    header_.ids_high = hash.high;
    header_.ids_low = hash.low;
    header_.check = header_.checksum();
    if (::pwrite(file_.get(), &header_, sizeof header_, 0) != static_cast<ssize_t>(sizeof header_))
      fail_io(path_, "writing");
    sync_file(file_, path_);
    if (::rename(path_.c_str(), name.c_str()) != 0) fail_io(name, "renaming");
    file_.close();
  }

 private:
  void write(const void* data, std::size_t bytes) {
    if (bytes == 0) return;
    hasher_.add(data, bytes);
    write_all(file_, data, bytes, path_);
  }

  const std::string path_;
  const std::int64_t limit_;
  Descriptor file_;
  Header header_;
  Hasher hasher_;
  std::vector<std::uint16_t> narrow_;
};

/// Waits until no other process makes the file. Without a descriptor: the file system has no locks.
Descriptor lock(const std::string& path, const Say& say) {
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file) fail_io(path, "opening");
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno == EWOULDBLOCK) {
    if (say) say("waiting for another process, which tokenizes the same text");
    while (::flock(file.get(), LOCK_EX) != 0)
      if (errno != EINTR) fail_io(path, "locking");
    return file;
  }
  if (errno != ENOLCK && errno != ENOSYS && errno != EOPNOTSUPP) fail_io(path, "locking");
  return {};
}

// ---- Contents of files ----

constexpr std::int64_t kHashedBytes = 64 << 10;

struct Identity {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t modified_s = 0, modified_ns = 0, changed_s = 0, changed_ns = 0;

  friend bool operator==(const Identity&, const Identity&) = default;
};

std::optional<Identity> identity_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return Identity{status.st_dev,         status.st_ino,          static_cast<std::uint64_t>(status.st_size),
                  status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ctim.tv_sec,
                  status.st_ctim.tv_nsec};
}

bool is_settled(const Identity& identity, std::int64_t settled_s) {
  return std::max(identity.modified_s, identity.changed_s) + settled_s <= std::time(nullptr);
}

void add_part(Hasher& hasher, const DataFile& file, std::int64_t begin, std::int64_t end) {
  std::vector<char> block(static_cast<std::size_t>(std::min<std::int64_t>(end - begin, kBlock)));
  for (std::int64_t at = begin; at < end;) {
    const auto part = static_cast<std::size_t>(std::min<std::int64_t>(end - at, kBlock));
    file.read(at, block.data(), part);
    hasher.add(block.data(), part);
    at += static_cast<std::int64_t>(part);
  }
}

/// Where the cache remembers the hash of such a file.
std::string note_path(const DataFile& file, const Identity& identity, const std::string& folder) {
  Hasher hasher;
  hasher.add(&identity, sizeof identity);
  add_part(hasher, file, 0, std::min(kHashedBytes, file.bytes()));
  add_part(hasher, file, std::max<std::int64_t>(0, file.bytes() - kHashedBytes), file.bytes());
  return folder + "/files/" + hasher.hash().str();
}

struct Note {
  Hash128 hash;
  std::uint64_t check = 0;

  std::uint64_t checksum() const { return XXH3_64bits(&hash, sizeof hash); }
};

std::optional<Hash128> remembered(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Note note;
  const bool whole = file && ::read(file.get(), &note, sizeof note) == static_cast<ssize_t>(sizeof note);
  return whole && note.check == note.checksum() ? std::optional(note.hash) : std::nullopt;
}

/// Best effort: what cannot be remembered is computed again.
void remember(const std::string& path, const Hash128& hash) {
  Note note{hash, 0};
  note.check = note.checksum();
  const std::string unfinished = fmt::format("{}.{}", path, ::getpid());
  std::error_code ignored;
  fs::create_directories(fs::path(path).parent_path(), ignored);
  const Descriptor file(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file) return;
  const bool written = ::write(file.get(), &note, sizeof note) == static_cast<ssize_t>(sizeof note);
  if (!written || ::rename(unfinished.c_str(), path.c_str()) != 0) ::unlink(unfinished.c_str());
}

}  // namespace

std::string Hash128::str() const { return fmt::format("{:016x}{:016x}", high, low); }

Hash128 hash_of(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.high64, hash.low64};
}

Hash128 content_hash(const DataFile& file, const std::string& folder, std::int64_t settled_s) {
  const std::optional<Identity> before = folder.empty() ? std::nullopt : identity_of(file.path());
  const std::string note = before ? note_path(file, *before, folder) : "";
  if (before && static_cast<std::int64_t>(before->size) == file.bytes())
    if (const std::optional<Hash128> known = remembered(note)) return *known;
  Hasher hasher;
  add_part(hasher, file, 0, file.bytes());
  const Hash128 hash = hasher.hash();
  if (before && is_settled(*before, settled_s) && identity_of(file.path()) == before) remember(note, hash);
  return hash;
}

void make_cache(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder + "/tokens", error);
  if (error) throw IoError(folder + "/tokens: creating the folder: " + error.message() + advice());
  if (::access((folder + "/tokens").c_str(), W_OK) != 0) {
    const int why = errno;
    throw IoError(folder + "/tokens: cannot be written: " + std::generic_category().message(why) + advice());
  }
}

std::shared_ptr<const TokenStream> cached_ids(const std::string& folder, const Hash128& key, std::int64_t limit,
                                              const std::function<void(const TakeIds&)>& make, const Say& say) {
  const std::string path = folder + "/tokens/" + key.str() + ".ids";
  if (auto found = open_cached(path, key, limit, say)) return found;
  make_cache(folder);
  const Descriptor locked = lock(folder + "/tokens/" + key.str() + ".lock", say);
  if (auto found = open_cached(path, key, limit, {})) return found;  // made while this process waited
  // Under the lock no other process uses the name; what a killed process left there is overwritten.
  IdWriter writer(path + (locked ? ".tmp" : fmt::format(".{}.tmp", ::getpid())), key, limit);
  const auto write = [&](auto&& part) {
    try {
      part();
    } catch (const IoError& error) {
      throw IoError(error.what() + std::string(advice()));
    }
  };
  make([&](std::span<const std::int32_t> ids) { write([&] { writer.add(ids); }); });
  write([&] { writer.finish(path); });
  auto made = open_cached(path, key, limit, say);
  if (!made) throw IoError(path + ": does not read back as it was written" + advice());
  return made;
}

}  // namespace trainer::data
