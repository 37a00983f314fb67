// Fields are written one after the other and read in the same order.
#include "engine/launch/rendezvous_messages.h"

#include <algorithm>
#include <array>

#include "engine/core/check.h"

namespace trainer::rendezvous {
namespace {

constexpr std::string_view kHelloMagic = "trnrcome", kAcceptedMagic = "trnrhere", kWelcomeMagic = "trnrwelc";

void put(std::string& out, std::uint32_t number) {
  for (int byte = 0; byte < 4; ++byte) out += static_cast<char>(number >> (8 * byte) & 0xFF);
}

void put(std::string& out, std::string_view text, std::size_t bytes) {
  CHECK(text.size() <= bytes, "a text fits its field");
  out += text;
  out.append(bytes - text.size(), '\0');
}

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
}

// Takes fields off the front of a message whose size is known to be right.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::string_view take(std::size_t bytes) {
    const std::string_view field = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return field;
  }

  std::uint32_t number() {
    std::uint32_t value = 0;
    const std::string_view bytes = take(4);
    for (int byte = 3; byte >= 0; --byte)
      value = value << 8 | static_cast<unsigned char>(bytes[static_cast<std::size_t>(byte)]);
    return value;
  }

  // Without its zeros; not whole() if there is something behind them.
  std::string_view padded(std::size_t bytes) {
    const std::string_view field = take(bytes);
    const std::string_view text = field.substr(0, field.find('\0'));
    whole_ = whole_ && field.find_first_not_of('\0', text.size()) == std::string_view::npos;
    return text;
  }

  std::string_view text(std::size_t bytes) {
    const std::string_view value = padded(bytes);
    whole_ = whole_ && printable(value);
    return value;
  }

  bool whole() const { return whole_; }

 private:
  std::string_view rest_;
  bool whole_ = true;
};

bool is_local_rank(std::int32_t rank) { return rank >= -1; }

}  // namespace

std::string print(const Hello& hello) {
  std::string out(kHelloMagic);
  for (std::uint32_t number :
       {hello.version, hello.world_size, hello.rank, static_cast<std::uint32_t>(hello.local_rank)})
    put(out, number);
  for (const std::string* text : {&hello.token, &hello.host, &hello.fingerprint}) put(out, *text, kText);
  return out;
}

std::string print_accepted(std::string_view token) {
  std::string out(kAcceptedMagic);
  put(out, kVersion);
  put(out, token, kText);
  return out;
}

std::string print(const Welcome& welcome) {
  std::string out(kWelcomeMagic);
  for (std::uint32_t number : {welcome.version, welcome.world_size, welcome.together ? 1U : 0U,
                               static_cast<std::uint32_t>(welcome.payload.size())})
    put(out, number);
  put(out, welcome.token, kText);
  put(out, welcome.payload, kPayload);
  return out;
}

std::string print(const std::vector<RankPlace>& places) {
  std::string out;
  for (const RankPlace& place : places) {
    put(out, place.host, kText);
    put(out, place.fingerprint, kText);
    put(out, static_cast<std::uint32_t>(place.local_rank));
  }
  return out;
}

std::optional<Hello> parse_hello(std::string_view bytes) {
  if (bytes.size() != kHelloBytes || !bytes.starts_with(kHelloMagic)) return std::nullopt;
  Reader read(bytes.substr(kHelloMagic.size()));
  Hello hello;
  hello.version = read.number();
  hello.world_size = read.number();
  hello.rank = read.number();
  hello.local_rank = static_cast<std::int32_t>(read.number());
  hello.token = read.padded(kText);
  hello.host = read.text(kText);
  hello.fingerprint = read.text(kText);
  if (!read.whole() || !is_local_rank(hello.local_rank)) return std::nullopt;
  return hello;
}

bool is_accepted(std::string_view bytes, std::string_view token) {
  if (bytes.size() != kAcceptedBytes || !bytes.starts_with(kAcceptedMagic)) return false;
  Reader read(bytes.substr(kAcceptedMagic.size()));
  const std::uint32_t version = read.number();
  const std::string_view theirs = read.padded(kText);
  return read.whole() && version == kVersion && same_token(theirs, token);
}

std::optional<Welcome> parse_welcome(std::string_view bytes) {
  if (bytes.size() != kWelcomeBytes || !bytes.starts_with(kWelcomeMagic)) return std::nullopt;
  Reader read(bytes.substr(kWelcomeMagic.size()));
  Welcome welcome;
  welcome.version = read.number();
  welcome.world_size = read.number();
  const std::uint32_t together = read.number(), payload = read.number();
  welcome.together = together == 1;
  welcome.token = read.padded(kText);
  const std::string_view field = read.take(kPayload);
  if (!read.whole() || together > 1 || payload > kPayload ||
      field.find_first_not_of('\0', payload) != std::string_view::npos)
    return std::nullopt;
  welcome.payload = field.substr(0, payload);
  return welcome;
}

std::optional<std::vector<RankPlace>> parse_places(std::string_view bytes) {
  CHECK(bytes.size() % kPlaceBytes == 0, "places are whole");
  Reader read(bytes);
  std::vector<RankPlace> places(bytes.size() / kPlaceBytes);
  for (RankPlace& place : places) {
    place.host = read.text(kText);
    place.fingerprint = read.text(kText);
    place.local_rank = static_cast<std::int32_t>(read.number());
    if (!read.whole() || !is_local_rank(place.local_rank)) return std::nullopt;
  }
  return places;
}

std::string refusal_of(const Hello& hello, std::string_view token, int world_size) {
  if (!same_token(hello.token, token)) return "its token is not that of this job";
  if (hello.version != kVersion)
    return "it speaks version " + std::to_string(hello.version) + " of the rendezvous, this process " +
           std::to_string(kVersion);
  if (hello.world_size != static_cast<std::uint32_t>(world_size))
    return "it says " + std::to_string(hello.world_size) + " ranks, this process " + std::to_string(world_size);
  if (hello.rank == 0) return "it says it is rank 0, as this process is";
  if (hello.rank >= hello.world_size)
    return "it says rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.world_size);
  return "";
}

bool same_token(std::string_view a, std::string_view b) {
  std::array<unsigned char, kText> left{}, right{};
  std::copy_n(a.begin(), std::min(a.size(), kText), left.begin());
  std::copy_n(b.begin(), std::min(b.size(), kText), right.begin());
  volatile unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < kText; ++i) difference = static_cast<unsigned char>(difference | (left[i] ^ right[i]));
  return difference == 0;
}

std::string fitting(std::string_view text, std::size_t bytes) {
  std::string fit(text.substr(0, bytes));
  for (char& c : fit)
    if (!printable({&c, 1})) c = '?';
  return fit;
}

}  // namespace trainer::rendezvous
