// Starting and watching ranks, with shells in place of ranks.
#include "engine/launch/start_ranks.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <sstream>
#include <thread>
#include <utility>

#include "engine/core/error.h"
#include "tests/temporary.h"

using namespace trainer;
using namespace std::chrono_literals;
using trainer::tests::contains;
using trainer::tests::contents_of;
using trainer::tests::TemporaryFolder;

namespace {

RanksToStart shells(int ranks, const std::string& script) {
  RanksToStart start;
  start.command = {"/bin/sh", "-c", script};
  start.ranks = ranks;
  start.orderly = {0, 143};
  start.consequence = 75;
  start.grace = 300ms;
  start.kill = 300ms;
  return start;
}

bool alive(const std::string& pid) { return ::kill(std::stoi(pid), 0) == 0; }

void wait_for_file(const std::string& path) {
  for (int turn = 0; turn < 500 && contents_of(path).empty(); ++turn) std::this_thread::sleep_for(10ms);
}

// Starts ranks in a process of its own, whose exit code is theirs.
class Starter {
 public:
  explicit Starter(const RanksToStart& start) : pid_(::fork()) {
    if (pid_ != 0) return;
    try {
      ::_exit(start_ranks(start).code);
    } catch (...) {
      ::_exit(99);
    }
  }
  ~Starter() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), wait();
  }
  void signal(int number) const { ::kill(pid_, number); }
  int wait() {
    int status = 0;
    if (pid_ <= 0 || ::waitpid(std::exchange(pid_, -1), &status, 0) < 0) return -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_;
};

}  // namespace

TEST_CASE("ranks are told who they are and where to meet, each its own") {
  const TemporaryFolder folder;
  RanksToStart start =
      shells(3, "echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT $TRAINER_TOKEN $NCCL_HOSTID >" +
                    folder.path() + "/$RANK");
  start.environment = meeting_on_this_machine(3);
  start.more = [](int rank) {
    return std::map<std::string, std::string>{{"NCCL_HOSTID", "host" + std::to_string(rank)}};
  };
  ::setenv("WORLD_SIZE", "77", 1);  // what was there before gives way
  start.first_rank = 3;             // the second of nodes
  CHECK(start_ranks(start).code == 0);
  ::unsetenv("WORLD_SIZE");
  std::string token;
  for (int rank = 0; rank < 3; ++rank) {
    std::istringstream words(contents_of(folder.path(std::to_string(rank + 3))));
    std::string own, local, world, address, port, secret, host;
    words >> own >> local >> world >> address >> port >> secret >> host;
    CHECK(own == std::to_string(rank + 3));
    CHECK(local == std::to_string(rank));
    CHECK(world == "3");
    CHECK(address == "127.0.0.1");
    CHECK(std::stoi(port) > 0);
    CHECK(secret.size() == 48);
    CHECK(host == "host" + local);
    if (rank > 0) CHECK(secret == token);
    token = secret;
  }
  CHECK(meeting_on_this_machine(3).at("TRAINER_TOKEN") != token);
}

TEST_CASE(
    "the exit code is that of the first rank that failed by itself, though others ended before it as a consequence") {
  std::vector<std::string> said;
  RanksToStart start = shells(3, "case $RANK in 0) exit 75;; 1) sleep 0.1; exit 65;; 2) sleep 0.2; exit 75;; esac");
  start.say = [&](const std::string& line) { said.push_back(line); };
  const RankEnd end = start_ranks(start);
  CHECK(end.rank == 1);
  CHECK(end.code == 65);
  CHECK(said == std::vector<std::string>{"rank 1 ended with exit code 65"});
}

TEST_CASE("a rank that a signal ends is named, and its code is what a shell would say") {
  std::vector<std::string> said;
  RanksToStart start = shells(2, "test $RANK = 0 && kill -SEGV $$; sleep 0.1; exit 75");
  start.say = [&](const std::string& line) { said.push_back(line); };
  const RankEnd end = start_ranks(start);
  CHECK(end.rank == 0);
  CHECK(end.code == 128 + SIGSEGV);
  REQUIRE(said.size() == 1);
  CHECK(contains(said[0], "rank 0 was ended by signal 11 (Segmentation fault)"));
}

TEST_CASE("others have a moment to tell why, then they are ended, those that do not listen as well") {
  const TemporaryFolder folder;
  RanksToStart start =
      shells(3, "case $RANK in 0) exit 70;; 1) trap 'echo told >" + folder.path("told") +
                    "; exit 1' TERM; sleep 10 & wait;; 2) trap '' TERM; sleep 30 & wait; sleep 30;; esac");
  const auto begin = std::chrono::steady_clock::now();
  CHECK(start_ranks(start).code == 70);
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(took >= 590ms);  // grace and kill
  CHECK(took < 5s);
  CHECK(contents_of(folder.path("told")) == "told\n");
}

TEST_CASE("signals are passed on, and ranks that end well after them are left their time") {
  const TemporaryFolder folder;
  Starter starter(shells(2, "trap 'sleep 0.'$RANK'5; echo saved >" + folder.path() +
                                "/saved$RANK; exit 143' TERM; echo up >" + folder.path() +
                                "/up$RANK; while :; do sleep 0.02; done"));
  for (const char* name : {"up0", "up1"}) wait_for_file(folder.path(name));
  starter.signal(SIGTERM);
  CHECK(starter.wait() == 143);
  CHECK(contents_of(folder.path("saved0")) == "saved\n");
  CHECK(contents_of(folder.path("saved1")) == "saved\n");
}

TEST_CASE("every signal that a run listens to arrives") {
  for (int signal : {SIGINT, SIGUSR1, SIGHUP}) {
    const TemporaryFolder folder;
    Starter starter(shells(1, "trap 'exit 5' INT; trap 'exit 6' USR1; trap 'exit 7' HUP; echo up >" +
                                  folder.path("up") + "; while :; do sleep 0.02; done"));
    wait_for_file(folder.path("up"));
    starter.signal(signal);
    CHECK(starter.wait() == (signal == SIGINT ? 5 : signal == SIGUSR1 ? 6 : 7));
  }
}

TEST_CASE("what is ignored, as SIGHUP under nohup, ranks ignore too") {
  const TemporaryFolder folder;
  ::signal(SIGHUP, SIG_IGN);
  Starter starter(shells(1, "grep SigIgn /proc/self/status >" + folder.path("ignored")));
  CHECK(starter.wait() == 0);
  ::signal(SIGHUP, SIG_DFL);
  const std::string line = contents_of(folder.path("ignored"));  // "SigIgn:\t0000000000000001"
  REQUIRE(line.size() > 8);
  CHECK((std::stoull(line.substr(8), nullptr, 16) & 1) == 1);
}

TEST_CASE("no rank outlives the process that started it, even one that is killed") {
  const TemporaryFolder folder;
  Starter starter(shells(2, "trap '' TERM INT; echo $$ >" + folder.path() + "/pid$RANK; while :; do sleep 0.02; done"));
  for (const char* name : {"pid0", "pid1"}) wait_for_file(folder.path(name));
  starter.signal(SIGKILL);
  CHECK(starter.wait() == 128 + SIGKILL);
  for (const char* name : {"pid0", "pid1"}) {
    const std::string pid = contents_of(folder.path(name));
    bool gone = false;
    for (int turn = 0; turn < 200 && !gone; ++turn) {
      gone = !alive(pid) || contains(contents_of("/proc/" + std::to_string(std::stoi(pid)) + "/stat"),
                                     ") Z ");  // init may be slow to reap
      std::this_thread::sleep_for(10ms);
    }
    CHECK(gone);
  }
}

TEST_CASE("no zombie is left, nor a signal blocked") {
  CHECK(start_ranks(shells(4, "exit 0")).code == 0);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
  sigset_t blocked;
  ::sigprocmask(SIG_SETMASK, nullptr, &blocked);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) CHECK(sigismember(&blocked, signal) == 0);
}

TEST_CASE("a command that is not there is an error, and nothing runs") {
  RanksToStart start = shells(2, "");
  start.command = {"/no/such/command"};
  CHECK(contains(trainer::tests::message_of<trainer::IoError>([&] { start_ranks(start); }),
                 "/no/such/command: No such file or directory"));
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("the command of this process can be started again") {
  const std::vector<std::string> command = own_command();
  CHECK(contains(command.at(0), "start_ranks"));
  CHECK(command.at(0).front() == '/');
}
