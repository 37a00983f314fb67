// The CPU as a device. The compute and copy streams are the thread that calls run(), whose kernels fork a team of threads;
// the communication stream is a thread of its own, so that collectives go on during computation. Each works through
// its own list in issue order and waits for the other by Progress.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "engine/core/check.h"
#include "engine/core/environment.h"
#include "engine/core/error.h"
#include "engine/run/executor.h"
#include "engine/run/progress.h"
#include "kernels/cpu/table.h"

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;

// One anonymous mapping, in huge pages where the system has them: a step walks over gigabytes.
class Memory {
 public:
  explicit Memory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw IoError("cannot allocate the plan's " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
    madvise(data_, bytes_, MADV_HUGEPAGE);
  }
  ~Memory() { munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* at(std::int64_t offset) const { return static_cast<std::byte*>(data_) + offset; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(bytes_); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// An instruction with every look-up done. `index` is its place in issue order, `after` the instruction of the other
// thread that it waits for.
struct Prepared {
  std::int32_t index = 0;
  std::int32_t after = -1;
  kernels::Kernel* kernel = nullptr;
  std::uint32_t first_operand = 0, num_operands = 0;  // in the program's operands, or parts of an exchange
  void* workspace = nullptr;
  std::int64_t origin = 0;
  std::int64_t slice_bytes = 0;  // of an all_to_all
  const Instruction* instruction = nullptr;
  Communicator::Group* group = nullptr;
  bool there = false;  // of the communication thread
};

struct PreparedProgram {
  const Program* program = nullptr;
  std::vector<Prepared> here;   // compute and copy
  std::vector<Prepared> there;  // communication
  std::vector<void*> operands;
  std::vector<Communicator::Part> parts;  // of exchanges: sends, then receives
  std::vector<Span> times;
};

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(const Plan& plan, int rank, Communicator& communicator, const kernels::cpu::Context& context)
      : plan_(plan), role_(plan.role_of(rank)), coordinates_(plan.mesh.coordinates(rank)), communicator_(communicator), memory_(role_.total_bytes) {
    for (const Signature& signature : role_.signatures) kernels_.push_back(kernels::cpu::prepare(signature, context));
    fields_.resize(role_.fields.size());
    for (const Program& program : role_.programs) programs_.push_back(prepare(program));
    if (std::any_of(programs_.begin(), programs_.end(), [](const PreparedProgram& program) { return !program.there.empty(); }))
      communication_ = std::thread([this] { communicate(); });
    communicator_.describe_by([this] { return doing(); });
  }

  ~CpuExecutor() override {
    communicator_.describe_by({});
    if (!communication_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    communication_.join();
  }

  void bind(std::int32_t field, void* data) override { fields_.at(static_cast<std::size_t>(field)) = static_cast<std::byte*>(data); }

  void run(std::int32_t index) override {
    PreparedProgram& program = programs_.at(static_cast<std::size_t>(index));
    poison();
    start(program);
    try {
      for (const Prepared& one : program.here) {
        if (one.after >= 0) wait_there(one.after);
        timed(program, one, [&] { execute(program, one); });
        here_.advance(one.index);
      }
      here_.stop();
    } catch (...) {
      abandon(std::current_exception());
    }
    finish(program);
  }

  std::optional<NonFinite> find_non_finite(std::int32_t index) override {
    PreparedProgram& program = programs_.at(static_cast<std::size_t>(index));
    std::optional<NonFinite> found;
    start(program);
    try {
      for (const Prepared& one : program.here) {
        if (one.after >= 0) wait_there(one.after);
        execute(program, one);
        if (!found && one.kernel != nullptr) found = inspect(one);
        here_.advance(one.index);
      }
      here_.stop();
    } catch (...) {
      abandon(std::current_exception());
    }
    finish(program);
    return found;
  }

  void write(const Region& region, const void* data) override { std::memcpy(address(region), data, static_cast<std::size_t>(region.bytes)); }
  void read(const Region& region, void* data) const override { std::memcpy(data, address(region), static_cast<std::size_t>(region.bytes)); }
  void record_times(bool on) override { recording_ = on; }
  std::span<const Span> times(std::int32_t index) const override { return programs_.at(static_cast<std::size_t>(index)).times; }
  std::int64_t allocated_bytes() const override { return memory_.bytes(); }
  const Role& role() const override { return role_; }

 private:
  // ---- Preparation ----

  std::byte* address(const Region& region) const { return memory_.at(role_.address(region, coordinates_[static_cast<std::size_t>(Axis::shard)])); }

  PreparedProgram prepare(const Program& program) {
    PreparedProgram result;
    result.program = &program;
    result.times.resize(program.instructions.size());
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const Issued& issued = program.instructions[i];
      Prepared one;
      one.index = static_cast<std::int32_t>(i);
      one.instruction = &issued.instruction;
      CHECK(issued.stream != Stream::background && issued.stream != Stream::tensor, "a plan for a CPU has one stream of communication");
      const bool there = issued.stream == Stream::communication;
      for (std::size_t s = 0; s < kNumStreams; ++s)
        if ((static_cast<Stream>(s) == Stream::communication) != there) one.after = std::max(one.after, issued.after[s]);
      if (const auto* launch = std::get_if<Launch>(&issued.instruction)) {
        one.kernel = kernels_[static_cast<std::size_t>(launch->signature)].get();
        one.first_operand = static_cast<std::uint32_t>(result.operands.size());
        one.num_operands = static_cast<std::uint32_t>(launch->operands.size());
        for (const Operand& operand : launch->operands) result.operands.push_back(address(region_of(operand)));
        if (launch->workspace.region.bytes > 0) one.workspace = address(launch->workspace.region);
        one.origin = launch->origin.at(coordinates_);
      }
      if (const auto* collective = std::get_if<Collective>(&issued.instruction)) {
        one.group = group(*collective);
        const auto members = plan_.mesh.group(communicator_.rank(), collective->axes, collective->stages).size();
        one.slice_bytes = collective->input.region.bytes / static_cast<std::int64_t>(members);
      }
      if (const auto* exchange = std::get_if<Exchange>(&issued.instruction)) {
        one.first_operand = static_cast<std::uint32_t>(result.parts.size());
        for (const auto& send : exchange->sends) result.parts.push_back({peer(send.axis, send.peer), address(send.region.region), send.region.region.bytes});
        for (const auto& receive : exchange->receives) result.parts.push_back({peer(receive.axis, receive.peer), address(receive.region.region), receive.region.region.bytes});
        one.num_operands = static_cast<std::uint32_t>(result.parts.size()) - one.first_operand;
      }
      one.there = there;
      (there ? result.there : result.here).push_back(one);
    }
    return result;
  }

  int peer(Axis axis, std::int32_t distance) const {
    Coordinates at = coordinates_;
    at[static_cast<std::size_t>(axis)] += distance;
    return plan_.mesh.rank(at);
  }

  Communicator::Group* group(const Collective& collective) {
    std::unique_ptr<Communicator::Group>& slot = groups_[{collective.axes.mask, collective.stages}];
    if (!slot) slot = communicator_.group(plan_.mesh.group(communicator_.rank(), collective.axes, collective.stages));
    return slot.get();
  }

  // ---- Running ----

  // Scratch memory starts as NaN, so that a read of what was never written shows.
  void poison() {
    if (!poison_) return;
    std::memset(memory_.at(role_.persistent_bytes), 0xFF, static_cast<std::size_t>(role_.total_bytes - role_.persistent_bytes));
  }

  void start(PreparedProgram& program) {
    started_ = Clock::now();
    running_.store(program.program, std::memory_order_relaxed);
    if (program.there.empty()) return;
    here_.reset();
    there_.reset();
    {
      const std::lock_guard lock(mutex_);
      current_ = &program;
      failure_ = nullptr;
    }
    wake_.notify_all();
  }

  void finish(const PreparedProgram& program) {
    if (program.there.empty()) return;
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return current_ == nullptr; });
    if (failure_) std::rethrow_exception(failure_);
  }

  void wait_there(std::int32_t index) {
    there_.wait(index);
    if (failed_.load(std::memory_order_acquire)) throw AbortedError("this rank's communication failed");
  }

  // This rank's own computation failed: let nobody wait for it.
  [[noreturn]] void abandon(const std::exception_ptr& why) {
    std::string reason = "a rank failed";
    try {
      std::rethrow_exception(why);
    } catch (const std::exception& error) {
      reason = "rank " + std::to_string(communicator_.rank()) + ": " + error.what();
    }
    failed_.store(true, std::memory_order_release);
    communicator_.abort(reason);
    here_.stop();
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return current_ == nullptr; });
    std::rethrow_exception(failure_ ? failure_ : why);
  }

  void communicate() {
    for (;;) {
      PreparedProgram* program = nullptr;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stopping_ || current_ != nullptr; });
        if (stopping_) return;
        program = current_;
      }
      std::exception_ptr failure;
      try {
        for (const Prepared& one : program->there) {
          if (one.after >= 0) here_.wait(one.after);
          if (failed_.load(std::memory_order_acquire)) break;
          timed(*program, one, [&] { execute(*program, one); });
          there_.advance(one.index);
        }
      } catch (...) {
        failure = std::current_exception();
        failed_.store(true, std::memory_order_release);
      }
      there_.stop();
      {
        const std::lock_guard lock(mutex_);
        if (failure) failure_ = failure;
        current_ = nullptr;
      }
      wake_.notify_all();
    }
  }

  template <typename Run>
  void timed(PreparedProgram& program, const Prepared& one, Run&& execute_one) {
    if (!recording_) return execute_one();
    const auto since = [&] { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - started_).count(); };
    Span& span = program.times[static_cast<std::size_t>(one.index)];
    span.begin_ns = since();
    execute_one();
    span.end_ns = since();
  }

  void execute(PreparedProgram& program, const Prepared& one) {
    std::atomic<const Prepared*>& now = one.there ? now_there_ : now_here_;
    now.store(&one, std::memory_order_release);
    if (one.kernel != nullptr)
      one.kernel->run({{program.operands.data() + one.first_operand, one.num_operands}, one.workspace, one.origin});
    else
      std::visit([&](const auto& instruction) { execute(program, one, instruction); }, *one.instruction);
    now.store(nullptr, std::memory_order_relaxed);
  }

  // Of a rank that computes while it communicates, what it communicates: that is what others may hold up.
  std::string doing() const {
    const Program* const program = running_.load(std::memory_order_relaxed);
    const Prepared* const there = now_there_.load(std::memory_order_acquire);
    const Prepared* const one = there != nullptr ? there : now_here_.load(std::memory_order_acquire);
    if (program == nullptr || one == nullptr) return "";
    return (there != nullptr ? "waits in " : "runs ") + print(role_, *one->instruction) + " (instruction #" + std::to_string(one->index) + " of " + program->name + ")";
  }

  void execute(PreparedProgram&, const Prepared&, const Launch&) { CHECK(false, "a launch has a kernel"); }

  void execute(PreparedProgram&, const Prepared& one, const Collective& collective) {
    std::byte* const input = address(collective.input.region);
    std::byte* const output = address(collective.output.region);
    const std::int64_t elements = collective.input.region.bytes / size_of(collective.dtype);
    switch (collective.kind) {
      case CollectiveKind::all_reduce: return communicator_.all_reduce(*one.group, collective.dtype, output, elements);
      case CollectiveKind::reduce_scatter: return communicator_.reduce_scatter(*one.group, collective.dtype, input, output, elements);
      case CollectiveKind::all_gather: return communicator_.all_gather(*one.group, input, output, collective.input.region.bytes);
      case CollectiveKind::all_to_all: return communicator_.all_to_all(*one.group, input, output, one.slice_bytes);
      case CollectiveKind::broadcast: return communicator_.broadcast(*one.group, output, collective.output.region.bytes);
    }
  }

  void execute(PreparedProgram& program, const Prepared& one, const Exchange& exchange) {
    const std::span<const Communicator::Part> parts(program.parts.data() + one.first_operand, one.num_operands);
    communicator_.exchange(parts.first(exchange.sends.size()), parts.subspan(exchange.sends.size()));
  }

  void execute(PreparedProgram&, const Prepared&, const CopyIn& copy) {
    std::memcpy(address(copy.region.region), host(copy.field) + copy.field_offset, static_cast<std::size_t>(copy.region.region.bytes));
  }
  void execute(PreparedProgram&, const Prepared&, const CopyOut& copy) {
    std::memcpy(host(copy.field) + copy.field_offset, address(copy.region.region), static_cast<std::size_t>(copy.region.region.bytes));
  }

  std::byte* host(std::int32_t field) const {
    std::byte* data = fields_[static_cast<std::size_t>(field)];
    CHECK(data != nullptr, "field " + role_.fields[static_cast<std::size_t>(field)].name + " is bound before a program uses it");
    return data;
  }

  // ---- Looking at results ----

  std::optional<NonFinite> inspect(const Prepared& one) const {
    const Launch& launch = std::get<Launch>(*one.instruction);
    const Signature& signature = role_.signatures[static_cast<std::size_t>(launch.signature)];
    for (std::size_t i = 0; i < launch.operands.size(); ++i) {
      const TensorDesc& tensor = signature.operands[i];
      if (access_of(launch.operands[i]) == Access::read || tensor.layout != Layout::row_major) continue;
      const Region& region = region_of(launch.operands[i]);
      const std::int64_t element = first_non_finite(tensor, address(region));
      if (element >= 0) return NonFinite{role_.name(launch.name), role_.name(role_.buffer(region.buffer).name), element, launch.micro_batch, one.index};
    }
    return std::nullopt;
  }

  // An exponent of all ones: infinity or NaN, in any of our float formats.
  static std::int64_t first_non_finite(const TensorDesc& tensor, const std::byte* data) {
    const std::int64_t elements = tensor.elements();
    const auto search = [&](auto word, auto exponent) -> std::int64_t {
      using Word = decltype(word);
      const Word* words = reinterpret_cast<const Word*>(data);
      for (std::int64_t i = 0; i < elements; ++i)
        if ((words[i] & exponent) == exponent) return i;
      return -1;
    };
    switch (tensor.dtype) {
      case DType::f64: return search(std::uint64_t{}, std::uint64_t{0x7FF0000000000000u});
      case DType::f32: return search(std::uint32_t{}, std::uint32_t{0x7F800000u});
      case DType::bf16: return search(std::uint16_t{}, std::uint16_t{0x7F80u});
      case DType::f16: return search(std::uint16_t{}, std::uint16_t{0x7C00u});
      case DType::i32:
      case DType::u8: return -1;
    }
    return -1;
  }

  const Plan& plan_;
  const Role& role_;
  const Coordinates coordinates_;
  Communicator& communicator_;
  Memory memory_;
  std::vector<std::unique_ptr<kernels::Kernel>> kernels_;
  std::vector<std::byte*> fields_;
  std::vector<PreparedProgram> programs_;
  std::map<std::pair<std::uint8_t, std::vector<std::int32_t>>, std::unique_ptr<Communicator::Group>> groups_;
  bool recording_ = false;
#ifdef NDEBUG
  static constexpr const char* kPoisonDefault = "0";
#else
  static constexpr const char* kPoisonDefault = "1";
#endif
  const bool poison_ = environment::value_of(environment::kPoison).value_or(kPoisonDefault) == "1";
  Clock::time_point started_;

  std::atomic<const Program*> running_{nullptr};
  std::atomic<const Prepared*> now_here_{nullptr}, now_there_{nullptr};  // what doing() tells of
  Progress here_, there_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  PreparedProgram* current_ = nullptr;  // what the communication thread works on
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::thread communication_;
};

class CpuDevice final : public DeviceBackend {
 public:
  explicit CpuDevice(int threads) : context_{kernels::cpu::detect_isa(), threads} {}
  std::string description() const override {
    return "cpu, " + std::string(kernels::cpu::name_of(context_.isa)) + ", " + std::to_string(context_.threads) + (context_.threads == 1 ? " thread" : " threads") + " a rank";
  }
  std::unique_ptr<Executor> load(const Plan& plan, int rank, Communicator& communicator) override {
    return std::make_unique<CpuExecutor>(plan, rank, communicator, context_);
  }

 private:
  kernels::cpu::Context context_;
};

}  // namespace

std::unique_ptr<DeviceBackend> cpu_device(int threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace trainer
