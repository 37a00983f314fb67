// Limits of control groups, by folders that look like those of /proc and /sys, and what refusals of the system say.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cerrno>

#include "engine/core/control_group.h"
#include "engine/core/system_error.h"
#include "tests/temporary.h"

using namespace trainer;
using trainer::tests::contains;
using trainer::tests::TemporaryFolder;

namespace {

// A process in `groups` (a line of /proc/self/cgroup), whose hierarchy is seen at the folder `sys` from the group
// `root` on.
std::optional<std::int64_t> memory_limit(const TemporaryFolder& in, const std::string& groups, const std::string& root,
                                         const std::string& type, const std::string& options) {
  in.write("proc/cgroup", groups);
  in.write("proc/mountinfo", "31 23 0:28 / /proc rw,relatime - proc proc rw\n35 31 0:32 " + root + " " +
                                 in.path("sys") + " rw,relatime shared:9 - " + type + " cgroup " + options + "\n");
  return control_group_limit("memory", "memory.limit_in_bytes", "memory.max", in.path("proc"));
}

}  // namespace

TEST_CASE("the limit of a nested control group of version 1 counts, and that of a group above it where it is lower") {
  const TemporaryFolder in;
  in.write("sys/memory.limit_in_bytes", "9223372036854771712\n");
  in.write("sys/a/memory.limit_in_bytes", "1000\n");
  in.write("sys/a/b/memory.limit_in_bytes", "2000\n");
  in.write("sys/c/memory.limit_in_bytes", "5\n");
  const auto limit = [&](const std::string& path) {
    return memory_limit(in, "9:pids:/c\n8:cpu,memory:" + path + "\n0::/c\n", "/", "cgroup", "rw,memory");
  };
  CHECK(limit("/a/b") == 1000);
  CHECK(limit("/c") == 5);
  CHECK(limit("/") == 9223372036854771712);
  CHECK(limit("/gone") == 9223372036854771712);
}

TEST_CASE("the limit of a nested control group of version 2 counts; max is none") {
  const TemporaryFolder in;
  in.write("sys/a/memory.max", "max\n");
  in.write("sys/a/b/memory.max", "3000\n");
  const auto limit = [&](const std::string& path) {
    return memory_limit(in, "0::" + path + "\n", "/", "cgroup2", "rw,nsdelegate");
  };
  CHECK(limit("/a/b") == 3000);
  CHECK(limit("/a") == std::nullopt);
}

TEST_CASE("a container that sees its own part of the hierarchy alone finds its limits there") {
  const TemporaryFolder in;
  in.write("sys/memory.limit_in_bytes", "4000\n");
  in.write("sys/inner/memory.limit_in_bytes", "3000\n");
  const auto limit = [&](const std::string& path) {
    return memory_limit(in, "8:memory:" + path + "\n", "/docker/x", "cgroup", "rw,memory");
  };
  CHECK(limit("/docker/x") == 4000);
  CHECK(limit("/docker/x/inner") == 3000);
  CHECK(limit("/elsewhere") == 4000);
}

TEST_CASE("a hierarchy of another controller says nothing of memory") {
  const TemporaryFolder in;
  in.write("sys/memory.limit_in_bytes", "1\n");
  CHECK(memory_limit(in, "8:cpu:/\n", "/", "cgroup", "rw,cpu") == std::nullopt);
}

TEST_CASE("a refusal of the system names the limit behind it") {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(contains(system_text(EMFILE), "open files of a process is " + std::to_string(limit.rlim_cur) + " (ulimit -n)"));
  CHECK(contains(system_text(EDQUOT), "quota"));
  CHECK(system_text(EACCES) == "Permission denied");
}

TEST_CASE("threads that can be started are started and ended") { CHECK_NOTHROW(require_threads(8)); }
