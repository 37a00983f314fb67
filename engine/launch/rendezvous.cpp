// Rank 0 keeps two kinds of connections: newcomers, which have not said who they are, and members, which have, and must
// then be silent until all are there. A member whose connection ends gives its rank free again, for the process that is
// started in its place.
#include "engine/launch/rendezvous.h"

#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <deque>
#include <optional>
#include <sstream>
#include <thread>

#include "engine/core/check.h"
#include "engine/core/environment.h"
#include "engine/core/error.h"
#include "engine/core/system_error.h"
#include "engine/launch/newcomers.h"
#include "engine/launch/sockets.h"

namespace trainer {
namespace {

using namespace rendezvous;
using sockets::Address;
using sockets::now_ms;

constexpr std::int64_t kConnectMs = 2000, kAcceptMs = 3000, kDeliveryMs = 20000, kLongestPauseMs = 1000;
constexpr double kByBroadcast_s = 30;  // for processes that all run already
constexpr std::size_t kMostRefusals = 4;
constexpr int kMostNotices = 16;
constexpr char kTaken = '+';  // what a rank says once it has its welcome

std::string seconds(double s) {
  std::string text = std::to_string(s);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text + " s";
}

std::string place_of(const Rendezvous& place) {
  std::string text;
  for (const std::string& host : place.hosts)
    text += (text.empty() ? "" : " or ") + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
            std::to_string(place.port);
  return text;
}

RankPlace own_place(const Rendezvous& place) {
  return {fitting(place.own_host, kText), fitting(place.fingerprint, kText), place.local_rank};
}

// A name other than these may be a loopback address here alone (a line in /etc/hosts) and this host's address
// elsewhere.
sockets::Reach reach_of(const std::string& host) {
  if (host == "::1") return sockets::Reach::loopback6;
  return host == "localhost" || host == "127.0.0.1" ? sockets::Reach::loopback : sockets::Reach::everyone;
}

// "rank 3", "ranks 3, 5 to 7", of the ranks that are `missing`.
std::string named(const std::vector<int>& missing) {
  std::string text;
  for (std::size_t i = 0; i < missing.size();) {
    std::size_t last = i;
    while (last + 1 < missing.size() && missing[last + 1] == missing[last] + 1) ++last;
    if (last - i == 1) last = i;
    text += (text.empty() ? "" : ", ") + std::to_string(missing[i]) +
            (last > i ? " to " + std::to_string(missing[last]) : "");
    i = last + 1;
  }
  return (missing.size() == 1 ? "rank " : "ranks ") + text;
}

// ---- Rank 0 ----

class Gathering {
 public:
  Gathering(const Rendezvous& place, const std::string& payload, Descriptor listener)
      : place_(place),
        payload_(payload),
        deadline_(now_ms() + static_cast<std::int64_t>(place.timeout_s * 1000)),
        newcomers_(std::move(listener), kHelloBytes),
        members_(static_cast<std::size_t>(place.world_size)) {
    sockets::allow_descriptors(static_cast<std::size_t>(place.world_size) + Newcomers::kMost + 128);
  }

  Gathered run() {
    while (num_members_ + 1 < place_.world_size || anyone_left()) {
      if (now_ms() >= deadline_) give_up();
      turn();
    }
    return deliver();
  }

  static Descriptor listen(const Rendezvous& place) {
    try {
      return sockets::listen_at(place.port, reach_of(place.hosts.front()), 4096);
    } catch (const IoError& error) {
      throw IoError("rendezvous: rank 0 " + std::string(error.what()) +
                    "; is another job on this port? MASTER_PORT or TRAINER_PORT chooses another");
    }
  }

 private:
  struct Member {
    Descriptor socket;
    Address from;
    Hello hello;
  };

  void turn() {
    std::vector<pollfd> polled;
    for (const auto& member : members_)
      if (member) polled.push_back({member->socket.get(), POLLIN, 0});
    newcomers_.turn(std::move(polled), deadline_,
                    [&](Descriptor socket, const Address& from, const std::string& bytes) {
                      if (const std::optional<Hello> hello = parse_hello(bytes)) take(std::move(socket), from, *hello);
                    });
    watch_members();
  }

  void take(Descriptor socket, const Address& from, const Hello& hello) {
    if (const std::string why = refusal_of(hello, place_.token, place_.world_size); !why.empty())
      return refuse(from.str() + " (" + hello.host + "): " + why);
    std::optional<Member>& member = members_[hello.rank];
    watch(member);  // a rank whose process was started again is free
    if (member)
      return refuse(from.str() + " (" + hello.host + "): it says rank " + std::to_string(hello.rank) + ", which " +
                    member->from.str() + " (" + member->hello.host + ") already is");
    sockets::set_no_delay(socket);
    const std::string accepted = print_accepted(place_.token);
    if (!sockets::send_exactly(socket, accepted.data(), accepted.size(), now_ms())) return;
    member = Member{std::move(socket), from, hello};
    ++num_members_;
  }

  void refuse(const std::string& what) {
    const auto same = std::find_if(refusals_.begin(), refusals_.end(), [&](const auto& known) {
      return known.substr(known.find(' ')) == what.substr(what.find(' '));
    });
    if (same != refusals_.end()) return;  // a rank that tries again and again is one line
    refusals_.push_back(what);
    if (refusals_.size() > kMostRefusals) refusals_.pop_front();
    notice("rendezvous: refused " + what);
  }

  void notice(const std::string& text) {
    if (place_.notice && num_notices_++ < kMostNotices) place_.notice(text);
  }

  void watch_members() {
    for (auto& member : members_) watch(member);
  }

  // A connection that ends, or says more than it should, is not a member any more.
  void watch(std::optional<Member>& member) {
    if (!member) return;
    char byte = 0;
    const ssize_t got = ::recv(member->socket.get(), &byte, 1, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    notice("rendezvous: rank " + std::to_string(member->hello.rank) + " at " + member->from.str() + " (" +
           member->hello.host + ") has left before all were there");
    member.reset();
    --num_members_;
  }

  bool anyone_left() {
    const int before = num_members_;
    watch_members();
    return num_members_ != before;
  }

  [[noreturn]] void give_up() {
    std::vector<int> missing;
    for (int rank = 1; rank < place_.world_size; ++rank)
      if (!members_[static_cast<std::size_t>(rank)]) missing.push_back(rank);
    std::string why = "rendezvous at " + place_of(place_) + ": " + named(missing) + " of " +
                      std::to_string(place_.world_size) + (missing.size() == 1 ? " has" : " have") +
                      " not come within " + seconds(place_.timeout_s) + "; " +
                      (missing.size() == 1 ? "has its process" : "have their processes") +
                      " started, and does a firewall let it reach this port?";
    for (std::size_t i = 0; i < refusals_.size(); ++i) why += (i == 0 ? " Refused were " : "; ") + refusals_[i];
    tell_failure(why);
    throw IoError(why);
  }

  Welcome welcome(bool together, const std::string& payload) const {
    return {kVersion, static_cast<std::uint32_t>(place_.world_size), together, place_.token, payload};
  }

  void tell_failure(const std::string& why) {
    const std::string bytes = print(welcome(false, fitting(why, kPayload)));
    for (const auto& member : members_)
      if (member) sockets::send_exactly(member->socket, bytes.data(), bytes.size(), now_ms());
  }

  Gathered deliver() {
    Gathered all{.payload = payload_, .places = {own_place(place_)}};
    for (std::size_t rank = 1; rank < members_.size(); ++rank)
      all.places.push_back(
          {members_[rank]->hello.host, members_[rank]->hello.fingerprint, members_[rank]->hello.local_rank});
    const std::string bytes = print(welcome(true, payload_)) + print(all.places);
    const std::int64_t until = now_ms() + kDeliveryMs;
    for (std::size_t rank = 1; rank < members_.size(); ++rank)
      if (!sockets::send_exactly(members_[rank]->socket, bytes.data(), bytes.size(), until))
        lose(static_cast<int>(rank));
    for (std::size_t rank = 1; rank < members_.size(); ++rank) {
      char answer = 0;
      if (!sockets::receive_exactly(members_[rank]->socket, &answer, 1, until) || answer != kTaken)
        lose(static_cast<int>(rank));
      all.connections.push_back(std::move(members_[rank]->socket));
    }
    return all;
  }

  [[noreturn]] void lose(int rank) const {
    const Member& member = *members_[static_cast<std::size_t>(rank)];
    throw IoError("rendezvous at " + place_of(place_) + ": rank " + std::to_string(rank) + " at " + member.from.str() +
                  " (" + member.hello.host + ") came, but did not take what it was told");
  }

  const Rendezvous& place_;
  const std::string& payload_;
  const std::int64_t deadline_;
  Newcomers newcomers_;
  std::vector<std::optional<Member>> members_;
  int num_members_ = 0;
  std::deque<std::string> refusals_;
  int num_notices_ = 0;
};

// ---- The other ranks ----

class Joining {
 public:
  explicit Joining(const Rendezvous& place)
      : place_(place), deadline_(now_ms() + static_cast<std::int64_t>(place.timeout_s * 1000)) {
    const Hello hello{kVersion,
                      static_cast<std::uint32_t>(place.world_size),
                      static_cast<std::uint32_t>(place.rank),
                      place.local_rank,
                      place.token,
                      fitting(place.own_host, kText),
                      fitting(place.fingerprint, kText)};
    hello_ = print(hello);
  }

  // Pauses grow, and differ between ranks, so that a thousand of them do not come in step.
  Gathered run() {
    for (std::int64_t pause = 20 + place_.rank % 30; now_ms() < deadline_;
         pause = std::min(kLongestPauseMs, pause * 3 / 2)) {
      for (const Address& address : addresses())
        if (std::optional<Gathered> all = try_at(address)) return std::move(*all);
      std::this_thread::sleep_for(std::chrono::milliseconds(std::clamp<std::int64_t>(deadline_ - now_ms(), 0, pause)));
    }
    throw IoError("rendezvous: rank " + std::to_string(place_.rank) + " of " + std::to_string(place_.world_size) +
                  " did not meet rank 0 at " + place_of(place_) + " within " + seconds(place_.timeout_s) + ": " +
                  last_);
  }

 private:
  std::vector<Address> addresses() {
    std::vector<Address> found;
    for (const std::string& host : place_.hosts) {
      const std::vector<Address> more = sockets::resolve(host, place_.port);
      if (more.empty()) last_ = "the name " + host + " is not known here";
      found.insert(found.end(), more.begin(), more.end());
    }
    return found;
  }

  std::optional<Gathered> try_at(const Address& address) {
    Descriptor socket = sockets::connect_to(address, std::min(deadline_, now_ms() + kConnectMs));
    if (!socket) {
      last_ = "nothing answers at " + address.str() +
              "; has rank 0 started there, and does a firewall let this host reach it?";
      return std::nullopt;
    }
    if (!is_accepted_at(socket, address)) return std::nullopt;
    std::string head(kWelcomeBytes, '\0');
    if (!sockets::receive_exactly(socket, head.data(), head.size(), deadline_)) {
      last_ = now_ms() >= deadline_ ? "it was reached at " + address.str() + ", but the other ranks have not all come"
                                    : address.str() + " closed the connection before all ranks had come";
      return std::nullopt;
    }
    const std::optional<Welcome> welcome = parse_welcome(head);
    if (!welcome || !same_token(welcome->token, place_.token) || welcome->version != kVersion ||
        welcome->world_size != static_cast<std::uint32_t>(place_.world_size)) {
      last_ = "what answers at " + address.str() + " is not rank 0 of this job";
      return std::nullopt;
    }
    if (!welcome->together) throw IoError("rank 0 gave up: " + fitting(welcome->payload, kPayload));
    return take(std::move(socket), *welcome, address);
  }

  // Rank 0 answers a hello at once, so a listener that does not answer is not rank 0.
  bool is_accepted_at(const Descriptor& socket, const Address& address) {
    std::string answer(kAcceptedBytes, '\0');
    const std::int64_t until = std::min(deadline_, now_ms() + kAcceptMs);
    if (!sockets::send_exactly(socket, hello_.data(), hello_.size(), until) ||
        !sockets::receive_exactly(socket, answer.data(), answer.size(), until)) {
      last_ = now_ms() >= until
                  ? "what listens at " + address.str() + " does not answer as rank 0 of this job"
                  : address.str() +
                        " closed the connection: TRAINER_TOKEN, the number of ranks or the version differ, another "
                        "process is this rank, or no rank 0 listens there";
      return false;
    }
    if (is_accepted(answer, place_.token)) return true;
    last_ = "what answers at " + address.str() + " is not rank 0 of this job";
    return false;
  }

  std::optional<Gathered> take(Descriptor socket, const Welcome& welcome, const Address& address) {
    std::string bytes(static_cast<std::size_t>(place_.world_size) * kPlaceBytes, '\0');
    const std::int64_t until = now_ms() + kDeliveryMs;
    std::optional<std::vector<RankPlace>> places;
    if (sockets::receive_exactly(socket, bytes.data(), bytes.size(), until)) places = parse_places(bytes);
    if (!places || !sockets::send_exactly(socket, &kTaken, 1, until)) {
      last_ = address.str() + " did not say where the ranks are";
      return std::nullopt;
    }
    Gathered all{.payload = welcome.payload, .places = std::move(*places)};
    all.connections.push_back(std::move(socket));
    return all;
  }

  const Rendezvous& place_;
  const std::int64_t deadline_;
  std::string hello_;
  std::string last_ = "there was no time to try";
};

std::string text_of(const std::map<std::string, std::string>& environment, const char* variable) {
  const auto found = environment.find(variable);
  return found == environment.end() ? "" : found->second;
}

}  // namespace

Rendezvous Rendezvous::from(const std::map<std::string, std::string>& environment, int rank, int world_size,
                            int local_rank) {
  Rendezvous place;
  place.hosts = {text_of(environment, "MASTER_ADDR")};
  if (place.hosts.front().empty())
    throw UsageError(
        "the ranks do not know where to meet: export MASTER_ADDR, the host of rank 0, and MASTER_PORT, a port that is "
        "free there, on every "
        "node (configs/cluster/ "
        "has the lines for Slurm, Open MPI, Kubernetes and ssh)");
  place.port = port_of_rendezvous(environment);
  place.rank = rank;
  place.world_size = world_size;
  place.local_rank = local_rank;
  place.own_host = host_name();
  place.token = text_of(environment, environment::kToken.name);
  if (place.token.size() > kText)
    throw UsageError(std::string(environment::kToken.name) + " is longer than " + std::to_string(kText) + " bytes");
  place.timeout_s = timeout_of_rendezvous(environment);
  return place;
}

Gathered meet(const Rendezvous& place, const std::string& payload) {
  CHECK(payload.size() <= kPayload && place.fingerprint.size() <= kText && place.token.size() <= kText,
        "what a rank says fits its message");
  CHECK(place.rank >= 0 && place.rank < place.world_size, "a rank is below the number of ranks");
  if (place.world_size == 1) return {.payload = payload, .places = {own_place(place)}};
  return place.rank == 0 ? Gathering(place, payload, Gathering::listen(place)).run() : Joining(place).run();
}

Connections meet_by(int rank, int world_size, const std::function<std::string(const std::string&)>& broadcast) {
  if (world_size == 1) return {};
  Rendezvous place;
  place.rank = rank;
  place.world_size = world_size;
  place.own_host = host_name();
  place.timeout_s = kByBroadcast_s;
  if (rank == 0) {
    Descriptor listener = sockets::listen_at(0, sockets::Reach::everyone, 4096);
    place.port = sockets::port_of(listener);
    place.token = random_token();
    place.hosts = sockets::own_addresses();
    std::string where = place.token + " " + std::to_string(place.port);
    for (const std::string& host : place.hosts) where += " " + host;
    broadcast(where);
    return Gathering(place, "", std::move(listener)).run().connections;
  }
  std::istringstream words(broadcast(""));
  words >> place.token >> place.port;
  for (std::string host; words >> host;) place.hosts.push_back(host);
  CHECK(!place.hosts.empty() && place.token.size() <= kText, "rank 0 says where it listens");
  return Joining(place).run().connections;
}

std::uint16_t port_of_rendezvous(const std::map<std::string, std::string>& environment) {
  if (const std::string own = text_of(environment, environment::kPort.name); !own.empty())
    return static_cast<std::uint16_t>(environment::whole_number(environment::kPort.name, own, 1, 65535));
  const std::string text = text_of(environment, "MASTER_PORT");
  if (text.empty())
    throw UsageError("MASTER_ADDR is set without MASTER_PORT: export a port that is free on the host of rank 0");
  const bool held = text_of(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  return static_cast<std::uint16_t>(environment::whole_number("MASTER_PORT", text, 1, held ? 65534 : 65535) +
                                    (held ? 1 : 0));
}

double timeout_of_rendezvous(const std::map<std::string, std::string>& environment) {
  const std::string text = text_of(environment, environment::kRendezvous.name);
  return text.empty() ? 300
                      : static_cast<double>(environment::whole_number(environment::kRendezvous.name, text, 1, 86400));
}

std::string random_token() {
  std::array<unsigned char, 24> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw IoError("no random numbers: " + system_text(errno));
  std::string text;
  for (unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string host_name() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return host;
}

}  // namespace trainer
