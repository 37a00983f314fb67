// The CPU as a device. The compute and copy streams are the thread that calls run(), whose kernels fork a team of
// threads; the streams for communication and for moves between memory and disk are threads of their own, so that they
// go on during computation. Each thread works through its own list in issue order and waits for the others by Progress.
//
// A collective that the compute stream would do nothing but wait for runs on the caller's thread, for waking another
// one and being woken by it takes longer than many a collective does.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "engine/comm/host_communicator.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/run/executor.h"
#include "engine/run/host_memory.h"
#include "engine/run/non_finite.h"
#include "engine/run/offload_file.h"
#include "engine/run/prepared_program.h"
#include "engine/run/progress.h"
#include "kernels/cpu/table.h"

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;

// Threads of a rank: the caller's, and for what goes on beside it those that any program needs.
enum Thread : std::size_t { kHere, kCommunication, kFetch, kStore, kNumThreads };

Thread thread_of(Stream stream) {
  switch (stream) {
    case Stream::communication:
      return kCommunication;
    case Stream::fetch:
      return kFetch;
    case Stream::store:
      return kStore;
    default:
      return kHere;
  }
}

// An instruction in the list of its thread.
struct Queued {
  std::int32_t index = 0;                         // in the program
  std::array<std::int32_t, kNumThreads> after{};  // of each other thread the instruction that it waits for, as listed
  const PreparedInstruction* prepared = nullptr;
  HostCommunicator::Group* group = nullptr;  // of a collective
  bool awaited = false;                      // of a collective: no computation of this rank goes on beside it
};

// What a thread does in a program, in issue order.
struct Queue {
  std::vector<Queued> list;
  Passes passes;

  void add(const Queued& one, const std::vector<Loop>& loops) {
    passes.loops.resize(loops.size());
    for (std::size_t i = 0; i < loops.size(); ++i) {
      Loop& mine = passes.loops[i];
      mine.times = loops[i].times;
      if (one.index < loops[i].first) ++mine.first;
      if (one.index < loops[i].last) ++mine.last;
    }
    list.push_back(one);
    ++passes.size;
  }
};

struct CpuProgram {
  PreparedProgram prepared;
  std::array<Queue, kNumThreads> queues;
  std::vector<Span> times;

  const Program& program() const { return *prepared.program; }
  bool needs(std::size_t thread) const { return !queues[thread].list.empty(); }
};

// What a thread has done of the program at hand, and the number of the place that it is at.
struct Worker {
  Progress progress;
  std::atomic<std::int32_t> now{-1};
  bool has_work = false;  // of the program at hand; guarded
  std::thread thread;     // the caller's is none
};

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(const Plan& plan, int rank, HostCommunicator& communicator, const kernels::cpu::Context& context,
              const std::string& offload_dir)
      : plan_(plan),
        role_(plan.role_of(rank)),
        point_{plan.mesh, plan.mesh.coordinates(rank)},
        communicator_(communicator),
        memory_(role_.total_bytes) {
    CHECK(role_.host_bytes == 0, "a CPU's device is its host");
    if (role_.disk_bytes > 0) file_.emplace(offload_dir, rank, role_.disk_bytes);
    for (const Signature& signature : role_.signatures) kernels_.push_back(kernels::cpu::prepare(signature, context));
    fields_.resize(role_.fields.size());
    programs_.reserve(role_.programs.size());
    for (const Program& program : role_.programs) prepare(programs_.emplace_back(), program);
    for (std::size_t thread = kHere + 1; thread < kNumThreads; ++thread)
      if (std::ranges::any_of(programs_, [&](const CpuProgram& program) { return program.needs(thread); }))
        workers_[thread].thread = std::thread([this, thread] { work(static_cast<Thread>(thread)); });
    communicator_.describe_by([this] { return doing(); });
  }

  ~CpuExecutor() override {
    communicator_.describe_by({});
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (Worker& worker : workers_)
      if (worker.thread.joinable()) worker.thread.join();
  }

  void bind(std::int32_t field, void* data) override {
    fields_.at(static_cast<std::size_t>(field)) = static_cast<std::byte*>(data);
  }

  // Runs it: there is no other processor to leave it to.
  void start(std::int32_t index) override {
    poison();
    run_here(programs_.at(static_cast<std::size_t>(index)), [](const Place&) {});
  }
  void finish() override {}
  bool runs_beside_host() const override { return false; }

  std::optional<NonFinite> find_non_finite(std::int32_t index) override {
    CpuProgram& program = programs_.at(static_cast<std::size_t>(index));
    std::optional<NonFinite> found;
    run_here(program, [&](const Place& place) {
      if (!found) found = inspect(program.program(), place);
    });
    return found;
  }

  void write(const Region& region, const void* data) override {
    if (on_disk(region)) return file_->write(disk_offset(region), data, region.bytes);
    std::memcpy(address(region), data, static_cast<std::size_t>(region.bytes));
  }
  void read(const Region& region, void* data) const override {
    if (on_disk(region)) return file_->read(disk_offset(region), data, region.bytes);
    std::memcpy(data, address(region), static_cast<std::size_t>(region.bytes));
  }
  void record_times(bool on) override {
    recording_ = on;
    for (CpuProgram& program : programs_)
      program.times.resize(on ? static_cast<std::size_t>(program.program().length()) : 0);
  }
  std::span<const Span> times(std::int32_t index) const override {
    return programs_.at(static_cast<std::size_t>(index)).times;
  }
  std::int64_t allocated_bytes() const override { return memory_.bytes(); }
  std::int64_t offloaded_bytes(Space space) const override {
    return space == Space::disk && file_ ? file_->bytes() : 0;
  }
  const Role& role() const override { return role_; }

 private:
  // ---- Preparation ----

  std::byte* address(const Region& region) const { return memory_.at(role_.address(region, point_)); }
  bool on_disk(const Region& region) const { return role_.space_of(region) == Space::disk; }
  std::int64_t disk_offset(const Region& region) const { return role_.address(region, point_) - begin_of(Space::disk); }

  void prepare(CpuProgram& result, const Program& program) {
    result.prepared = prepare_program(plan_, communicator_.rank(), program, {memory_.at(0), kernels_});
    const std::vector<bool> runs_here = awaited_at_once(program);
    std::int32_t last_here = -1, last_there = -1;  // of the communication so far, on the caller's thread and on its own
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const Issued& issued = program.instructions[i];
      CHECK(issued.stream != Stream::background && issued.stream != Stream::tensor,
            "a plan for a CPU has one stream of communication");
      const auto index = static_cast<std::int32_t>(i);
      const Thread mine = runs_here[i] ? kHere : thread_of(issued.stream);
      Queued one{index, {}, &result.prepared.instructions[i], nullptr, runs_here[i]};
      one.after.fill(-1);
      for (std::size_t s = 0; s < kNumStreams; ++s) {
        const std::int32_t after = issued.after[s];
        const bool moved = after >= 0 && runs_here[static_cast<std::size_t>(after)];
        if (const Thread thread = moved ? kHere : thread_of(static_cast<Stream>(s)); thread != mine)
          one.after[thread] = std::max(one.after[thread], after);
      }
      // Communication keeps its order, whichever thread has it.
      if (issued.stream == Stream::communication) {
        std::int32_t& before = one.after[mine == kHere ? kCommunication : kHere];
        before = std::max(before, mine == kHere ? last_there : last_here);
        (mine == kHere ? last_here : last_there) = index;
      }
      if (const auto* collective = std::get_if<Collective>(&issued.instruction)) one.group = group(*collective);
      result.queues[mine].add(one, program.loops);
    }
  }

  // Which collectives come right behind what they wait for in the caller's list, and right before what waits for them.
  // Of a loop, those of which that is so in the round before it too, which stands for the pass before each.
  static std::vector<bool> awaited_at_once(const Program& program) {
    const auto size = static_cast<std::int32_t>(program.instructions.size());
    const auto at = [&](std::int32_t i) -> const Issued& { return program.instructions[static_cast<std::size_t>(i)]; };
    const auto is_here = [&](std::int32_t i) { return thread_of(at(i).stream) == kHere; };
    std::vector<bool> result(program.instructions.size());
    std::int32_t before = -1;
    for (std::int32_t i = 0; i < size; ++i) {
      if (is_here(i)) before = i;
      if (at(i).stream != Stream::communication || !std::holds_alternative<Collective>(at(i).instruction)) continue;
      std::int32_t behind = i + 1;
      while (behind < size && !is_here(behind)) ++behind;
      result[static_cast<std::size_t>(i)] =
          before >= 0 && at(i).after[static_cast<std::size_t>(Stream::compute)] == before && behind < size &&
          at(behind).after[static_cast<std::size_t>(Stream::communication)] >= i;
    }
    for (const Loop& loop : program.loops)
      for (std::int32_t i = loop.first; i < loop.last; ++i) {
        const std::int32_t earlier = i - loop.size();
        const bool both =
            earlier >= 0 && result[static_cast<std::size_t>(i)] && result[static_cast<std::size_t>(earlier)];
        result[static_cast<std::size_t>(i)] = both;
        if (earlier >= 0) result[static_cast<std::size_t>(earlier)] = both;
      }
    return result;
  }

  HostCommunicator::Group* group(const Collective& collective) {
    std::unique_ptr<HostCommunicator::Group>& slot = groups_[{collective.axes.mask, collective.stages}];
    if (!slot) slot = communicator_.group(plan_.mesh.group(communicator_.rank(), collective.axes, collective.stages));
    return slot.get();
  }

  // ---- Running ----

  // The caller's part of a program, and the other threads' beside it; after(place) of each instruction that ran here.
  template <typename After>
  void run_here(CpuProgram& program, const After& after) {
    begin(program);
    try {
      if (!run_list(program, kHere, after)) throw AbortedError("another thread of this rank failed");
      workers_[kHere].progress.stop();
    } catch (...) {
      abandon(std::current_exception());
    }
    end();
  }

  // A thread's part of a program; false: another thread has failed.
  template <typename After>
  bool run_list(CpuProgram& program, Thread thread, const After& after) {
    Worker& mine = workers_[thread];
    bool all = true;
    for_each_in_run(program.queues[thread].passes, [&](std::int32_t i, std::int32_t pass) {
      const Queued& one = program.queues[thread].list[static_cast<std::size_t>(i)];
      for (std::size_t other = 0; other < kNumThreads; ++other)
        if (one.after[other] >= 0)
          workers_[other].progress.wait(awaited(program.program().loops, one.after[other], one.index, pass));
      if (failed_.load(std::memory_order_acquire)) return all = false;
      const std::int32_t number = number_of(program.program(), {one.index, pass});
      run(program, one, pass, number, one.group != nullptr ? workers_[kCommunication].now : mine.now);
      after(Place{one.index, pass});
      mine.progress.advance(number);
      return true;
    });
    return all;
  }

  // Scratch memory starts as NaN, so that a read of what was never written shows.
  void poison() {
    if (!poison_) return;
    std::memset(memory_.at(role_.persistent_bytes), 0xFF,
                static_cast<std::size_t>(role_.total_bytes - role_.persistent_bytes));
  }

  void begin(CpuProgram& program) {
    started_ = Clock::now();
    running_.store(program.prepared.program, std::memory_order_relaxed);
    {
      const std::lock_guard lock(mutex_);
      current_ = &program;
      failure_ = nullptr;
      for (std::size_t thread = 0; thread < kNumThreads; ++thread) {
        workers_[thread].progress.reset();
        workers_[thread].has_work = thread != kHere && program.needs(thread);
      }
      if (!working()) return;
    }
    wake_.notify_all();
  }

  void end() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return !working(); });
    if (failure_) std::rethrow_exception(failure_);
  }

  // Whether a thread beside the caller's still works on the program. REQUIRES: mutex_ is held.
  bool working() const { return std::ranges::any_of(workers_, &Worker::has_work); }

  // This rank's own computation failed: no other rank may wait for it.
  [[noreturn]] void abandon(const std::exception_ptr& why) {
    std::string reason = "a rank failed";
    try {
      std::rethrow_exception(why);
    } catch (const std::exception& error) {
      reason = "rank " + std::to_string(communicator_.rank()) + ": " + error.what();
    }
    failed_.store(true, std::memory_order_release);
    communicator_.abort(reason);
    workers_[kHere].progress.stop();
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return !working(); });
    std::rethrow_exception(failure_ ? failure_ : why);
  }

  void work(Thread thread) {
    Worker& mine = workers_[thread];
    for (;;) {
      CpuProgram* program = nullptr;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stopping_ || mine.has_work; });
        if (stopping_) return;
        program = current_;
      }
      std::exception_ptr failure;
      try {
        run_list(*program, thread, [](const Place&) {});
      } catch (...) {
        failure = std::current_exception();
        failed_.store(true, std::memory_order_release);
        if (thread != kCommunication) end_others(failure);
      }
      mine.progress.stop();
      {
        const std::lock_guard lock(mutex_);
        if (failure && !failure_) failure_ = failure;
        mine.has_work = false;
      }
      wake_.notify_all();
    }
  }

  // A move failed: neither this rank's communication nor the other ranks know of it.
  void end_others(const std::exception_ptr& why) {
    try {
      std::rethrow_exception(why);
    } catch (const std::exception& error) {
      {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = why;
      }
      communicator_.abort("rank " + std::to_string(communicator_.rank()) + ": " + error.what());
    }
  }

  // One instruction; `number` of its place, which `now` holds meanwhile.
  void run(CpuProgram& program, const Queued& one, std::int32_t pass, std::int32_t number,
           std::atomic<std::int32_t>& now) {
    now.store(number, std::memory_order_release);
    const auto since = [&] {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - started_).count();
    };
    Span* const span = recording_ ? &program.times[static_cast<std::size_t>(number)] : nullptr;
    if (span != nullptr) span->begin_ns = since();
    program.prepared.enter(*one.prepared, pass);
    std::visit([&](const auto& instruction) { execute(program, one, pass, instruction); }, *one.prepared->instruction);
    if (span != nullptr) span->end_ns = since();
    now.store(-1, std::memory_order_relaxed);
  }

  // Of a rank that computes while it communicates, what it communicates: that is what others may hold up.
  std::string doing() const {
    const std::int32_t there = workers_[kCommunication].now.load(std::memory_order_acquire);
    const std::int32_t number = there >= 0 ? there : workers_[kHere].now.load(std::memory_order_acquire);
    const Program* const program = running_.load(std::memory_order_relaxed);
    if (program == nullptr || number < 0 || number >= program->length()) return "";
    return (there >= 0 ? "waits in " : "runs ") + text_of_place(role_, *program, number);
  }

  void execute(CpuProgram& program, const Queued& one, std::int32_t pass, const Launch&) {
    one.prepared->kernel->run(program.prepared.call(*one.prepared, pass));
  }

  void execute(CpuProgram& program, const Queued& one, std::int32_t, const Collective& collective) {
    void *const input = program.prepared.input(*one.prepared), *const output = program.prepared.output(*one.prepared);
    const std::int64_t elements = collective.input.region.bytes / size_of(collective.dtype);
    one.group->wait_awake(one.awaited);
    switch (collective.kind) {
      case CollectiveKind::all_reduce:
        return communicator_.all_reduce(*one.group, collective.dtype, output, elements);
      case CollectiveKind::reduce_scatter:
        return communicator_.reduce_scatter(*one.group, collective.dtype, input, output, elements);
      case CollectiveKind::all_gather:
        return communicator_.all_gather(*one.group, input, output, collective.input.region.bytes);
      case CollectiveKind::all_to_all:
        return communicator_.all_to_all(*one.group, input, output, one.prepared->slice_bytes);
      case CollectiveKind::shift:
        return communicator_.shift(*one.group, input, output, collective.input.region.bytes);
    }
  }

  void execute(CpuProgram& program, const Queued& one, std::int32_t, const Exchange&) {
    communicator_.exchange(program.prepared.sends(*one.prepared), program.prepared.receives(*one.prepared));
  }

  void execute(CpuProgram& program, const Queued& one, std::int32_t, const CopyIn& copy) {
    std::memcpy(program.prepared.output(*one.prepared), host(copy.field) + copy.field_offset,
                static_cast<std::size_t>(copy.region.region.bytes));
  }
  void execute(CpuProgram& program, const Queued& one, std::int32_t, const CopyOut& copy) {
    std::memcpy(host(copy.field) + copy.field_offset, program.prepared.input(*one.prepared),
                static_cast<std::size_t>(copy.region.region.bytes));
  }

  void execute(CpuProgram& program, const Queued& one, std::int32_t, const Move& move) {
    void* const here = program.prepared.output(*one.prepared);
    if (one.prepared->comes)
      file_->read(one.prepared->away, here, move.from.region.bytes);
    else
      file_->write(one.prepared->away, here, move.from.region.bytes);
  }

  std::byte* host(std::int32_t field) const {
    std::byte* data = fields_[static_cast<std::size_t>(field)];
    CHECK(data != nullptr,
          "field " + role_.fields[static_cast<std::size_t>(field)].name + " is bound before a program uses it");
    return data;
  }

  // ---- Looking at results ----

  std::optional<NonFinite> inspect(const Program& program, const Place& place) const {
    return inspect_results(role_, issued_at(role_, program, place), number_of(program, place),
                           [&](DType dtype, const Region& region) {
                             return first_non_finite(dtype, address(region), region.bytes / size_of(dtype));
                           });
  }

  const Plan& plan_;
  const Role& role_;
  const MeshPoint point_;
  HostCommunicator& communicator_;
  HostMemory memory_;
  std::optional<OffloadFile> file_;  // where the plan has bytes on disk
  std::vector<std::unique_ptr<kernels::Kernel>> kernels_;
  std::vector<std::byte*> fields_;
  std::vector<CpuProgram> programs_;
  std::map<std::pair<std::uint8_t, std::vector<std::int32_t>>, std::unique_ptr<HostCommunicator::Group>> groups_;
  bool recording_ = false;
  const bool poison_ = poison_scratch();
  Clock::time_point started_;

  std::atomic<const Program*> running_{nullptr};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  CpuProgram* current_ = nullptr;  // what the other threads work on
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::array<Worker, kNumThreads> workers_;
};

class CpuDevice final : public DeviceBackend {
 public:
  CpuDevice(int threads, std::string offload_dir)
      : context_{kernels::cpu::detect_isa(), threads}, offload_dir_(std::move(offload_dir)) {}
  std::string description() const override {
    return "cpu, " + std::string(kernels::cpu::name_of(context_.isa)) + ", " + std::to_string(context_.threads) +
           (context_.threads == 1 ? " thread" : " threads") + " a rank";
  }
  std::unique_ptr<Executor> load(const Plan& plan, int rank, Communicator& communicator) override {
    auto* const on_host = dynamic_cast<HostCommunicator*>(&communicator);
    CHECK(on_host != nullptr, "ranks on CPUs have a communicator on host memory");
    return std::make_unique<CpuExecutor>(plan, rank, *on_host, context_, offload_dir_);
  }

 private:
  kernels::cpu::Context context_;
  const std::string offload_dir_;
};

}  // namespace

PrepareOnHost host_kernels(int threads) {
  return [context = kernels::cpu::Context{kernels::cpu::detect_isa(), threads}](const Signature& signature) {
    return kernels::cpu::prepare(signature, context);
  };
}

std::unique_ptr<DeviceBackend> cpu_device(int threads, std::string offload_dir) {
  return std::make_unique<CpuDevice>(threads, std::move(offload_dir));
}

}  // namespace trainer
