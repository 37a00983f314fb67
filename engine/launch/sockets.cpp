// TCP by the system's calls, each with its deadline.
#include "engine/launch/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "engine/core/error.h"
#include "engine/core/system_error.h"

namespace trainer::sockets {
namespace {

void set_option(const Descriptor& socket, int level, int option, int value) {
  ::setsockopt(socket.get(), level, option, &value, sizeof value);
}

sockaddr_in6 v6(std::uint16_t port, bool loopback) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  address.sin6_addr = loopback ? in6addr_loopback : in6addr_any;
  return address;
}

sockaddr_in v4(std::uint16_t port, bool loopback) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  return address;
}

template <typename Any>
Descriptor listen_on(const Any& address, int family, int backlog) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  set_option(socket, SOL_SOCKET, SO_REUSEADDR,
             1);  // a job that starts again finds connections of the one before in TIME_WAIT
  if (family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), backlog) != 0)
    return {};
  return socket;
}

}  // namespace

std::string Address::str() const {
  char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&bytes), size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
  std::string text = host;
  if (text.starts_with("::ffff:") && text.find('.') != std::string::npos)
    text = text.substr(7);  // IPv4, seen by a socket of both
  return (text.find(':') == std::string::npos ? text : "[" + text + "]") + ":" + port;
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::vector<Address> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    Address address;
    std::memcpy(&address.bytes, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> reachable, reachable6, loopback;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw IoError("no network interfaces: " + system_text(errno));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
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
  reachable.insert(reachable.end(), reachable6.begin(), reachable6.end());
  reachable.insert(reachable.end(), loopback.begin(), loopback.end());
  return reachable;
}

Descriptor listen_at(std::uint16_t port, Reach reach, int backlog) {
  Descriptor socket;
  if (reach != Reach::loopback) socket = listen_on(v6(port, reach == Reach::loopback6), AF_INET6, backlog);
  if (!socket && (reach == Reach::loopback || (reach == Reach::everyone && errno != EADDRINUSE)))
    socket = listen_on(v4(port, reach == Reach::loopback), AF_INET, backlog);
  if (!socket) throw IoError("cannot listen at port " + std::to_string(port) + ": " + system_text(errno));
  return socket;
}

std::uint16_t port_of(const Descriptor& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw IoError(std::string("no port: ") + system_text(errno));
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

Descriptor accept_one(const Descriptor& listener, Address& from) {
  from.size = sizeof from.bytes;
  return Descriptor(
      ::accept4(listener.get(), reinterpret_cast<sockaddr*>(&from.bytes), &from.size, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Descriptor connect_to(const Address& address, std::int64_t deadline_ms) {
  Descriptor socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.bytes), address.size) != 0) {
    int error = 0;
    socklen_t size = sizeof error;
    if (errno != EINPROGRESS || !wait_for(socket, POLLOUT, deadline_ms) ||
        ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
      return {};
  }
  set_no_delay(socket);
  return socket;
}

bool wait_for(const Descriptor& socket, short events, std::int64_t deadline_ms) {
  pollfd one{socket.get(), events, 0};
  for (;;) {
    const int ready = ::poll(&one, 1, static_cast<int>(std::clamp<std::int64_t>(deadline_ms - now_ms(), 0, 1 << 30)));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

bool send_exactly(const Descriptor& socket, const void* data, std::size_t bytes, std::int64_t deadline_ms) {
  for (std::size_t sent = 0; sent < bytes;) {
    const ssize_t some =
        ::send(socket.get(), static_cast<const char*>(data) + sent, bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some > 0)
      sent += static_cast<std::size_t>(some);
    else if ((errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) || !wait_for(socket, POLLOUT, deadline_ms))
      return false;
  }
  return true;
}

bool receive_exactly(const Descriptor& socket, void* data, std::size_t bytes, std::int64_t deadline_ms) {
  for (std::size_t got = 0; got < bytes;) {
    const ssize_t some = ::recv(socket.get(), static_cast<char*>(data) + got, bytes - got, MSG_DONTWAIT);
    if (some > 0)
      got += static_cast<std::size_t>(some);
    else if (some == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) ||
             !wait_for(socket, POLLIN, deadline_ms))
      return false;
  }
  return true;
}

void set_no_delay(const Descriptor& socket) { set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1); }

void allow_descriptors(std::size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace trainer::sockets
