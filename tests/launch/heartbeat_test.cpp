// The heartbeat's start, with strangers at rank 0's port: ranks as threads over real sockets.
#include "engine/launch/heartbeat.h"

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/launch/sockets.h"

using namespace trainer;

namespace {

using Clock = std::chrono::steady_clock;

// Rank 0's text, for all; before the others get it, something else may happen.
class Broadcast {
 public:
  std::string first(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ = text;
    told_.notify_all();
    return text;
  }
  std::string other() {
    std::unique_lock lock(mutex_);
    told_.wait(lock, [&] { return !text_.empty(); });
    return text_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  std::string text_;
};

std::uint16_t port_in(const std::string& text) {
  return static_cast<std::uint16_t>(std::atoi(text.c_str() + 16));
}  // behind the token

// Seconds until all of `world` ranks hear each other; `before` happens between rank 0's listening and the others'
// coming.
double start(int world, const std::function<void(const std::string&)>& before) {
  Broadcast broadcast;
  std::exception_ptr failure;
  const Clock::time_point begin = Clock::now();
  Clock::time_point end;
  {
    std::vector<std::jthread> ranks;
    ranks.emplace_back([&] {
      try {
        const Heartbeat heartbeat(
            0, world, [&](const std::string& text) { return broadcast.first(text); }, [](const std::string&) {});
        end = Clock::now();
      } catch (...) {
        failure = std::current_exception();
      }
    });
    const std::string text = broadcast.other();
    before(text);
    for (int rank = 1; rank < world; ++rank)
      ranks.emplace_back([&, rank] {
        try {
          const Heartbeat heartbeat(
              rank, world, [&](const std::string&) { return broadcast.other(); }, [](const std::string&) {});
        } catch (...) {
          failure = std::current_exception();
        }
      });
  }
  if (failure) std::rethrow_exception(failure);
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

TEST_CASE("connections that say nothing do not delay the ranks") {
  for (int idle : {0, 1, 3, 5, 20, 400}) {
    CAPTURE(idle);
    std::vector<Descriptor> strangers;
    const double seconds = start(3, [&](const std::string& text) {
      for (int i = 0; i < idle; ++i)
        strangers.push_back(
            sockets::connect_to(sockets::resolve("127.0.0.1", port_in(text)).at(0), sockets::now_ms() + 1000));
    });
    CHECK(seconds < 1);
  }
}

TEST_CASE("connections that say the wrong thing, too much or half of it are not ranks") {
  std::vector<Descriptor> strangers;
  const double seconds = start(2, [&](const std::string& text) {
    const std::string token = text.substr(0, 16);
    for (const std::string& hello : {std::string(20, 'x'), token + "abc", token + std::string("\1\0\0\0more", 8),
                                     std::string("GET / HTTP/1.1\r\n\r\n")}) {
      strangers.push_back(
          sockets::connect_to(sockets::resolve("127.0.0.1", port_in(text)).at(0), sockets::now_ms() + 1000));
      REQUIRE(sockets::send_exactly(strangers.back(), hello.data(), hello.size(), sockets::now_ms() + 1000));
    }
  });
  CHECK(seconds < 1);
}

TEST_CASE("a rank that gave its first connection up comes again") {
  const double seconds = start(3, [&](const std::string& text) {
    const std::string hello = text.substr(0, 16) + std::string("\1\0\0\0", 4);
    const Descriptor first =
        sockets::connect_to(sockets::resolve("127.0.0.1", port_in(text)).at(0), sockets::now_ms() + 1000);
    REQUIRE(sockets::send_exactly(first, hello.data(), hello.size(), sockets::now_ms() + 1000));
  });
  CHECK(seconds < 1);
}
