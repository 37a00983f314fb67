// The cache of token ids: what it gives is what the tokenizer gives, whoever made it, and whatever happened to it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/core/error.h"
#include "engine/data/id_cache.h"
#include "engine/data/token_stream.h"
#include "tests/data/streams.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using tests::contains;
using tests::message_of;
using tests::TemporaryFolder;
using Ids = std::vector<std::int32_t>;
namespace fs = std::filesystem;

const std::string kTokenizers = std::string(TRAINER_SOURCE_DIR) + "/tests/goldens/tokenizers/";

std::vector<std::string> names_in(const std::string& folder, const std::string& suffix = "") {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().string().ends_with(suffix)) names.push_back(entry.path().string());
  return names;
}

/// Counts how often ids are made.
struct Maker {
  Ids ids;
  int made = 0;

  std::shared_ptr<const TokenStream> open(const std::string& cache, std::uint64_t key, std::int64_t limit,
                                          std::vector<std::string>* said = nullptr) {
    const auto make = [&](const TakeIds& take) {
      ++made;
      const std::span<const std::int32_t> all(ids);
      take(all.first(all.size() / 3));
      take(all.subspan(all.size() / 3));
    };
    return cached_ids(cache, {7, key}, limit, make, [&](const std::string& line) {
      if (said != nullptr) said->push_back(line);
    });
  }
};

Ids counted(std::int32_t first, std::size_t count) {
  Ids ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

}  // namespace

TEST_CASE("ids come from the cache once they were made, in two bytes or four") {
  TemporaryFolder folder;
  for (const std::int64_t limit : {65536, 65537, 200000}) {
    Maker maker{counted(static_cast<std::int32_t>(limit) - 5000, 5000)};
    const auto key = static_cast<std::uint64_t>(limit);
    for (int i = 0; i < 3; ++i) CHECK(all_of(*maker.open(folder.path(), key, limit)) == maker.ids);
    CHECK(maker.made == 1);
    Ids part(3);
    maker.open(folder.path(), key, limit)->read(4997, 3, part.data());
    CHECK(part == Ids(maker.ids.end() - 3, maker.ids.end()));
  }
  CHECK(names_in(folder.path("tokens"), ".ids").size() == 3);
  CHECK(names_in(folder.path("tokens"), ".tmp").empty());
  Maker none;
  CHECK(none.open(folder.path(), 1, 10)->num_tokens() == 0);
}

TEST_CASE("a damaged cache is told and made again, wherever the damage is") {
  TemporaryFolder folder;
  Maker maker{counted(0, 1000)};
  maker.open(folder.path(), 1, 1000);
  const std::string file = names_in(folder.path("tokens"), ".ids").at(0);
  const std::string whole = tests::contents_of(file);
  int made = maker.made;
  std::vector<std::string> damaged{"", whole.substr(0, 20), whole.substr(0, whole.size() - 1), whole + "x"};
  for (const std::size_t at : {std::size_t{0}, std::size_t{9}, std::size_t{17}, std::size_t{40}, std::size_t{60},
                               std::size_t{64}, whole.size() - 1}) {
    damaged.push_back(whole);
    damaged.back()[at] = static_cast<char>(damaged.back()[at] ^ 1);
  }
  for (const std::string& contents : damaged) {
    CAPTURE(contents.size());
    fs::remove(file);  // a file that is in use is never written to
    folder.write(fs::relative(file, folder.path()).string(), contents);
    std::vector<std::string> said;
    CHECK(all_of(*maker.open(folder.path(), 1, 1000, &said)) == maker.ids);
    CHECK(maker.made == ++made);
    REQUIRE(said.size() == 1);
    CHECK(contains(said[0], file));
    CHECK(tests::contents_of(file) == whole);
  }
}

TEST_CASE("what fails while ids are made leaves nothing behind, and is raised") {
  TemporaryFolder folder;
  const auto fail = [](const TakeIds& take) {
    take(Ids{1, 2, 3});
    throw DataError("no UTF-8");
  };
  CHECK(message_of<DataError>([&] { cached_ids(folder.path(), {1, 1}, 10, fail, {}); }) == "no UTF-8");
  CHECK(names_in(folder.path("tokens"), ".ids").empty());
  CHECK(names_in(folder.path("tokens"), ".tmp").empty());
  folder.write("file", "");
  Maker maker{counted(0, 10)};
  const std::string message = message_of<IoError>([&] { maker.open(folder.path("file"), 1, 10); });
  CHECK(contains(message, "TRAINER_CACHE=off"));
  CHECK(maker.made == 0);
}

TEST_CASE("processes that want the same ids at once make them once, and all get them") {
  constexpr int kProcesses = 6;
  TemporaryFolder folder;
  const Ids ids = counted(5, 20000);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    bool good = false;
    try {
      const auto make = [&](const TakeIds& take) {
        const int counter = ::open(folder.path("made").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
        good = ::write(counter, "x", 1) == 1;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        take(ids);
      };
      const auto stream = cached_ids(folder.path(), {3, 4}, 70000, make, {});
      good = all_of(*stream) == ids;
    } catch (...) {
      good = false;
    }
    ::_exit(good ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  CHECK(tests::contents_of(folder.path("made")) == "x");
}

TEST_CASE("the hash of a file is of its contents, and a remembered one does not outlive them") {
  TemporaryFolder folder;
  const std::string cache = folder.path("cache");
  const auto hash_now = [&](const std::string& path, std::int64_t settled_s) {
    return content_hash(DataFile(path), cache, settled_s).str();
  };
  std::string text(300'000, 'a');
  const std::string path = folder.write("a.txt", text), same = folder.write("b.txt", text);
  const std::string first = content_hash(DataFile(path), "").str();
  CHECK(hash_now(path, kSettledSeconds) == first);
  CHECK_FALSE(fs::exists(folder.path("cache/files")));  // it may change again within the same tick of the clock
  CHECK(hash_now(same, 0) == first);
  const std::vector<std::string> notes = names_in(folder.path("cache/files"));
  REQUIRE(notes.size() == 1);
  const std::string note = tests::contents_of(notes[0]);
  CHECK(hash_now(same, 0) == first);
  for (const std::string& damaged : {std::string(), note.substr(1), note.substr(0, 23) + "x"}) {
    folder.write(fs::relative(notes[0], folder.path()).string(), damaged);
    CHECK(hash_now(same, 0) == first);
    CHECK(tests::contents_of(notes[0]) == note);
  }
  text[150'000] = 'b';                                         // between the ends, and of the same size
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // more than a tick of the clock of files
  folder.write("b.txt", text);
  CHECK(hash_now(same, 0) != first);
  CHECK(hash_now(same, 0) == content_hash(DataFile(same), "").str());
}

TEST_CASE("text under a tokenizer.json has the same ids with a cache, which knows text, tokenizer and order") {
  TemporaryFolder folder;
  const FileTokenizer llama(kTokenizers + "llama3.json"), qwen(kTokenizers + "qwen2.json");
  const std::string a = folder.write("a.txt", tests::contents_of(kTokenizers + "train.txt")),
                    b = folder.write("b.txt", "the end");
  std::int64_t encoded = 0;
  const Tokenizing cached{.cache = folder.path("cache"),
                          .progress = [&](std::int64_t done, std::int64_t) { encoded = done; }};
  const auto is_right = [&](const std::vector<std::string>& paths, const FileTokenizer& tokenizer) {
    return all_of(*tokenized_stream(paths, tokenizer, cached)) == all_of(*tokenized_stream(paths, tokenizer));
  };
  const auto entries = [&] { return names_in(folder.path("cache/tokens"), ".ids").size(); };
  CHECK(is_right({a, b}, llama));
  CHECK(encoded == static_cast<std::int64_t>(fs::file_size(a) + fs::file_size(b)));
  encoded = 0;
  CHECK(is_right({a, b}, llama));
  CHECK(encoded == 0);  // from the cache
  CHECK(entries() == 1);
  CHECK(is_right({b, a}, llama));
  CHECK(is_right({a}, llama));
  CHECK(is_right({a, b}, qwen));
  CHECK(entries() == 4);
  folder.write("b.txt", "the End");
  CHECK(is_right({a, b}, llama));
  CHECK(entries() == 5);
}

}  // namespace trainer::data
