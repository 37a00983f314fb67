// The rendezvous: ranks as threads over real sockets, with strangers among them.
#include "engine/launch/rendezvous.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>

#include "engine/core/error.h"
#include "engine/launch/sockets.h"
#include "tests/temporary.h"

namespace trainer::rendezvous_test {

using namespace trainer::rendezvous;
using trainer::tests::contains;
using trainer::tests::message_of;

namespace {

std::uint16_t free_port() { return sockets::port_of(sockets::listen_at(0, sockets::Reach::everyone, 1)); }

bool has_ipv6() {
  try {
    sockets::listen_at(0, sockets::Reach::loopback6, 1);
    return true;
  } catch (const IoError&) {
    return false;
  }
}

Rendezvous place_of(int rank, int world, std::uint16_t port, double timeout_s = 60) {
  Rendezvous place;
  place.hosts = {"127.0.0.1"};
  place.port = port;
  place.rank = rank;
  place.world_size = world;
  place.local_rank = rank % 8;
  place.own_host = "host" + std::to_string(rank / 8);
  place.token = "a secret";
  place.fingerprint = "plan " + std::to_string(rank % 2);
  place.timeout_s = timeout_s;
  return place;
}

// So that ranks with little time do not spend it before rank 0 listens.
void wait_for_listener(std::uint16_t port) {
  while (!sockets::connect_to(sockets::resolve("127.0.0.1", port).at(0), sockets::now_ms() + 1000))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// A rank in a thread of its own: what it got, or why it failed.
class Rank {
 public:
  Rank(Rendezvous place, std::string payload = "")
      : thread_([this, place = std::move(place), payload = std::move(payload)] {
          try {
            gathered_ = meet(place, payload);
            done_ = true;
          } catch (const IoError& error) {
            why_ = error.what();
          }
        }) {}
  ~Rank() { join(); }

  bool came() { return join(), done_.load(); }
  bool is_done() const { return done_; }
  const Gathered& gathered() { return join(), gathered_; }
  std::string why() { return join(), why_; }

 private:
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  std::atomic<bool> done_{false};
  Gathered gathered_;
  std::string why_;
  std::thread thread_;
};

Hello hello_of(int rank, int world) {
  return {kVersion, static_cast<std::uint32_t>(world), static_cast<std::uint32_t>(rank), 0, "a secret", "stranger", ""};
}

// What strangers say. Each is malformed, or of another job, in its own way.
std::string hostile(std::mt19937& random, int kind, int world) {
  std::string text = print(hello_of(1 + static_cast<int>(random() % 3), world));
  const auto noise = [&](std::size_t bytes) {
    std::string bits(bytes, '\0');
    for (char& c : bits) c = static_cast<char>(random());
    return bits;
  };
  switch (kind) {
    case 0:
      return noise(random() % 600);
    case 1:
      return text + noise(1 + random() % 400);  // too long, a true message in front
    case 2:
      return text.substr(0, random() % text.size());  // half a message
    case 3: {
      Hello wrong = hello_of(1, world);
      wrong.token = random() % 2 ? "" : "a secrets";
      return print(wrong);
    }
    case 4: {
      Hello wrong = hello_of(1, world);
      wrong.version = 1 + kVersion + random() % 9;
      return print(wrong);
    }
    case 5: {
      Hello wrong = hello_of(1, world);
      wrong.world_size = static_cast<std::uint32_t>(world) + 1 + random() % 9;
      return print(wrong);
    }
    case 6: {
      Hello wrong = hello_of(1, world);
      wrong.rank = random() % 2 ? 0 : static_cast<std::uint32_t>(world) + random();
      return print(wrong);
    }
    case 7:
      return "";  // closes at once, or says nothing
    case 8:
      text[30 + random() % 60] ^= static_cast<char>(1 + random() % 255);
      return text.substr(0, 24) + noise(kText) + text.substr(24 + kText);
    case 9:
      text[24 + kText + random() % kText] = static_cast<char>(0x80 | random());
      return text;  // a host of bytes that are no text
    case 10:
      return "GET / HTTP/1.1\r\nHost: " + noise(200) + "\r\n\r\n";
    default:
      return print(Welcome{kVersion, static_cast<std::uint32_t>(world), true, "a secret", noise(128)});
  }
}

struct Attacks {
  std::atomic<int> connected{0}, told{0};
  std::atomic<int> whole{0}, closed{0};  // those that said enough to be judged, and were found closed
};

// `number` strangers, all connected at once.
void attack(std::uint16_t port, std::mt19937& random, int number, int world, Attacks& attacks) {
  const sockets::Address to = sockets::resolve("127.0.0.1", port).at(0);
  std::vector<std::pair<Descriptor, bool>> open;
  for (int i = 0; i < number;) {
    Descriptor socket = sockets::connect_to(to, sockets::now_ms() + 5000);
    if (!socket) continue;
    ++attacks.connected;
    const linger at_once{1, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);  // leaves no port in TIME_WAIT
    const int kind = i++ % 12;
    const std::string text = hostile(random, kind, world);
    const bool sent = sockets::send_exactly(socket, text.data(), text.size(), sockets::now_ms() + 1000);
    if (kind == 7 && random() % 2 == 0) continue;  // closed
    open.emplace_back(std::move(socket), sent && text.size() >= kHelloBytes);
  }
  for (const auto& [socket, whole] : open) {
    char byte = 0;
    if (whole) ++attacks.whole;
    if (whole && sockets::wait_for(socket, POLLIN, sockets::now_ms() + 10000)) ++attacks.closed;
    if (::recv(socket.get(), &byte, 1, MSG_DONTWAIT) > 0) ++attacks.told;
  }
}

}  // namespace

TEST_CASE("everyone gets rank 0's payload and everyone's place, over IPv4, IPv6 and by name") {
  for (const char* host : {"127.0.0.1", "localhost", "::1"}) {
    CAPTURE(std::string(host));
    if (std::string(host) == "::1" && !has_ipv6()) {
      MESSAGE("skipped: no IPv6 here");
      continue;
    }
    Rendezvous first = place_of(0, 3, free_port());
    first.hosts = {host};
    std::string payload(128, '\0');
    for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 37);
    Rank zero(first, payload);
    Rendezvous second = place_of(1, 3, first.port), third = place_of(2, 3, first.port);
    second.hosts = third.hosts = {host};
    Rank one(second), two(third);
    for (Rank* rank : {&zero, &one, &two}) {
      REQUIRE_MESSAGE(rank->came(), rank->why());
      CHECK(rank->gathered().payload == payload);
      CHECK(rank->gathered().places ==
            std::vector<RankPlace>{{"host0", "plan 0", 0}, {"host0", "plan 1", 1}, {"host0", "plan 0", 2}});
    }
  }
}

TEST_CASE("64 ranks meet, those that come before rank 0 as well") {
  constexpr int kWorld = 64;
  const std::uint16_t port = free_port();
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 1; rank < kWorld; ++rank) ranks.push_back(std::make_unique<Rank>(place_of(rank, kWorld, port)));
  ranks.push_back(std::make_unique<Rank>(place_of(0, kWorld, port), "payload"));
  for (const auto& rank : ranks) {
    REQUIRE_MESSAGE(rank->came(), rank->why());
    CHECK(rank->gathered().payload == "payload");
    REQUIRE(rank->gathered().places.size() == kWorld);
    for (int other = 0; other < kWorld; ++other)
      CHECK(rank->gathered().places[static_cast<std::size_t>(other)] ==
            RankPlace{"host" + std::to_string(other / 8), "plan " + std::to_string(other % 2), other % 8});
  }
}

TEST_CASE(
    "of 10,000 malformed and hostile connections none is a rank or is told a byte, and the real ranks come through") {
  constexpr int kWorld = 4, kAttackers = 4, kEach = 2500, kBatch = 125;
  const std::uint16_t port = free_port();
  std::atomic<int> notices{0};
  Rendezvous first = place_of(0, kWorld, port);
  first.notice = [&](const std::string&) { ++notices; };
  Rank zero(first, "payload"), early(place_of(1, kWorld, port));
  Attacks attacks;
  std::vector<std::unique_ptr<Rank>> late;
  {
    std::vector<std::thread> attackers;
    for (int attacker = 0; attacker < kAttackers; ++attacker)
      attackers.emplace_back([&, attacker] {
        std::mt19937 random(static_cast<unsigned>(attacker));
        for (int done = 0; done < kEach; done += kBatch) attack(port, random, kBatch, kWorld, attacks);
      });
    while (attacks.connected < kAttackers * kEach / 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    late.push_back(std::make_unique<Rank>(place_of(2, kWorld, port)));  // in the middle of it
    for (std::thread& attacker : attackers) attacker.join();
  }
  CHECK(attacks.connected == kAttackers * kEach);
  CHECK(attacks.told == 0);
  CHECK(attacks.whole > kAttackers * kEach / 2);
  CHECK(attacks.closed == attacks.whole);
  CHECK(!zero.is_done());  // a stranger that counted would have made them whole
  CHECK(notices <= 16);
  late.push_back(std::make_unique<Rank>(place_of(3, kWorld, port)));
  REQUIRE_MESSAGE(zero.came(), zero.why());
  CHECK(early.came());
  for (const auto& rank : late) CHECK(rank->came());
  for (const RankPlace& place : zero.gathered().places) CHECK(place.host == "host0");
}

TEST_CASE("connections that say nothing, or a byte now and then, hold up no rank") {
  const std::uint16_t port = free_port();
  Rank zero(place_of(0, 2, port), "payload");
  std::vector<Descriptor> silent;
  const sockets::Address to = sockets::resolve("127.0.0.1", port).at(0);
  while (silent.size() < 400) {  // more than are kept open
    Descriptor socket = sockets::connect_to(to, sockets::now_ms() + 1000);
    if (!socket) continue;
    if (silent.size() % 2 == 0) sockets::send_exactly(socket, "trnr", 4, sockets::now_ms() + 100);
    silent.push_back(std::move(socket));
  }
  const std::int64_t begin = sockets::now_ms();
  Rank one(place_of(1, 2, port));
  CHECK(one.came());
  CHECK(zero.came());
  CHECK(sockets::now_ms() - begin < 3000);  // less than the 5 s that a silent connection has
}

TEST_CASE("ranks that have not come are named, on rank 0 and on those that came") {
  const std::uint16_t port = free_port();
  Rank zero(place_of(0, 8, port, 2)), one(place_of(1, 8, port, 30)), four(place_of(4, 8, port, 30));
  CHECK(contains(zero.why(), "ranks 2, 3, 5 to 7 of 8 have not come within 2 s"));
  for (Rank* rank : {&one, &four})
    CHECK(contains(rank->why(), "rank 0 gave up: rendezvous at 127.0.0.1:" + std::to_string(port) +
                                    ": ranks 2, 3, 5 to 7 of 8 have not come within 2 s"));

  const std::uint16_t other = free_port();
  Rank alone(place_of(0, 2, other, 1));
  CHECK(contains(alone.why(), "rank 1 of 2 has not come within 1 s; has its process started"));
}

TEST_CASE("a rank that finds no rank 0 says where it looked") {
  const std::uint16_t port = free_port();
  CHECK(contains(Rank(place_of(1, 2, port, 1)).why(),
                 "rank 1 of 2 did not meet rank 0 at 127.0.0.1:" + std::to_string(port) +
                     " within 1 s: nothing answers at 127.0.0.1"));
  Rendezvous unknown = place_of(1, 2, port, 1);
  unknown.hosts = {"no-such-host.invalid"};
  CHECK(contains(Rank(unknown).why(), "the name no-such-host.invalid is not known here"));
}

TEST_CASE(
    "a rank that is there keeps its place; the error names both addresses, and the other hears that it was refused") {
  const std::uint16_t port = free_port();
  std::string noticed;
  std::atomic<bool> seen{false};
  Rendezvous first = place_of(0, 3, port, 4);
  first.notice = [&](const std::string& text) {
    if (!seen.exchange(true)) noticed = text;
  };
  Rank zero(first);
  wait_for_listener(port);
  Rank one(place_of(1, 3, port, 30));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // so that it is the first
  Rendezvous again = place_of(1, 3, port, 1);
  again.own_host = "elsewhere";
  Rank twin(again);
  CHECK(contains(twin.why(), "closed the connection"));
  CHECK(contains(zero.why(), "rank 2 of 3 has not come within 4 s"));
  for (const std::string& text : {zero.why(), noticed}) {
    CHECK(contains(text, "(elsewhere): it says rank 1, which 127.0.0.1:"));
    CHECK(contains(text, "(host0) already is"));
  }
  CHECK(!one.came());
}

TEST_CASE("a rank whose process ends before all are there gives its place free") {
  const std::uint16_t port = free_port();
  Rank zero(place_of(0, 3, port), "payload");
  {
    Descriptor socket;
    while (!socket) socket = sockets::connect_to(sockets::resolve("127.0.0.1", port).at(0), sockets::now_ms() + 1000);
    const std::string text = print(hello_of(1, 3));
    CHECK(sockets::send_exactly(socket, text.data(), text.size(), sockets::now_ms() + 1000));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  Rank one(place_of(1, 3, port)), two(place_of(2, 3, port));
  CHECK(zero.came());
  CHECK(one.came());
  CHECK(two.came());
  CHECK(zero.gathered().places[1].host == "host0");
}

TEST_CASE("mistakes of real ranks are told on rank 0: other worlds, other tokens") {
  const std::uint16_t port = free_port();
  Rank zero(place_of(0, 2, port, 3));
  wait_for_listener(port);
  Rank four(place_of(1, 4, port, 1));
  Rendezvous wrong = place_of(1, 2, port, 1);
  wrong.token = "another";
  Rank token(wrong);
  CHECK(contains(four.why(), "closed the connection"));
  CHECK(contains(token.why(), "closed the connection"));
  CHECK(contains(zero.why(), "it says 4 ranks, this process 2"));
  CHECK(contains(zero.why(), "its token is not that of this job"));
}

TEST_CASE("a rank takes nothing from a rank 0 that has not its token") {
  const std::uint16_t port = free_port();
  const Descriptor listener = sockets::listen_at(port, sockets::Reach::loopback, 4);
  std::atomic<bool> over{false};
  std::thread stranger([&] {
    const std::string text = print(Welcome{kVersion, 2, true, "guessed", "an id"}) + print(std::vector<RankPlace>(2));
    while (!over) {
      sockets::Address from;
      if (!sockets::wait_for(listener, POLLIN, sockets::now_ms() + 50)) continue;
      const Descriptor socket = sockets::accept_one(listener, from);
      sockets::send_exactly(socket, text.data(), text.size(), sockets::now_ms() + 500);
    }
  });
  CHECK(contains(Rank(place_of(1, 2, port, 1)).why(), "is not rank 0 of this job"));
  over = true;
  stranger.join();
}

TEST_CASE("a port that is taken is an error that says so") {
  const Descriptor other = sockets::listen_at(0, sockets::Reach::loopback, 1);
  const std::uint16_t port = sockets::port_of(other);
  CHECK(contains(Rank(place_of(0, 2, port, 1)).why(),
                 "rank 0 cannot listen at port " + std::to_string(port) + ": Address already in use"));
}

namespace {

// Rank 0's text for all, as MPI would tell it; before the others get it, something else may happen.
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

// Milliseconds until `world` ranks have met by a broadcast; `before(token, port)` is between rank 0's listening and the
// others' coming. Every connection is tried both ways.
std::int64_t meet_ms(int world, const std::function<void(const std::string&, std::uint16_t)>& before) {
  Broadcast broadcast;
  std::vector<Connections> ranks(static_cast<std::size_t>(world));
  std::string why;
  const std::int64_t begin = sockets::now_ms();
  {
    std::vector<std::jthread> threads;
    const auto start = [&](int rank) {
      threads.emplace_back([&, rank] {
        try {
          ranks[static_cast<std::size_t>(rank)] = meet_by(rank, world, [&](const std::string& text) {
            return rank == 0 ? broadcast.first(text) : broadcast.other();
          });
        } catch (const IoError& error) {
          why = error.what();
        }
      });
    };
    start(0);
    std::istringstream words(broadcast.other());
    std::string token;
    std::uint16_t port = 0;
    words >> token >> port;
    before(token, port);
    for (int rank = 1; rank < world; ++rank) start(rank);
  }
  const std::int64_t end = sockets::now_ms();
  REQUIRE(why == "");
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const Descriptor &there = ranks[0].at(rank - 1), &here = ranks[rank].at(0);
    for (const auto& [from, to] : {std::pair(&there, &here), std::pair(&here, &there)}) {
      char sent = static_cast<char>(rank), got = 0;
      CHECK(sockets::send_exactly(*from, &sent, 1, sockets::now_ms() + 1000));
      CHECK(sockets::receive_exactly(*to, &got, 1, sockets::now_ms() + 1000));
      CHECK(got == sent);
    }
  }
  return end - begin;
}

Descriptor stranger_at(std::uint16_t port) {
  return sockets::connect_to(sockets::resolve("127.0.0.1", port).at(0), sockets::now_ms() + 1000);
}

}  // namespace

TEST_CASE("ranks that something else connects meet at a port of rank 0's choice, whoever else comes there") {
  CHECK(meet_by(0, 1, [](const std::string& text) { return text; }).empty());
  for (int idle : {0, 3, 400}) {
    CAPTURE(idle);
    std::vector<Descriptor> strangers;
    CHECK(meet_ms(3, [&](const std::string&, std::uint16_t port) {
            for (int i = 0; i < idle; ++i) strangers.push_back(stranger_at(port));
          }) < 4000);
  }
  std::vector<Descriptor> strangers;
  CHECK(meet_ms(3, [&](const std::string& token, std::uint16_t port) {
          CHECK(token.size() == 48);
          Hello guess = hello_of(1, 3);  // with another token
          for (const std::string& text :
               {print(guess), print(guess).substr(0, 30), std::string("GET / HTTP/1.1\r\n\r\n")}) {
            strangers.push_back(stranger_at(port));
            REQUIRE(sockets::send_exactly(strangers.back(), text.data(), text.size(), sockets::now_ms() + 1000));
          }
        }) < 4000);
  CHECK(meet_ms(3, [&](const std::string& token, std::uint16_t port) {
          Hello true_one = hello_of(1, 3);  // a rank that gives its first connection up
          true_one.token = token;
          const Descriptor first = stranger_at(port);
          const std::string text = print(true_one);
          REQUIRE(sockets::send_exactly(first, text.data(), text.size(), sockets::now_ms() + 1000));
        }) < 4000);
}

TEST_CASE("a rank gives a listener that does not answer three seconds, and then tries the next address") {
  const Descriptor deaf = sockets::listen_at(0, sockets::Reach::loopback, 4);
  const std::uint16_t port = sockets::port_of(deaf);
  Rendezvous place = place_of(1, 2, port, 4);
  place.hosts = {"127.0.0.1", "127.0.0.2"};  // of which the second refuses at once
  const std::int64_t begin = sockets::now_ms();
  const std::string why = Rank(place).why();
  CHECK(contains(why, "did not meet rank 0 at 127.0.0.1:" + std::to_string(port) + " or 127.0.0.2:"));
  CHECK(sockets::now_ms() - begin >= 3900);
  int came = 0;
  for (sockets::Address from; sockets::accept_one(deaf, from);) ++came;
  CHECK(came == 2);  // at the beginning and after 3 s
}

TEST_CASE("messages are read back as they were printed, and nothing else is a message") {
  const Hello hello{kVersion, 8, 3, -1, "token", "node3", "fingerprint"};
  const std::string bytes = print(hello);
  CHECK(bytes.size() == kHelloBytes);
  CHECK(parse_hello(bytes) == hello);
  CHECK(!parse_hello(bytes + "x"));
  CHECK(!parse_hello(bytes.substr(1)));
  const std::string accepted = print_accepted("token");
  CHECK(accepted.size() == kAcceptedBytes);
  CHECK(is_accepted(accepted, "token"));
  CHECK(!is_accepted(accepted, "token2"));
  CHECK(!is_accepted(accepted + "x", "token"));
  CHECK(!is_accepted(accepted.substr(1), "token"));
  std::string other_version = accepted;
  other_version[8] = static_cast<char>(kVersion + 1);
  CHECK(!is_accepted(other_version, "token"));
  const Welcome welcome{kVersion, 8, true, "token", std::string("\0\1\2", 3)};
  CHECK(parse_welcome(print(welcome)) == welcome);
  CHECK(print(welcome).size() == kWelcomeBytes);
  CHECK(refusal_of(hello, "token", 8).empty());
  Hello older = hello;
  older.version = 1;
  CHECK(refusal_of(older, "token", 8) ==
        "it speaks version 1 of the rendezvous, this process " + std::to_string(kVersion));
  CHECK(!refusal_of(hello, "token", 9).empty());
  CHECK(!refusal_of(hello, "tokem", 8).empty());
  CHECK(!refusal_of(hello, "", 8).empty());
  CHECK(!refusal_of(hello, "token2", 8).empty());
}

TEST_CASE("where to meet is what launchers export, beside the port that torchrun's agent holds") {
  const std::map<std::string, std::string> both{{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
  CHECK(Rendezvous::from(both, 1, 2, 0).port == 29500);
  CHECK(Rendezvous::from(both, 1, 2, 0).hosts == std::vector<std::string>{"node0"});
  auto more = both;
  more["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  CHECK(port_of_rendezvous(more) == 29501);
  more["TRAINER_PORT"] = "4000";
  CHECK(port_of_rendezvous(more) == 4000);
  more["TRAINER_TOKEN"] = "abc";
  more["TRAINER_RENDEZVOUS_S"] = "20";
  CHECK(Rendezvous::from(more, 1, 2, 0).token == "abc");
  CHECK(Rendezvous::from(more, 1, 2, 0).timeout_s == 20);
  CHECK(contains(message_of<UsageError>([] { Rendezvous::from({}, 1, 2, 0); }), "export MASTER_ADDR"));
  CHECK(contains(message_of<UsageError>([] { Rendezvous::from({{"MASTER_ADDR", "node0"}}, 1, 2, 0); }), "MASTER_PORT"));
  CHECK(contains(message_of<UsageError>([] {
                   Rendezvous::from({{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "70000"}}, 1, 2, 0);
                 }),
                 "MASTER_PORT=70000"));
}

}  // namespace trainer::rendezvous_test
