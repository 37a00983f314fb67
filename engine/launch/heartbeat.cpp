// Messages on a connection: 'H' a beat, 'B' goodbye, 'A' with a length and a text: why the ranks end.
#include "engine/launch/heartbeat.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>

#include "engine/core/environment.h"
#include "engine/core/error.h"
#include "engine/core/system_error.h"
#include "engine/launch/newcomers.h"
#include "engine/launch/sockets.h"

namespace trainer {
namespace {

constexpr std::int64_t kBeatMs = 1000, kLoopMs = 200, kOwnSilenceMs = 3000, kConnectMs = 30000;
constexpr std::size_t kLongestReason = 8000;

std::int64_t silent_ms() {
  const std::optional<std::string> given = environment::value_of(environment::kSilent);
  return static_cast<std::int64_t>((given ? environment::number(environment::kSilent.name, *given, 2, 86400) : 8) *
                                   1000);
}

[[noreturn]] void fail(const std::string& what) {
  throw IoError("heartbeat between ranks: " + what + ": " + system_text(errno));
}

// Addresses of this machine, those that others can reach first.
// Link-local ones of IPv6 mean nothing without an interface, and so are left out.
std::vector<std::string> own_addresses() {
  std::vector<std::string> reachable, reachable6, loopback;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) fail("no network interfaces");
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const bool is_loopback = (one->ifa_flags & IFF_LOOPBACK) != 0;
    char text[INET6_ADDRSTRLEN] = "";
    if (one->ifa_addr->sa_family == AF_INET) {
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
      (is_loopback ? loopback : reachable).push_back(text);
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;
      ::inet_ntop(AF_INET6, &address, text, sizeof text);
      (is_loopback ? loopback : reachable6).push_back(text);
    }
  }
  ::freeifaddrs(list);
  reachable.insert(reachable.end(), reachable6.begin(), reachable6.end());
  reachable.insert(reachable.end(), loopback.begin(), loopback.end());
  return reachable;
}

std::string raw(std::uint32_t number) { return {reinterpret_cast<const char*>(&number), sizeof number}; }

constexpr std::size_t kTokenBytes = 16;

// Connects to one of rank 0's addresses. The token in both directions tells our rank 0 from whoever else has that
// address and port.
Descriptor try_address(const std::string& address, std::uint16_t port, const std::string& token, int rank,
                       std::int64_t deadline) {
  for (const sockets::Address& to : sockets::resolve(address, port)) {
    Descriptor socket = sockets::connect_to(to, deadline);
    const std::string hello = token + raw(static_cast<std::uint32_t>(rank));
    std::string answer(kTokenBytes, '\0');
    if (socket && sockets::send_exactly(socket, hello.data(), hello.size(), deadline) &&
        sockets::receive_exactly(socket, answer.data(), answer.size(), deadline) && answer == token)
      return socket;
  }
  return {};
}

}  // namespace

Heartbeat::Heartbeat(int rank, int world_size, const std::function<std::string(const std::string&)>& broadcast,
                     std::function<void(const std::string&)> lost)
    : rank_(rank), silent_ms_(silent_ms()), lost_(std::move(lost)), wake_(::eventfd(0, EFD_CLOEXEC)) {
  if (!wake_) fail("no eventfd");
  rank == 0 ? listen(world_size, broadcast) : connect(broadcast);
  for (Peer& peer : peers_) peer.heard_ms = sockets::now_ms();
  thread_ = std::thread([this] { beat(); });
}

Heartbeat::~Heartbeat() {
  send_all("B");
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void Heartbeat::listen(int world_size, const std::function<std::string(const std::string&)>& broadcast) {
  sockets::allow_descriptors(static_cast<std::size_t>(world_size) + Newcomers::kMost + 128);
  Descriptor listener = sockets::listen_at(0, sockets::Reach::everyone, 4096);
  const std::string port = std::to_string(sockets::port_of(listener));
  std::random_device random;
  std::string token;
  while (token.size() < kTokenBytes) token += raw(random());
  std::string text = token + port;
  for (const std::string& address : own_addresses()) text += " " + address;
  broadcast(text);

  Newcomers newcomers(std::move(listener), kTokenBytes + sizeof(std::uint32_t));
  const std::int64_t deadline = sockets::now_ms() + kConnectMs;
  while (!all_here(world_size)) {
    if (sockets::now_ms() >= deadline)
      throw IoError("heartbeat between ranks: no connection to rank 0 (port " + port + ") came within 30 s from rank " +
                    missing_of(world_size));
    newcomers.turn({}, deadline, [&](Descriptor socket, const sockets::Address&, const std::string& hello) {
      if (hello.starts_with(token)) take(std::move(socket), hello, world_size);
    });
  }
}

// The token says that it is one of ours: where that rank is here already, it gave its first connection up before we
// answered.
void Heartbeat::take(Descriptor socket, const std::string& hello, int world_size) {
  std::uint32_t rank = 0;
  std::memcpy(&rank, hello.data() + kTokenBytes, sizeof rank);
  if (rank == 0 || rank >= static_cast<std::uint32_t>(world_size)) return;
  sockets::set_no_delay(socket);
  if (::send(socket.get(), hello.data(), kTokenBytes, MSG_NOSIGNAL) != static_cast<ssize_t>(kTokenBytes)) return;
  std::erase_if(peers_, [&](const Peer& peer) { return peer.rank == static_cast<int>(rank); });
  peers_.push_back({static_cast<int>(rank), std::move(socket), "", 0, false});
}

// A rank that has closed its connection tries again.
bool Heartbeat::all_here(int world_size) {
  if (static_cast<int>(peers_.size()) + 1 < world_size) return false;
  std::erase_if(peers_, [](const Peer& peer) {
    char byte = 0;
    return ::recv(peer.socket.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
  });
  return static_cast<int>(peers_.size()) + 1 == world_size;
}

std::string Heartbeat::missing_of(int world_size) const {
  std::string missing;
  for (int rank = 1; rank < world_size; ++rank)
    if (std::none_of(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.rank == rank; }))
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  return missing;
}

void Heartbeat::connect(const std::function<std::string(const std::string&)>& broadcast) {
  const std::string text = broadcast("");
  const std::string token = text.substr(0, kTokenBytes);
  std::istringstream words(text.substr(std::min(text.size(), kTokenBytes)));
  std::uint16_t port = 0;
  words >> port;
  std::vector<std::string> addresses;
  for (std::string address; words >> address;) addresses.push_back(address);
  const std::int64_t deadline = sockets::now_ms() + kConnectMs;
  do {
    for (const std::string& address : addresses)
      if (Descriptor socket = try_address(address, port, token, rank_, std::min(deadline, sockets::now_ms() + 5000))) {
        peers_.push_back({0, std::move(socket), "", 0, false});
        return;
      }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (sockets::now_ms() < deadline);
  std::string tried;
  for (const std::string& address : addresses) tried += " " + address;
  throw IoError("heartbeat between ranks: rank " + std::to_string(rank_) + " cannot reach rank 0 at port " +
                std::to_string(port) + " of" + tried + " within 30 s; is there a firewall between the nodes?");
}

void Heartbeat::abort(const std::string& reason) {
  if (over_.exchange(true)) return;
  const std::string text = reason.substr(0, kLongestReason);
  send_all("A" + raw(static_cast<std::uint32_t>(text.size())) + text);
}

// A full socket is no reason to wait: who does not read for so long is lost anyway.
void Heartbeat::send_all(const std::string& message) {
  const std::lock_guard lock(sending_);
  for (const Peer& peer : peers_) {
    [[maybe_unused]] const ssize_t sent =
        ::send(peer.socket.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

void Heartbeat::lose(const std::string& reason) {
  if (over_.exchange(true)) return;
  const std::string text = reason.substr(0, kLongestReason);
  if (rank_ == 0) send_all("A" + raw(static_cast<std::uint32_t>(text.size())) + text);
  lost_(text);
}

// Takes whole messages off what was received; false: the ranks end.
bool Heartbeat::take_messages(Peer& peer) {
  for (;;) {
    if (peer.received.empty()) return true;
    if (peer.received[0] == 'A') {
      std::uint32_t size = 0;
      if (peer.received.size() < 1 + sizeof size) return true;
      std::memcpy(&size, peer.received.data() + 1, sizeof size);
      size = std::min<std::uint32_t>(size, kLongestReason);
      if (peer.received.size() < 1 + sizeof size + size) return true;
      lose(peer.received.substr(1 + sizeof size, size));
      return false;
    }
    if (peer.received[0] == 'B') peer.ended = true;
    peer.received.erase(0, 1);
  }
}

// Reads what has come; false: the ranks end.
bool Heartbeat::hear(Peer& peer) {
  char data[4096];
  for (;;) {
    const ssize_t got = ::recv(peer.socket.get(), data, sizeof data, MSG_DONTWAIT);
    if (got > 0) {
      peer.heard_ms = sockets::now_ms();
      peer.received.append(data, static_cast<std::size_t>(got));
      if (!take_messages(peer)) return false;
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
    if (peer.ended) return true;
    lose("the process of rank " + std::to_string(peer.rank) + " has ended");
    return false;
  }
}

void Heartbeat::beat() {
  std::vector<pollfd> sockets;
  std::int64_t last_beat = 0, last_loop = sockets::now_ms();
  for (;;) {
    sockets.assign(1, {wake_.get(), POLLIN, 0});
    for (const Peer& peer : peers_) sockets.push_back({peer.ended ? -1 : peer.socket.get(), POLLIN, 0});
    ::poll(sockets.data(), sockets.size(), static_cast<int>(kLoopMs));
    const std::int64_t now = sockets::now_ms();
    if (now - last_beat >= kBeatMs) {
      send_all("H");
      last_beat = now;
    }
    for (Peer& peer : peers_) {
      if (!peer.ended && !hear(peer)) return;
      if (now - last_loop > kOwnSilenceMs) peer.heard_ms = now;
      if (!peer.ended && now - peer.heard_ms > silent_ms_)
        return lose("rank " + std::to_string(peer.rank) + " has been silent for " +
                    std::to_string((now - peer.heard_ms) / 1000) + " s");
    }
    last_loop = now;
    if ((sockets[0].revents & POLLIN) != 0) return;
  }
}

}  // namespace trainer
