// Control links: frames read as they were printed, in whatever pieces they come, and nothing else read as one; then the
// links themselves between threads, over real sockets, with ranks that end, hang, give up or send nonsense.
#include "engine/launch/control_links.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "engine/launch/sockets.h"
#include "tests/launch/star.h"

namespace trainer::control_links_test {

using namespace trainer::control;
using Clock = std::chrono::steady_clock;

namespace {

std::string little_endian(std::uint32_t number) {
  std::string bytes;
  for (int byte = 0; byte < 4; ++byte) bytes += static_cast<char>(number >> (8 * byte) & 0xFF);
  return bytes;
}

std::string noise(std::mt19937& random, std::size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// Until `what` holds, or 30 s are gone.
template <typename What>
bool soon(What&& what) {
  for (const Clock::time_point begin = Clock::now(); Clock::now() - begin < std::chrono::seconds(30);
       std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    if (what()) return true;
  return what();
}

// A rank's links and what they told.
struct Rank {
  Rank(int number, Connections connections) {
    links = std::make_unique<ControlLinks>(
        number, std::move(connections),
        ControlLinks::Events{[this](const std::string& reason) { why = reason, lost = true; }, {}});
  }
  std::string reason() {
    CHECK(soon([&] { return lost.load(); }));
    return why;
  }

  std::string why;
  std::atomic<bool> lost{false};
  std::unique_ptr<ControlLinks> links;
};

std::vector<std::unique_ptr<Rank>> ranks_of(std::vector<Connections> star) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::size_t rank = 0; rank < star.size(); ++rank)
    ranks.push_back(std::make_unique<Rank>(static_cast<int>(rank), std::move(star[rank])));
  return ranks;
}

std::optional<Message> wait_for(ControlLinks& links, int peer) {
  std::optional<Message> message;
  soon([&] { return (message = links.take(peer)).has_value(); });
  return message;
}

}  // namespace

TEST_CASE("frames are read as they were printed, in whatever pieces they come") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Frame> sent;
    std::string bytes;
    for (std::size_t i = 0; i < 1 + random() % 8; ++i) {
      Frame frame;
      frame.kind =
          std::array{Frame::Kind::beat, Frame::Kind::goodbye, Frame::Kind::abort, Frame::Kind::message}[random() % 4];
      if (frame.kind == Frame::Kind::abort) frame.reason = noise(random, random() % 300);
      if (frame.kind == Frame::Kind::message)
        frame.message = {static_cast<Operation>(random() % kNumOperations), static_cast<std::uint32_t>(random()),
                         noise(random, random() % 3 == 0 ? 100000 : random() % 40)};
      bytes += print(frame);
      sent.push_back(std::move(frame));
    }
    FrameReader reader;
    std::vector<Frame> got;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t piece = std::min<std::size_t>(bytes.size() - at, 1 + random() % (round % 2 ? 7 : 70000));
      reader.add(std::string_view(bytes).substr(at, piece));
      at += piece;
      while (std::optional<Frame> frame = reader.next()) got.push_back(std::move(*frame));
    }
    CHECK(got == sent);
    CHECK(reader.pending() == 0);
    CHECK(!reader.broken());
  }
}

TEST_CASE("what is no frame is found by its first bytes, and half a frame is none") {
  struct Case {
    const char* what;
    std::string bytes;
    bool broken;
  };
  const std::string message = print(Message{Operation::each, 9, "text"});
  const std::vector<Case> cases{
      {"nothing", "", false},
      {"an unknown kind", "X", true},
      {"a zero byte", std::string(1, '\0'), true},
      {"half a length", "M" + little_endian(4).substr(0, 3), false},
      {"a message that is cut short", message.substr(0, message.size() - 1), false},
      {"a length beyond the limit", "M" + little_endian(kMaxMessage + 1) + std::string(5, '\0'), true},
      {"the largest length", "M" + little_endian(0xFFFFFFFF) + std::string(5, '\0'), true},
      {"a length within the limit, of bytes that do not come",
       "M" + little_endian(kMaxMessage) + std::string(5, '\0') + "some", false},
      {"an operation outside the list", "M" + little_endian(0) + static_cast<char>(kNumOperations) + little_endian(1),
       true},
      {"an abort that is cut short", print_abort("why").substr(0, 7), false},
      {"an abort longer than a reason", "A" + little_endian(kMaxReason + 1), true},
      {"another protocol", "GET / HTTP/1.1\r\n\r\n", true},
      {"a hello of the rendezvous", "trnrcome", true},
  };
  for (const Case& one : cases) {
    CAPTURE(std::string(one.what));
    FrameReader reader;
    reader.add(one.bytes);
    CHECK(!reader.next());
    CHECK(reader.broken() == one.broken);
    reader.add(print_beat());
    if (one.broken) CHECK(!reader.next());  // there is no way back
  }
  FrameReader reader;
  reader.add(print_abort(std::string(2 * kMaxReason, 'x')));
  const std::optional<Frame> cut = reader.next();
  REQUIRE(cut);
  CHECK(cut->reason == std::string(kMaxReason, 'x'));
}

TEST_CASE("any bytes are frames that print to the same bytes, or broken") {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = noise(random, random() % 60);
    for (char& c : bytes)  // so that there are frames among them
      if (random() % 3 == 0) c = std::array{'H', 'B', 'A', 'M', '\0', '\1'}[random() % 6];
    FrameReader reader;
    std::string printed;
    for (const char c : bytes) {
      reader.add({&c, 1});
      while (const std::optional<Frame> frame = reader.next()) printed += print(*frame);
    }
    CHECK(bytes.starts_with(printed));
    if (!reader.broken()) CHECK(printed.size() + reader.pending() == bytes.size());
  }
}

TEST_CASE("messages arrive whole and in order, large ones both ways at once") {
  auto ranks = ranks_of(tests::star_of(3));
  constexpr std::size_t kLarge = 5 << 20;  // more than a socket holds
  for (const char c : {'a', 'b', 'c'})
    for (int peer : {1, 2}) {
      ranks[0]->links->send(peer, {Operation::from_first, 1, std::string(kLarge, c)});
      ranks[static_cast<std::size_t>(peer)]->links->send(0, {Operation::to_first, 2, std::string(kLarge, c)});
    }
  for (const char c : {'a', 'b', 'c'})
    for (int peer : {1, 2}) {
      CHECK(wait_for(*ranks[static_cast<std::size_t>(peer)]->links, 0) ==
            Message{Operation::from_first, 1, std::string(kLarge, c)});
      CHECK(wait_for(*ranks[0]->links, peer) == Message{Operation::to_first, 2, std::string(kLarge, c)});
    }
  CHECK(!ranks[0]->links->take(1));
}

TEST_CASE("a rank that ends well is no loss, its last message arrives, and nothing more is expected of it") {
  auto ranks = ranks_of(tests::star_of(3));
  ranks[1]->links->send(0, {Operation::to_first, 1, std::string(3 << 20, 'x')});
  ranks[1]->links.reset();
  CHECK(soon([&] { return ranks[0]->links->ended(1); }));
  CHECK(ranks[0]->links->take(1)->text.size() == 3 << 20);
  ranks[0]->links->send(1, {Operation::from_first, 2, "to no one"});
  ranks[0]->links->send(2, {Operation::from_first, 2, "still here"});
  CHECK(wait_for(*ranks[2]->links, 0)->text == "still here");
  CHECK(!ranks[0]->links->ended(2));
  ranks[2]->links.reset();
  ranks[0]->links.reset();
  for (const auto& rank : ranks) CHECK(!rank->lost);
}

TEST_CASE("a connection that ends without a goodbye is a process that died, and all hear which") {
  auto star = tests::star_of(4);
  Connections dying = std::move(star[2]);
  star.erase(star.begin() + 2);
  Rank zero(0, std::move(star[0])), one(1, std::move(star[1])), three(3, std::move(star[2]));
  const std::string half = print(Message{Operation::each, 1, "12345678"}).substr(0, 12);
  REQUIRE(sockets::send_exactly(dying[0], half.data(), half.size(), sockets::now_ms() + 1000));
  const Clock::time_point begin = Clock::now();
  dying.clear();
  for (Rank* rank : {&zero, &one, &three}) CHECK(rank->reason() == "the process of rank 2 has ended");
  CHECK(Clock::now() - begin < std::chrono::seconds(5));
}

TEST_CASE("a rank that gives up tells all others why, once, and does not hear it itself") {
  auto ranks = ranks_of(tests::star_of(4));
  ranks[3]->links->abort("rank 3: the disk is full");
  ranks[3]->links->abort("something else");
  for (std::size_t rank : {0, 1, 2}) CHECK(ranks[rank]->reason() == "rank 3: the disk is full");
  ranks.erase(ranks.begin());  // and now its connections end
  CHECK(!ranks.back()->lost);
}

TEST_CASE("a rank that sends nonsense ends all ranks, by name") {
  auto star = tests::star_of(3);
  const Descriptor strange = std::move(star[2][0]);
  Rank zero(0, std::move(star[0])), one(1, std::move(star[1]));
  const std::string bytes = print_beat() + "M" + little_endian(0xFFFFFFFF) + std::string(64, 'x');
  REQUIRE(sockets::send_exactly(strange, bytes.data(), bytes.size(), sockets::now_ms() + 1000));
  for (Rank* rank : {&zero, &one}) CHECK(rank->reason() == "rank 2 sent bytes that are no message between ranks");
}

TEST_CASE("a rank that is silent for too long is lost, and one that computes is not") {
  ::setenv("TRAINER_SILENT_S", "2", 1);
  auto star = tests::star_of(3);
  const Descriptor silent = std::move(star[1][0]);
  const Clock::time_point begin = Clock::now();
  Rank zero(0, std::move(star[0])), two(2, std::move(star[2]));  // the threads of both beat
  ::unsetenv("TRAINER_SILENT_S");
  REQUIRE(sockets::send_exactly(silent, "H", 1, sockets::now_ms() + 1000));
  for (Rank* rank : {&zero, &two}) CHECK(rank->reason().starts_with("rank 1 has been silent for "));
  CHECK(Clock::now() - begin > std::chrono::seconds(2));
  CHECK(Clock::now() - begin < std::chrono::seconds(8));
}

TEST_CASE("what a rank says does not wait for one that does not read") {
  auto star = tests::star_of(2);
  const Descriptor deaf = std::move(star[1][0]);
  Rank zero(0, std::move(star[0]));
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < 8; ++i) zero.links->send(1, {Operation::from_first, 1, std::string(4 << 20, 'x')});
  zero.links->abort("over");
  CHECK(Clock::now() - begin < std::chrono::seconds(5));
  zero.links.reset();  // its goodbye has a second
  CHECK(Clock::now() - begin < std::chrono::seconds(8));
}

}  // namespace trainer::control_links_test
