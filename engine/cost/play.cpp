// A discrete-event simulation: all roles on one clock. A role has a track for each of its streams; each track is at
// most at one instruction, so there are never more events than a few a role, and the whole is linear in instructions.
#include "engine/cost/play.h"

#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/index.h"
#include "engine/cost/ledger.h"

namespace trainer::cost {
namespace {

constexpr std::size_t kCompute = 0, kCommunication = 1, kCopy = 2, kBackground = 3, kTensor = 4, kFetch = 5, kStore = 6,
                      kHost = 7;  // tracks, in the order of Stream
static_assert(static_cast<int>(Stream::compute) == 0 && static_cast<int>(Stream::communication) == 1 &&
              static_cast<int>(Stream::copy) == 2 && static_cast<int>(Stream::background) == 3 &&
              static_cast<int>(Stream::tensor) == 4 && static_cast<int>(Stream::fetch) == 5 &&
              static_cast<int>(Stream::store) == 6 && static_cast<int>(Stream::host) == 7);
constexpr std::array kTalking{kCommunication, kBackground, kTensor};
constexpr std::size_t kFlight = kNumStreams;  // in an event: a message between two roles has arrived

struct Event {
  double time;
  std::int32_t role;
  std::uint32_t track;  // kFlight: a message from `role` to `other`
  std::uint32_t stamp;  // of the track when it was foretold; an older one is void
  std::int32_t other;
  bool operator>(const Event& e) const {
    return std::tie(time, role, track, other) > std::tie(e.time, e.role, e.track, e.other);
  }
};

struct Track {
  std::int32_t instruction = 0;  // that it is at; the program's size: none
  bool running = false;
  double left = 0;    // µs at full speed
  double since = 0;   // when `left` was true
  double factor = 1;  // µs of the clock for each µs of `left`
  std::uint32_t stamp = 0;
};

// What a track of communication does with its instruction.
enum class MessageState : std::uint8_t { none, waits, moves };

// The communication that a track has at hand.
struct Message {
  MessageState state = MessageState::none;
  double moved_us = 0, exposed_us = 0, spread_us = 0;
  LinkShare links;
};

struct Player {
  const Role* role = nullptr;
  const std::vector<Issued>* program = nullptr;
  const OwnTimes* own = nullptr;
  std::int32_t optimizer_from = 0;  // first instruction of the update
  std::array<Track, kNumStreams> tracks{};
  StreamClock ended;                            // by stream: the last instruction
  std::array<Message, kNumStreams> messages{};  // by track
  // Of the exchange at hand.
  std::vector<bool> matched;  // parts of an exchange: sends, then receives
  std::size_t unmatched = 0, flying = 0;
  double sends_until = 0, receives_until = 0;  // when the link is free
  double accounted = 0;                        // the clock up to which `times` are
  RoleTimes times;
  Ledger ledger;
};

class Play {
 public:
  Play(const Plan& plan, const CostModel& model, std::span<const Program* const> programs,
       const std::vector<OwnTimes>& own)
      : plan_(plan), model_(model) {
    cpu_ = model.cluster().machine->device.kind == DeviceKind::cpu;
    for (std::size_t role = 0; role < plan.roles.size(); ++role) {
      const Program& program = *programs[role];
      Player& player = players_.emplace_back();
      player.role = &plan.roles[role];
      player.program = &program.instructions;
      player.own = &own[role];
      CHECK(player.own->size() == program.instructions.size(), "times of every instruction");
      player.optimizer_from = first_of_update(program);
      spans_.emplace_back(program.instructions.size());
      for (std::size_t track = 0; track < kNumStreams; ++track) seek(player, track, 0);
    }
  }

  Prediction run(std::optional<std::size_t> detailed) {
    for (std::size_t role = 0; role < players_.size(); ++role) start_all(role, 0);
    double now = 0;
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.track == kFlight) {
        now = event.time;
        land(at(event.role), at(event.other), now);
      } else if (players_[at(event.role)].tracks[event.track].stamp == event.stamp) {
        now = event.time;
        end(at(event.role), event.track, now);
      }
    }
    return result(now, detailed);
  }

 private:
  // ---- Tracks ----

  // A CPU's copies are made by the thread that runs its kernels, and a disk reads and writes in turns.
  std::size_t track_of(Stream stream) const {
    if (cpu_ && stream == Stream::store) return kFetch;
    return cpu_ && stream == Stream::copy ? kCompute : static_cast<std::size_t>(stream);
  }

  // The update begins with the norm or, if there is none, with the scalars.
  static std::int32_t first_of_update(const Program& program) {
    const auto first = std::find_if(program.instructions.begin(), program.instructions.end(), [](const Issued& issued) {
      return issued.why.phase == Provenance::Phase::norm ||
             (issued.why.phase == Provenance::Phase::update && !std::holds_alternative<Move>(issued.instruction));
    });
    return static_cast<std::int32_t>(first - program.instructions.begin());
  }

  void seek(Player& player, std::size_t track, std::int32_t from) const {
    const std::vector<Issued>& program = *player.program;
    while (at(from) < program.size() && track_of(program[at(from)].stream) != track) ++from;
    player.tracks[track].instruction = from;
  }

  void start_all(std::size_t role, double now) {
    for (std::size_t track = 0; track < kNumStreams; ++track) start(role, track, now);
  }

  // Starts the instruction that a track is at, if nothing holds it up.
  void start(std::size_t role, std::size_t track, double now) {
    Player& player = players_[role];
    Track& one = player.tracks[track];
    const auto i = at(one.instruction);
    if (i >= player.program->size() || one.running || player.messages[track].state != MessageState::none) return;
    const Issued& issued = (*player.program)[i];
    for (std::size_t stream = 0; stream < kNumStreams; ++stream)
      if (issued.after[stream] > player.ended[stream]) return;
    spans_[role][i].begin = now;
    if (const auto* collective = std::get_if<Collective>(&issued.instruction))
      return arrive(role, track, *collective, now);
    if (const auto* exchange = std::get_if<Exchange>(&issued.instruction)) return arrive(role, *exchange, now);
    run_for(role, track, (*player.own)[i].us, now);
  }

  void run_for(std::size_t role, std::size_t track, double us, double now) {
    account(role, now);
    Track& one = players_[role].tracks[track];
    one.running = true;
    one.left = us;
    one.since = now;
    one.factor = factor_of(players_[role], track);
    foretell(role, track);
  }

  void foretell(std::size_t role, std::size_t track) {
    Track& one = players_[role].tracks[track];
    events_.push({one.since + one.left * one.factor, static_cast<std::int32_t>(role), static_cast<std::uint32_t>(track),
                  ++one.stamp, 0});
  }

  void end(std::size_t role, std::size_t track, double now) {
    account(role, now);
    Player& player = players_[role];
    Track& one = player.tracks[track];
    const auto i = at(one.instruction);
    const Issued& issued = (*player.program)[i];
    Span& span = spans_[role][i];
    span.end = now;
    one.running = false;
    if (const auto* launch = std::get_if<Launch>(&issued.instruction))
      player.ledger.kernel(player.role->signatures[at(launch->signature)].op, span.end - span.begin, (*player.own)[i]);
    if (player.messages[track].state != MessageState::none) {
      book(player, track, issued.instruction);
      set_state(role, track, MessageState::none, now);
    }
    player.ended[static_cast<std::size_t>(issued.stream)] = one.instruction;
    seek(player, track, one.instruction + 1);
    start_all(role, now);
  }

  // ---- Communication ----

  void book(Player& player, std::size_t track, const Instruction& instruction) {
    Message& message = player.messages[track];
    const double spread = message.moved_us > 0 ? message.spread_us / message.moved_us : 0;
    if (const auto* collective = std::get_if<Collective>(&instruction))
      player.ledger.communication(collective->axes, static_cast<int>(collective->kind), message.moved_us,
                                  message.exposed_us, spread);
    if (const auto* exchange = std::get_if<Exchange>(&instruction)) {
      const Axis axis = exchange->sends.empty() ? exchange->receives.front().axis : exchange->sends.front().axis;
      player.ledger.communication(Axes::of(axis), Ledger::kSend, message.moved_us, message.exposed_us, spread);
    }
    message = {message.state, 0, 0, 0, {}};
  }

  // What moves bytes slows the kernels beside it: on a GPU collectives, whose kernels sum; on a CPU all, which cores
  // copy. Two of a rank's communications that ask for more than a link has take longer, each by as much.
  double factor_of(const Player& player, std::size_t track) const {
    if (std::find(kTalking.begin(), kTalking.end(), track) != kTalking.end()) return sharing(player, track);
    if (track != kCompute || !is_launch(player, kCompute)) return 1;
    double factor = 1;
    for (std::size_t talking : kTalking) {
      if (player.messages[talking].state != MessageState::moves) continue;
      const std::int32_t i = player.tracks[talking].instruction;
      const auto* collective = std::get_if<Collective>(&(*player.program)[at(i)].instruction);
      // Two hold the multiprocessors of both.
      if (collective != nullptr)
        factor += std::max(1.0, model_.overlap_slowdown(collective->axes, collective->stages)) - 1;
      if (collective == nullptr && cpu_) factor += std::max(1.0, model_.overlap_slowdown()) - 1;
    }
    return factor;
  }

  static double sharing(const Player& player, std::size_t track) {
    const Message& mine = player.messages[track];
    if (mine.state != MessageState::moves) return 1;
    double inside = 0, between = 0;
    for (std::size_t talking : kTalking) {
      if (player.messages[talking].state != MessageState::moves) continue;
      inside += player.messages[talking].links.inside;
      between += player.messages[talking].links.between;
    }
    return std::max({1.0, mine.links.inside > 0 ? inside : 0, mine.links.between > 0 ? between : 0});
  }

  void set_state(std::size_t role, std::size_t track, MessageState state, double now) {
    account(role, now);
    Player& player = players_[role];
    if (player.messages[track].state == state) return;
    player.messages[track].state = state;
    change_speed(role, kCompute, now);
    for (std::size_t other : kTalking) change_speed(role, other, now);
  }

  void change_speed(std::size_t role, std::size_t track, double now) {
    Track& one = players_[role].tracks[track];
    const double factor = one.running ? factor_of(players_[role], track) : one.factor;
    if (factor == one.factor) return;
    one.left = std::max(0.0, one.left - (now - one.since) / one.factor);
    one.since = now;
    one.factor = factor;
    foretell(role, track);
  }

  void move(std::size_t role, std::size_t track, double now) {
    Player& player = players_[role];
    const Estimate& own = (*player.own)[at(player.tracks[track].instruction)];
    player.messages[track].spread_us = own.us * own.spread;
    player.messages[track].links = own.links;
    set_state(role, track, MessageState::moves, now);
    run_for(role, track, own.us, now);
  }

  void arrive(std::size_t role, std::size_t track, const Collective& collective, double now) {
    if (!collective.axes.has(Axis::pipeline)) return move(role, track, now);
    CHECK(track == kCommunication, "stages meet on the communication stream");
    set_state(role, track, MessageState::waits, now);
    std::vector<std::size_t>& here = arrived_[{collective.axes.mask, collective.stages}];
    here.push_back(role);
    if (here.size() < (collective.stages.empty() ? players_.size() : collective.stages.size())) return;
    const std::vector<std::size_t> members = std::exchange(here, {});
    for (std::size_t member : members) move(member, kCommunication, now);
  }

  static std::size_t num_parts(const Exchange& exchange) { return exchange.sends.size() + exchange.receives.size(); }

  const Exchange* exchange_of(std::size_t role) const {
    const Player& player = players_[role];
    if (player.messages[kCommunication].state == MessageState::none) return nullptr;
    return std::get_if<Exchange>(&(*player.program)[at(player.tracks[kCommunication].instruction)].instruction);
  }

  void arrive(std::size_t role, const Exchange& mine, double now) {
    Player& player = players_[role];
    player.matched.assign(num_parts(mine), false);
    player.unmatched = num_parts(mine);
    player.flying = 0;
    set_state(role, kCommunication, MessageState::waits, now);
    for (std::size_t part = 0; part < num_parts(mine); ++part) {
      if (player.matched[part]) continue;
      const bool sending = part < mine.sends.size();
      const Axis axis = sending ? mine.sends[part].axis : mine.receives[part - mine.sends.size()].axis;
      const std::int32_t peer = sending ? mine.sends[part].peer : mine.receives[part - mine.sends.size()].peer;
      // Along other axes the peer plays this very role, and so is here too.
      const std::size_t other =
          axis == Axis::pipeline ? role + static_cast<std::size_t>(static_cast<std::int64_t>(peer)) : role;
      CHECK(other < players_.size(), "an exchange with a stage that is none");
      const Exchange* const theirs = exchange_of(other);
      if (theirs == nullptr) continue;
      fly(role, mine, other, *theirs, now);
      if (other != role) fly(other, *theirs, role, mine, now);
    }
    CHECK(num_parts(mine) > 0, "an exchange of nothing");
  }

  // Sends off all that one exchange has for another and that it expects.
  void fly(std::size_t from, const Exchange& source, std::size_t to, const Exchange& target, double now) {
    Player &sender = players_[from], &receiver = players_[to];
    std::int64_t bytes = 0;
    const Exchange::Send* any = nullptr;
    for (std::size_t s = 0; s < source.sends.size(); ++s) {
      const Exchange::Send& send = source.sends[s];
      const std::int64_t meant = static_cast<std::int64_t>(from) + (send.axis == Axis::pipeline ? send.peer : 0);
      if (sender.matched[s] || meant != static_cast<std::int64_t>(to)) continue;
      for (std::size_t r = 0; r < target.receives.size(); ++r) {
        const Exchange::Receive& receive = target.receives[r];
        const std::size_t part = target.sends.size() + r;
        if (receiver.matched[part] || receive.axis != send.axis || receive.peer != -send.peer ||
            receive.region.region.bytes != send.region.region.bytes)
          continue;
        sender.matched[s] = receiver.matched[part] = true;
        --sender.unmatched;
        --receiver.unmatched;
        bytes += send.region.region.bytes;
        any = &send;
        break;
      }
    }
    if (any == nullptr) return;
    const Estimate time = model_.send(any->axis, any->peer, bytes);
    double factor = 1;
    for (const std::size_t role : {from, to}) {
      Player& player = players_[role];
      Message& message = player.messages[kCommunication];
      ++player.flying;
      message.spread_us += time.us * time.spread;
      message.links = time.links;
      set_state(role, kCommunication, MessageState::moves, now);
      factor = std::max(factor, sharing(player, kCommunication));
    }
    const double begin = std::max({now, sender.sends_until, receiver.receives_until});
    sender.sends_until = receiver.receives_until = begin + factor * time.us;
    events_.push(
        {begin + factor * time.us, static_cast<std::int32_t>(from), kFlight, 0, static_cast<std::int32_t>(to)});
  }

  void land(std::size_t from, std::size_t to, double now) {
    for (const std::size_t role : {from, to}) {
      Player& player = players_[role];
      if (--player.flying > 0) continue;
      if (player.unmatched == 0)
        end(role, kCommunication, now);
      else
        set_state(role, kCommunication, MessageState::waits, now);
    }
  }

  // ---- Where time goes ----

  static bool is_launch(const Player& player, std::size_t track) {
    return std::holds_alternative<Launch>((*player.program)[at(player.tracks[track].instruction)].instruction);
  }

  // Of several communications the one that computing waits for.
  static std::size_t awaited(const Player& player) {
    const auto moves = [&](std::size_t track) { return player.messages[track].state == MessageState::moves; };
    const auto i = at(player.tracks[kCompute].instruction);
    if (i < player.program->size()) {
      const StreamClock& after = (*player.program)[i].after;
      for (std::size_t track : {kCommunication, kTensor, kBackground})
        if (after[track] > player.ended[track] &&
            (track == kCommunication ? player.messages[track].state != MessageState::none : moves(track)))
          return track;
    }
    if (player.messages[kCommunication].state != MessageState::none) return kCommunication;
    return moves(kTensor) ? kTensor : moves(kBackground) ? kBackground : kCommunication;
  }

  // Brings a role's times up to the clock; before whatever changes what it does.
  void account(std::size_t role, double now) {
    Player& player = players_[role];
    const double passed = now - player.accounted;
    if (passed <= 0) return;
    player.accounted = now;
    const std::size_t talking = awaited(player);
    const Track &compute = player.tracks[kCompute], &communication = player.tracks[talking];
    Message& message = player.messages[talking];
    const auto part = [&](const Track& track, double& otherwise) -> double& {
      return track.instruction >= player.optimizer_from ? player.times.optimizer_us : otherwise;
    };
    if (player.messages[kCommunication].state == MessageState::waits)
      spans_[role][at(player.tracks[kCommunication].instruction)].waited += passed;
    for (std::size_t track : kTalking)
      if (player.messages[track].state == MessageState::moves) player.messages[track].moved_us += passed;
    if (compute.running && is_launch(player, kCompute)) {
      part(compute, player.times.compute_us) += passed;
    } else if (message.state == MessageState::moves) {
      message.exposed_us += passed;
      part(communication, player.times.exposed_us) += passed;
    } else if (message.state == MessageState::waits) {
      player.times.bubble_us += passed;
    } else if (compute.running || player.tracks[kCopy].running) {
      player.times.input_us += passed;
    } else if (player.tracks[kFetch].running || player.tracks[kStore].running || player.tracks[kHost].running) {
      player.times.offload_us += passed;
    } else {
      player.times.bubble_us += passed;
    }
  }

  Prediction result(double now, std::optional<std::size_t> detailed) {
    Prediction prediction;
    prediction.step_us = now;
    for (std::size_t role = 0; role < players_.size(); ++role) {
      account(role, now);
      const Player& player = players_[role];
      for (const Track& track : player.tracks)
        CHECK(at(track.instruction) >= player.program->size(), "a verified program comes to its end");
      prediction.roles.push_back(player.times);
      if (player.times.bubble_us < prediction.roles[prediction.slowest].bubble_us) prediction.slowest = role;
    }
    prediction.slowest = detailed.value_or(prediction.slowest);
    const Ledger& ledger = players_[prediction.slowest].ledger;
    const double busy = now - prediction.roles[prediction.slowest].bubble_us;
    const double scale = busy > 0 ? now / busy : 1;  // what takes longer makes the others wait longer
    prediction.low_us = std::max(0.0, now - scale * ledger.shorter());
    prediction.high_us = now + scale * ledger.longer();
    prediction.communication = ledger.communications(plan_.mesh);
    prediction.kernels = ledger.kernels();
    prediction.spans = std::move(spans_);
    return prediction;
  }

  const Plan& plan_;
  const CostModel& model_;
  bool cpu_ = false;
  std::vector<Player> players_;
  std::vector<std::vector<Span>> spans_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::map<std::pair<std::uint8_t, std::vector<std::int32_t>>, std::vector<std::size_t>>
      arrived_;  // in a collective over stages
};

}  // namespace

Prediction play(const Plan& plan, const CostModel& model, std::span<const Program* const> programs,
                const std::vector<OwnTimes>& own, std::optional<std::size_t> detailed) {
  return Play(plan, model, programs, own).run(detailed);
}

}  // namespace trainer::cost
