// The GPU as a device: one allocation, pinned fields, streams and events as the plan's order asks for them. A program
// is issued the first time, which lets libraries set themselves up; the second time it is captured, and from then on
// its graph is launched. A program may be started again while it still runs. The two runs use two sets of fields, so
// the program is captured once with each.
//
// Whoever waits for the device polls it together with the communicator: a kernel that waits for a lost rank would never
// end.
#include "engine/run/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/environment.h"
#include "engine/core/error.h"
#include "engine/core/index.h"
#include "engine/run/cuda_issue.h"
#include "engine/run/cuda_memory.h"
#include "engine/run/non_finite.h"
#include "kernels/cuda/runtime/device_choices.h"
#include "kernels/cuda/table.h"

namespace trainer {
namespace {

using kernels::cuda::check;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kStagedBytes = std::int64_t{4} << 20;
// A graph has a node for every launch, some kilobytes each on the host: a longer program is issued again each time.
constexpr std::int64_t kMostCaptured = 4'000'000;
// A longer program takes so much longer than what is between two of them that a second graph is not worth its memory.
constexpr std::int64_t kMostCapturedTwice = 100'000;

std::vector<StreamSchedule> schedules_of(const Role& role) {
  std::vector<StreamSchedule> schedules;
  for (const Program& program : role.programs) schedules.push_back(schedule_streams(program));
  return schedules;
}

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(const Plan& plan, int rank, Communicator& communicator, const CudaOptions& options)
      : role_(plan.role_of(rank)),
        point_{plan.mesh, plan.mesh.coordinates(rank)},
        rank_(rank),
        communicator_(communicator),
        of_gpus_(plan.mesh.world_size() > 1 ? dynamic_cast<StreamCommunicator*>(&communicator) : nullptr),
        device_(options.ordinal),
        free_before_(free_device_bytes()),
        groups_(plan, of_gpus_),
        memory_(role_.total_bytes, "GPU " + std::to_string(options.ordinal) + " (" + device_.name() + ")", of_gpus_,
                rank, &plan.role_of(rank) - plan.roles.data()),
        schedules_(schedules_of(role_)),
        streams_(schedules_),
        host_stream_(make_stream(true)),
        staged_(kStagedBytes),
        fields_(role_),
        on_host_(role_.host_bytes),
        issue_(role_, rank, streams_, fields_, on_host_.data(), of_gpus_) {
    CHECK(role_.disk_bytes == 0, "a GPU's plan keeps nothing on disk");
    std::memset(on_host_.data(), 0, static_cast<std::size_t>(role_.host_bytes));
    kernels::cuda::DeviceChoices& choices = device_.begin_choices(memory_.at(0), memory_.bytes());
    make_kernels(choices, options.on_host);
    if (of_gpus_ != nullptr) agree_on(choices, plan, options.on_host);
    device_.end_choices();
    // States begin at zero.
    check(cudaMemsetAsync(memory_.at(0), 0, static_cast<std::size_t>(memory_.bytes()), host_stream_.get()),
          "cudaMemsetAsync");
    check(cudaStreamSynchronize(host_stream_.get()), "cudaStreamSynchronize");
    for (const std::string& note : device_.take_notes()) std::fprintf(stderr, "rank %d: %s\n", rank, note.c_str());
    programs_.resize(role_.programs.size());
    for (std::size_t i = 0; i < programs_.size(); ++i) prepare(programs_[i], plan, role_.programs[i], schedules_[i]);
    communicator_.describe_by([this] { return doing(); });
  }

  ~CudaExecutor() override {
    communicator_.describe_by({});
    // An exception between start() and finish() may have freed the fields that were bound, so nothing is given back.
    // But the program still uses this memory: it has to end first.
    for (std::size_t i = 0; i < num_running_ && !failed_; ++i) try {
        guarded([&] { wait_for_end(runs_[i]); });
      } catch (const std::exception&) {
      }
    if (failed_) cudaDeviceSynchronize();  // the communicator was aborted, so nothing waits for others
  }

  void bind(std::int32_t field, void* data) override { fields_.bind(field, data); }
  bool runs_beside_host() const override { return true; }

  bool may_start_ahead(std::int32_t index) const override {
    const CudaProgram& program = programs_.at(size(index));
    return graphs_ && !recording_ && program.program().length() <= kMostCapturedTwice;
  }

  void start(std::int32_t index) override {
    const RunningProgram& run = begin(index);
    CudaProgram& program = *run.program;
    guarded([&] {
      poison(program);
      if (recording_) make_time_events(program);
      if (recording_ || !may_capture(program) || program.runs++ == 0)
        issue_.issue(program, run.set, recording_);
      else
        replay(run);
      streams_.mark_end(run.set, program.schedule.origin);
    });
  }

  void finish() override {
    CHECK(num_running_ > 0, "a program was started");
    const RunningProgram& run = runs_[0];
    CudaProgram& program = *run.program;
    guarded([&] {
      wait_for_end(run);
      program.took = Clock::now() - run.begun;
      device_.throw_fault();
      fields_.give(run.set, program.fields.written);
    });
    if (recording_) read_times(program);
    end_first();
  }

  // One instruction after another, in issue order: the proof of the plan plays it so, and it ends.
  std::optional<NonFinite> find_non_finite(std::int32_t index) override {
    const RunningProgram& run = begin(index);
    CudaProgram& program = *run.program;
    CHECK(num_running_ == 1, "no other program runs");
    captured_.store(false, std::memory_order_relaxed);
    passed_.store(kNotRecorded, std::memory_order_relaxed);
    std::optional<NonFinite> found;
    guarded([&] {
      for_each_in_run(passes_of(program.program()), [&](std::int32_t instruction, std::int32_t pass) {
        const Place place{instruction, pass};
        issue_.issue_alone(program, place);
        streams_.mark_end(run.set, program.stream_of(instruction));
        wait_for_end(run);
        if (!found)
          found =
              inspect_results(role_, issued_at(role_, program.program(), place), number_of(program.program(), place),
                              [&](DType dtype, const Region& region) { return first_in(dtype, region); });
        return true;
      });
      device_.throw_fault();
      fields_.give(run.set, program.fields.written);
    });
    end_first();
    return found;
  }

  // Weights are drawn by several threads, and there is one staging buffer.
  void write(const Region& region, const void* data) override {
    if (std::byte* const at = on_host(region))
      return void(std::memcpy(at, data, static_cast<std::size_t>(region.bytes)));
    const std::lock_guard lock(staging_);
    make_current();
    each_part(region, [&](std::byte* device, std::int64_t offset, std::int64_t bytes) {
      std::memcpy(staged_.data(), static_cast<const std::byte*>(data) + offset, static_cast<std::size_t>(bytes));
      copy(device, staged_.data(), bytes, cudaMemcpyHostToDevice);
    });
  }

  void read(const Region& region, void* data) const override {
    if (const std::byte* const at = on_host(region))
      return void(std::memcpy(data, at, static_cast<std::size_t>(region.bytes)));
    const std::lock_guard lock(staging_);
    make_current();
    each_part(region, [&](const std::byte* device, std::int64_t offset, std::int64_t bytes) {
      copy(staged_.data(), device, bytes, cudaMemcpyDeviceToHost);
      std::memcpy(static_cast<std::byte*>(data) + offset, staged_.data(), static_cast<std::size_t>(bytes));
    });
  }

  void record_times(bool on) override { recording_ = on; }
  std::span<const Span> times(std::int32_t index) const override {
    return programs_.at(static_cast<std::size_t>(index)).times;
  }
  std::int64_t allocated_bytes() const override { return memory_.bytes(); }
  std::int64_t offloaded_bytes(Space space) const override { return space == Space::host ? on_host_.bytes() : 0; }
  std::int64_t counted_bytes() const override {
    make_current();
    return std::max<std::int64_t>(0, free_before_ - free_device_bytes());
  }
  const Role& role() const override { return role_; }

 private:
  // ---- Preparation ----

  // Of each signature where it is launched, unless it is there.
  void make_kernels(const kernels::cuda::DeviceChoices& choices, const PrepareOnHost& on_host) {
    kernels_.resize(role_.signatures.size());
    host_kernels_.resize(role_.signatures.size());
    asked_.resize(role_.signatures.size());
    for (const Program& program : role_.programs)
      for (const Issued& issued : program.instructions) {
        const auto* launch = std::get_if<Launch>(&issued.instruction);
        if (launch == nullptr) continue;
        const auto at = static_cast<std::size_t>(launch->signature);
        const Signature& signature = role_.signatures[at];
        if (issued.stream != Stream::host) {
          if (kernels_[at] != nullptr) continue;
          asked_[at].first = choices.asked();
          kernels_[at] = kernels::cuda::prepare(signature, device_.context());
          asked_[at].second = choices.asked();
        } else if (host_kernels_[at] == nullptr) {
          CHECK(on_host != nullptr, "who loads a plan with kernels on the host can prepare them");
          host_kernels_[at] = on_host(signature);
        }
      }
  }

  // Ranks that compute the same thing have to get the same bits, on whatever machines they are. Ranks of a role have
  // the same kernels, so the first of its ranks on each kind of GPU speaks for it. Kernels that have to take another
  // choice are made again.
  void agree_on(kernels::cuda::DeviceChoices& choices, const Plan& plan, const PrepareOnHost& on_host) {
    ControlChannel& channel = communicator_.control();
    const std::vector<std::int64_t> kinds = channel.each(choices.kind_number());
    int first = 0;
    while (&plan.role_of(first) != &role_ || kinds[size(first)] != kinds[size(rank_)]) ++first;
    std::string all;
    for (const std::string& text : channel.to_first(rank_ == first ? choices.str() : "")) all += text;
    choices.agree(channel.from_first(all));
    for (std::size_t i = 0; i < kernels_.size(); ++i)
      if (choices.changed(asked_[i].first, asked_[i].second)) kernels_[i].reset();
    make_kernels(choices, on_host);
  }

  void prepare(CudaProgram& result, const Plan& plan, const Program& program, const StreamSchedule& schedule) {
    result.prepared =
        prepare_program(plan, rank_, program, {memory_.at(0), kernels_}, {on_host_.data(), host_kernels_});
    result.schedule = schedule;
    result.fields = PinnedFields::parts_of(program);
    for (const Issued& issued : program.instructions) {
      const auto* collective = std::get_if<Collective>(&issued.instruction);
      result.groups.push_back(collective == nullptr ? nullptr : groups_.of(*collective, issued.stream));
      if (issued.stream != Stream::host) continue;
      const auto instruction = static_cast<std::int32_t>(result.groups.size()) - 1;
      CHECK(program.loop_at(instruction) == nullptr, "what runs on the host is in no loop");
      const PreparedInstruction& one = result.prepared.instructions[static_cast<std::size_t>(instruction)];
      result.host_calls[instruction] = {one.kernel, result.prepared.call(one, 0)};
    }
  }

  void make_current() const { check(cudaSetDevice(device_.context().device), "cudaSetDevice"); }

  // ---- Running ----

  // A program that was started and not finished.
  struct RunningProgram {
    CudaProgram* program = nullptr;
    int set = 0;  // of the fields, and its mark on the streams
    Clock::time_point begun{};
  };

  const RunningProgram& begin(std::int32_t index) {
    CudaProgram& program = programs_.at(size(index));
    CHECK(num_running_ == 0 || (num_running_ == 1 && runs_[0].program == &program && may_start_ahead(index)),
          "the program before was finished, or may be started ahead");
    CHECK(!failed_, "a device that failed runs nothing more");
    make_current();
    RunningProgram& run = runs_[num_running_];
    run = {&program, num_running_ == 0 ? 0 : 1 - runs_[0].set, Clock::now()};
    fields_.take(run.set, program.fields.read);
    if (num_running_++ == 0) show(run);
    return run;
  }

  // The first program that was started is finished: the next, if there is one, begins now.
  void end_first() {
    runs_[0] = runs_[1];
    if (--num_running_ == 0) return running_.store(nullptr);
    runs_[0].begun = Clock::now();
    show(runs_[0]);
  }

  void show(const RunningProgram& run) {
    captured_.store(run.program->graphs[size(run.set)] != nullptr && !recording_, std::memory_order_relaxed);
    passed_.store(0, std::memory_order_relaxed);
    running_.store(run.program);
  }

  bool may_capture(const CudaProgram& program) const { return graphs_ && program.program().length() <= kMostCaptured; }

  // Nothing else of this rank runs during a capture. There are two captures in a training, so that costs little.
  void replay(const RunningProgram& run) {
    CudaProgram& program = *run.program;
    ExecutableGraph& graph = program.graphs[size(run.set)];
    if (graph) {
      communicator_.add_bytes_sent(program.bytes_sent);
    } else {
      if (num_running_ > 1) wait_for_end(runs_[0]);
      const std::int64_t sent = communicator_.bytes_sent();
      graph = issue_.capture(program, run.set);
      program.bytes_sent = communicator_.bytes_sent() - sent;
    }
    if (num_running_ == 1) captured_.store(true, std::memory_order_relaxed);
    check(cudaGraphLaunch(graph.get(), streams_[program.schedule.origin]), "cudaGraphLaunch");
  }

  // Scratch memory starts as NaN, so that a read of what was never written shows.
  void poison(const CudaProgram& program) {
    if (!poison_ || program.empty()) return;
    check(cudaMemsetAsync(memory_.at(role_.persistent_bytes), 0xFF,
                          static_cast<std::size_t>(role_.total_bytes - role_.persistent_bytes),
                          streams_[program.schedule.origin]),
          "cudaMemsetAsync");
  }

  // Sleeps between looks, but not at first, since small programs take microseconds, nor when the program is about to
  // end as it did the last time, since the system may let a thread sleep longer than it asked for.
  void wait_for_end(const RunningProgram& run) {
    const CudaProgram& program = *run.program;
    if (program.empty()) return;
    constexpr std::chrono::microseconds kSpin{200}, kNap{20}, kCheck{2000};
    const Clock::time_point since = Clock::now(), expected = run.begun + program.took;
    Clock::time_point checked = since;
    while (!ended(run)) {
      const Clock::time_point now = Clock::now();
      if (now > since + kSpin && (now < expected - kSpin || now > expected + kSpin)) std::this_thread::sleep_for(kNap);
      if (now - checked < kCheck) continue;
      checked = now;
      look_where(program);
      if (of_gpus_ != nullptr) of_gpus_->check();
    }
  }

  bool ended(const RunningProgram& run) const {
    try {
      return streams_.ended(run.set);
    } catch (const IoError& error) {
      throw IoError("rank " + std::to_string(rank_) + ": " + error.what() + ", while it " + where(*run.program));
    }
  }

  // How far an issued program has come, by the events that it records anyway: of a loop they are those of its last
  // passes.
  void look_where(const CudaProgram& program) {
    std::int32_t passed = passed_.load(std::memory_order_relaxed);
    if (captured_.load(std::memory_order_relaxed) || passed == kNotRecorded) return;
    const std::vector<std::int32_t>& recorded = program.schedule.recorded;
    for (; static_cast<std::size_t>(passed) < recorded.size(); ++passed) {
      const auto [one, other] = program.schedule.events_of(recorded[static_cast<std::size_t>(passed)]);
      if (!streams_.passed(one) || !streams_.passed(other)) break;
    }
    passed_.store(passed, std::memory_order_relaxed);
  }

  std::string where(const CudaProgram& program) const {
    const std::int32_t issuing = issue_.now(), passed = passed_.load(std::memory_order_relaxed);
    if (issuing >= 0) return "issues " + text_of_place(role_, program.program(), issuing);
    if (captured_.load(std::memory_order_relaxed)) return "runs " + program.name() + " on the GPU, as one graph";
    if (passed <= 0) return "runs " + program.name() + " on the GPU";
    const std::int32_t instruction = program.schedule.recorded[static_cast<std::size_t>(passed) - 1];
    const auto pass = static_cast<std::int32_t>(program.program().times(static_cast<std::size_t>(instruction))) - 1;
    return "runs " + program.name() + " on the GPU, past " +
           text_of_place(role_, program.program(), number_of(program.program(), {instruction, pass}));
  }

  std::string doing() const {
    const CudaProgram* const program = running_.load();
    return program == nullptr ? "" : where(*program);
  }

  // If this rank itself fails, no other rank may wait for it.
  template <typename Run>
  void guarded(Run&& run) {
    try {
      run();
    } catch (const AbortedError&) {
      failed_ = true;
      throw;
    } catch (const std::exception& error) {
      failed_ = true;
      communicator_.abort("rank " + std::to_string(rank_) + ": " + error.what());
      throw;
    }
  }

  // ---- Times ----

  void make_time_events(CudaProgram& program) {
    if (!started_) started_ = make_event(true);
    program.times.resize(static_cast<std::size_t>(program.program().length()));
    while (program.begins.size() < program.times.size()) {
      program.begins.push_back(make_event(true));
      program.ends.push_back(make_event(true));
    }
    if (!program.empty()) check(cudaEventRecord(started_.get(), streams_[program.schedule.origin]), "cudaEventRecord");
  }

  void read_times(CudaProgram& program) {
    const auto since_start = [&](const EventHandle& event) {
      float ms = 0;
      check(cudaEventElapsedTime(&ms, started_.get(), event.get()), "cudaEventElapsedTime");
      return static_cast<std::int64_t>(static_cast<double>(ms) * 1e6);
    };
    for (std::size_t i = 0; i < program.begins.size(); ++i)
      program.times[i] = {since_start(program.begins[i]), since_start(program.ends[i])};
  }

  // ---- The host and the memory ----

  /// Of what is kept in the host's memory; null: it is on the device.
  std::byte* on_host(const Region& region) const {
    if (role_.space_of(region) == Space::device) return nullptr;
    return on_host_.data() + (role_.address(region, point_) - begin_of(Space::host));
  }

  template <typename Visit>
  void each_part(const Region& region, Visit&& visit) const {
    std::byte* const device = memory_.at(role_.address(region, point_));
    for (std::int64_t offset = 0; offset < region.bytes; offset += kStagedBytes)
      visit(device + offset, offset, std::min(kStagedBytes, region.bytes - offset));
  }

  void copy(void* to, const void* from, std::int64_t bytes, cudaMemcpyKind kind) const {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, host_stream_.get()), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(host_stream_.get()), "cudaStreamSynchronize");
  }

  std::int64_t first_in(DType dtype, const Region& region) const {
    if (const std::byte* const at = on_host(region)) return first_non_finite(dtype, at, region.bytes / size_of(dtype));
    std::int64_t first = -1;
    each_part(region, [&](const std::byte* device, std::int64_t offset, std::int64_t bytes) {
      if (first >= 0) return;
      copy(staged_.data(), device, bytes, cudaMemcpyDeviceToHost);
      const std::int64_t here = first_non_finite(dtype, staged_.data(), bytes / size_of(dtype));
      if (here >= 0) first = offset / size_of(dtype) + here;
    });
    return first;
  }

  const Role& role_;
  const MeshPoint point_;
  const int rank_;
  Communicator& communicator_;
  StreamCommunicator* const of_gpus_;  // the same; null: one rank
  kernels::cuda::Device device_;
  const std::int64_t free_before_;
  CudaGroups groups_;
  DeviceMemory memory_;
  const std::vector<StreamSchedule> schedules_;
  CudaStreams streams_;
  StreamHandle host_stream_;
  mutable std::mutex staging_;  // guards staged_ and host_stream_ where write() and read() use them
  PinnedMemory staged_;
  PinnedFields fields_;
  PinnedMemory on_host_;                                                  // what the plan keeps there
  std::vector<std::unique_ptr<kernels::Kernel>> kernels_, host_kernels_;  // of the role's signatures
  std::vector<std::pair<std::size_t, std::size_t>> asked_;  // of each kernel: the choices that it took, [begin, end)
  std::vector<CudaProgram> programs_;
  CudaIssue issue_;
  std::array<RunningProgram, PinnedFields::kSets> runs_{};  // in the order in which they were started
  std::size_t num_running_ = 0;
  EventHandle started_;  // of times
  bool recording_ = false;
  bool failed_ = false;
  const bool graphs_ = environment::value_of(environment::kCudaGraph).value_or("1") != "0";
  const bool poison_ = poison_scratch();

  // What doing() tells of.
  std::atomic<CudaProgram*> running_{nullptr};
  std::atomic<bool> captured_{false};
  static constexpr std::int32_t kNotRecorded =
      -1;  // the events are of an earlier run, of a capture perhaps, when they may not be asked
  std::atomic<std::int32_t> passed_{0};
};

class CudaDevice final : public DeviceBackend {
 public:
  explicit CudaDevice(const CudaOptions& options) : options_(options) {
    check(cudaSetDevice(options.ordinal), "cudaSetDevice");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, options.ordinal), "cudaGetDeviceProperties");
    name_ = properties.name;
  }
  std::string description() const override { return "cuda, GPU " + std::to_string(options_.ordinal) + ": " + name_; }
  std::unique_ptr<Executor> load(const Plan& plan, int rank, Communicator& communicator) override {
    return std::make_unique<CudaExecutor>(plan, rank, communicator, options_);
  }

 private:
  const CudaOptions options_;
  std::string name_;
};

}  // namespace

std::unique_ptr<DeviceBackend> cuda_device(const CudaOptions& options) { return std::make_unique<CudaDevice>(options); }

}  // namespace trainer
