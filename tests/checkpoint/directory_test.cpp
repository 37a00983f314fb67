// A run's hold on its directory: made durably, writable before the first step, locked, watched; and what the system
// refuses is told from what is damaged.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "tests/checkpoint/small_checkpoint.h"
#include "tests/temporary.h"

namespace {

std::vector<std::string> calls;  // of mkdir and fsync: "mkdir PATH", "fsync PATH"
bool without_locks = false;

}  // namespace

// Linked in place of the C library's, to see what is asked of the system.
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  calls.push_back(std::string("mkdir ") + path);
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

extern "C" int fsync(int file) {
  char path[4096] = "";
  if (::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path, sizeof path - 1) > 0)
    calls.push_back(std::string("fsync ") + path);
  return static_cast<int>(::syscall(SYS_fsync, file));
}

extern "C" int flock(int file, int operation) noexcept {
  if (!without_locks) return static_cast<int>(::syscall(SYS_flock, file, operation));
  errno = ENOLCK;
  return -1;
}

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;
using tests::contains;
using tests::message_of;
using tests::save_small;
using tests::TemporaryFolder;

std::vector<std::string> entries_of(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& each : fs::directory_iterator(dir)) names.push_back(each.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// The superuser may do everything, so `action` runs in a process of an ordinary user. Whether it returned true.
template <typename Action>
bool as_ordinary_user(Action&& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    bool done = false;
    try {
      constexpr uid_t kNobody = 65534;
      if (::getuid() != 0 || (::setgid(kNobody) == 0 && ::setuid(kNobody) == 0)) done = action();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(done ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// A folder that any user may change.
struct OpenFolder : TemporaryFolder {
  OpenFolder() { ::chmod(path().c_str(), 0777); }
};

TEST_CASE("every directory that is made for checkpoints is on the disk, with its name in the one above") {
  const TemporaryFolder folder;
  calls.clear();
  const Store store(folder.path("a/b/c"));
  std::vector<std::string> made;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!fs::exists(calls[i].substr(6)) || !calls[i].starts_with("mkdir ")) continue;
    const std::string path = calls[i].substr(6), parent = fs::path(path).parent_path().string();
    const auto next = std::find_if(calls.begin() + static_cast<std::ptrdiff_t>(i) + 1, calls.end(),
                                   [](const std::string& call) { return call.starts_with("mkdir "); });
    if (std::find(calls.begin() + static_cast<std::ptrdiff_t>(i), next, "fsync " + parent) != next)
      made.push_back(path);
  }
  CHECK(made == std::vector<std::string>{folder.path("a"), folder.path("a/b"), folder.path("a/b/c")});
}

TEST_CASE("a directory where nothing can be saved is refused before the first step") {
  OpenFolder folder;
  const auto refusal = [](const std::string& dir) { return message_of<IoError>([&] { const Store store(dir); }); };
  fs::create_directory(folder.path("read-only"));
  ::chmod(folder.path("read-only").c_str(), 0555);
  CHECK(as_ordinary_user([&] {
    return contains(refusal(folder.path("read-only")),
                    "read-only: checkpoints cannot be saved here: Permission denied");
  }));
  CHECK(as_ordinary_user([&] {
    return contains(refusal(folder.path("read-only/a/b")), "read-only/a: creating the directory: Permission denied");
  }));

  folder.write("file", "x");
  CHECK(contains(refusal(folder.path("file")), "file: opening as a directory: Not a directory"));
  CHECK(contains(refusal(folder.path("file/a")), "file/a: creating the directory: Not a directory"));
  fs::create_symlink("loop", folder.path("loop"));
  CHECK(contains(refusal(folder.path("loop")), "loop: opening as a directory: Too many levels of symbolic links"));
  std::string longest = folder.path();
  while (longest.size() < 4020) longest += "/" + std::string(std::min<std::size_t>(200, 4040 - longest.size()), 'a');
  CHECK(contains(refusal(longest), "checkpoints cannot be saved here: "));
  CHECK(contains(refusal(longest), "File name too long"));
}

TEST_CASE("a directory on a full disk is refused before the first step, and nothing is left in it") {
  const TemporaryFolder folder;
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit none{0, before.rlim_max};  // stands for the full disk
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  const std::string error = message_of<IoError>([&] { const Store store(folder.path()); });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(contains(error, "File too large"));
  CHECK(entries_of(folder.path()).empty());
}

TEST_CASE("a save that fails leaves nothing on a disk that may be full") {
  const TemporaryFolder folder;
  {
    Store store(folder.path());
    save_small(store, 1);
    store.begin(2);
    tests::write_small(store.dir(), 2);
    CHECK(entries_of(folder.path()) == std::vector<std::string>{".owner", ".step-00000002.tmp", "step-00000001"});
  }
  CHECK(entries_of(folder.path()) == std::vector<std::string>{"step-00000001"});
}

TEST_CASE("a checkpoint that the system does not let us read is not damaged, and no older one is taken for it") {
  OpenFolder folder;
  {
    Store store(folder.path("runs"));
    save_small(store, 1);
    save_small(store, 2);
  }
  for (const char* name :
       {"runs/step-00000002/model.safetensors", "runs/step-00000002/manifest.json", "runs/step-00000002", "runs"}) {
    CAPTURE(name);
    const std::string path = folder.path(name);
    const mode_t mode = fs::is_directory(path) ? 0755 : 0644;
    ::chmod(path.c_str(), 0);
    CHECK(as_ordinary_user([&] {
      const std::string error = message_of<IoError>([&] { newest_whole(folder.path("runs")); });
      return contains(error, name) && contains(error, "Permission denied") &&
             contains(error, "no older one is used in its place");
    }));
    ::chmod(path.c_str(), mode);
    CHECK(as_ordinary_user([&] { return newest_whole(folder.path("runs")).checkpoint->manifest.step == 2; }));
  }
}

TEST_CASE("a checkpoint under the name of another step is damaged") {
  const TemporaryFolder folder;
  Store store(folder.path());
  for (const std::int64_t step : {3, 4}) save_small(store, step);
  fs::rename(folder.path("step-00000004"), folder.path("step-00000009"));
  const NewestWhole newest = newest_whole(folder.path());
  CHECK(newest.checkpoint->manifest.step == 3);
  REQUIRE(newest.damaged.size() == 1);
  CHECK(
      contains(newest.damaged[0], "step-00000009/manifest.json: is of step 4, but its directory is named for step 9"));
  CHECK(contains(message_of<DataError>([&] { open_checkpoint(folder.path("step-00000009/")); }), "is of step 4"));
  fs::rename(folder.path("step-00000009"), folder.path("best"));  // any other name is the user's own
  CHECK(verify(folder.path("best")).empty());
}

TEST_CASE("checkpoints of another user that cannot be removed are told of, and the run goes on") {
  OpenFolder folder;
  const std::string dir = folder.path("runs");
  fs::create_directory(dir);
  {
    Store store(dir);
    save_small(store, 1);
  }
  ::chmod(dir.c_str(), 0777);
  ::chmod((dir + "/step-00000001").c_str(), 0555);
  CHECK(as_ordinary_user([&] {
    std::vector<std::string> warnings;
    Store store(dir, [&](const std::string& text) { warnings.push_back(text); });
    save_small(store, 2, 1);
    save_small(store, 3, 1);
    return warnings.size() == 1 && contains(warnings[0], "Permission denied; the run goes on") &&
           newest_whole(dir).checkpoint->manifest.step == 3;
  }));
  CHECK(entries_of(dir) == std::vector<std::string>{".step-00000001.trash", "step-00000003"});
  CHECK(as_ordinary_user([&] {
    std::vector<std::string> warnings;
    Store store(dir, [&](const std::string& text) { warnings.push_back(text); });
    save_small(store, 4, 1);
    return warnings.size() == 1 && contains(warnings[0], ".step-00000001.trash") &&
           newest_whole(dir).checkpoint->manifest.step == 4;
  }));
}

TEST_CASE("a second run on one directory hears who holds it, whatever path it takes there") {
  const TemporaryFolder folder;
  const Store store(folder.path("runs"));
  fs::create_directory_symlink("runs", folder.path("link"));
  for (const char* name : {"runs", "runs/", "link"}) {
    const std::string error = message_of<IoError>([&] { const Store second(folder.path(name)); });
    CHECK(contains(error, "another run saves its checkpoints here: process " + std::to_string(::getpid()) + " on "));
  }
}

TEST_CASE("a file system without locks is used, and the user told") {
  const TemporaryFolder folder;
  std::vector<std::string> warnings;
  without_locks = true;
  {
    Store store(folder.path(), [&](const std::string& text) { warnings.push_back(text); });
    save_small(store, 1);
  }
  without_locks = false;
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "this file system has no locks"));
}

TEST_CASE("a run whose directory was replaced does not save in the new one") {
  const TemporaryFolder folder;
  const std::string dir = folder.path("runs");
  Store store(dir);
  save_small(store, 1);
  fs::rename(dir, folder.path("moved"));
  fs::create_directory(dir);
  Store second(dir);
  CHECK(contains(message_of<IoError>([&] { save_small(store, 2); }),
                 "runs: was moved or replaced while this run used it"));
  save_small(second, 7);
  CHECK(entries_of(dir) == std::vector<std::string>{".owner", "step-00000007"});
  CHECK(entries_of(folder.path("moved")) == std::vector<std::string>{".owner", "step-00000001"});
}

TEST_CASE("a directory that was replaced while a checkpoint was written gets no part of it") {
  const TemporaryFolder folder;
  const std::string dir = folder.path("runs");
  Store store(dir);
  store.begin(2);
  tests::write_small(dir, 2);
  fs::rename(dir, folder.path("moved"));
  fs::create_directory(dir);
  CHECK(!message_of<IoError>([&] { store.commit(2, "", "{}"); }).empty());
  CHECK(entries_of(dir).empty());
}

TEST_CASE("a directory that was moved away or removed is made and locked again") {
  const TemporaryFolder folder;
  const std::string dir = folder.path("deep/runs");
  std::vector<std::string> warnings;
  Store store(dir, [&](const std::string& text) { warnings.push_back(text); });
  save_small(store, 1);
  fs::rename(dir, folder.path("moved"));
  CHECK(save_small(store, 2) == dir + "/step-00000002");
  fs::remove_all(folder.path("deep"));
  save_small(store, 3);
  CHECK(entries_of(dir) == std::vector<std::string>{".owner", "step-00000003"});
  CHECK(warnings.size() == 2);
  CHECK(contains(message_of<IoError>([&] { const Store second(dir); }), "another run"));
}

TEST_CASE("readers find a whole checkpoint while a run saves and removes") {
  const TemporaryFolder folder;
  const std::string dir = folder.path();
  {
    Store store(dir);
    save_small(store, 1);
  }
  const pid_t run = ::fork();
  if (run == 0) {
    try {
      Store store(dir);
      for (std::int64_t step = 2;; ++step) save_small(store, step, 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(1);
  }
  std::int64_t before = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (before < 30) {
    REQUIRE(std::chrono::steady_clock::now() - begin < std::chrono::minutes(2));
    const NewestWhole newest = newest_whole(dir);
    REQUIRE(newest.checkpoint);
    CHECK(newest.damaged.empty());
    CHECK(newest.checkpoint->manifest.step >= before);
    before = newest.checkpoint->manifest.step;
    float first = 0;
    newest.checkpoint->tensors.read("w", 0, 1, &first);
    CHECK(first == static_cast<float>(before));
  }
  ::kill(run, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(run, &status, 0) == run);
  CHECK(WIFSIGNALED(status));
}

}  // namespace
}  // namespace trainer::checkpoint
