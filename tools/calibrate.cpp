// trainer calibrate: measures this machine into a hardware file, from which plans are then predicted. Kernels are those
// that train, over sizes that plans have, with as many ranks at once as a node would run; collectives go between ranks
// as threads.
#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/cost/machine_model.h"
#include "engine/cost/work.h"
#include "engine/report/table.h"
#include "kernels/prepare.h"
#include "tools/calibrate/cases.h"
#include "tools/calibrate/collective_bench.h"
#include "tools/calibrate/disk_bench.h"
#include "tools/calibrate/hardware_text.h"
#include "tools/calibrate/kernel_bench.h"
#include "tools/calibrate/median.h"
#include "tools/calibrate/operands.h"
#include "tools/calibrate_gpu.h"
#include "tools/command.h"
#include "tools/machine.h"
#include "tools/progress_line.h"

namespace trainer::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string out;
  bool quick = false;
  bool json = false, verbose = false;
  std::string ranks = "1,2,4";
  std::string only;
  std::string disk = ".";
  std::string device = "cpu";
  std::vector<std::string> jobs;
};

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');)
    if (!word.empty()) words.push_back(word);
  return words;
}

std::vector<int> ranks_of(const std::string& list) {
  std::set<int> ranks;
  for (const std::string& word : words_of(list)) {
    char* end = nullptr;
    const long number = std::strtol(word.c_str(), &end, 10);
    if (*end != '\0' || number < 1 || number > 256)
      throw UsageError("--ranks " + list + ": numbers of ranks from 1 to 256, as in 1,2,4");
    ranks.insert(static_cast<int>(number));
  }
  if (ranks.empty()) throw UsageError("--ranks: needs at least one number of ranks");
  return {ranks.begin(), ranks.end()};
}

// ---- Measuring ----------------------------------------------------------------------------------------------------

const std::vector<std::string>& collective_names() {
  static const std::vector<std::string> names{"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send"};
  return names;
}

std::vector<std::int64_t> message_sizes(Effort effort) {
  constexpr std::int64_t kKiB = 1024, kMiB = 1024 * 1024;
  if (effort == Effort::quick) return {kKiB, 64 * kKiB, kMiB, 16 * kMiB};
  return {kKiB, 16 * kKiB, 128 * kKiB, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB};
}

class Calibration {
 public:
  explicit Calibration(const Options& options)
      : options_(options),
        effort_(options.quick ? Effort::quick : Effort::full),
        ranks_(ranks_of(options.ranks)),
        cores_(threads_per_rank(1)),
        job_cases_(kernels_of_jobs(options.jobs, words_of(options.only), Device::cpu)),
        cases_(with_job(calibration_cases(effort_, words_of(options.only)), job_cases_)),
        far_cases_(with_job(cases_from_memory(effort_, words_of(options.only)), far_of_jobs())),
        line_(static_cast<std::size_t>(passes()) *
              ((cases_.size() + far_cases_.size()) * contexts().size() +
               collective_names().size() * message_sizes(effort_).size() * (ranks_.size() - 1))) {}

  /// Kernels of jobs that could not be measured. REQUIRES: it ran.
  const std::set<std::string>& left_out() const { return left_out_; }

  cost::MachineModel run() {
    prioritized_ = take_priority();
    for (int pass = 0; pass < passes(); ++pass) {
      for (const auto& [ranks, threads] : contexts()) kernels(ranks, threads);
      for (int ranks : ranks_)
        if (ranks > 1) collectives(ranks);
    }
    take_best();
    describe();
    return std::move(machine_);
  }

 private:
  // Ranks and threads of each, where they have a core for every thread: what is more takes turns, which needs no
  // measuring.
  std::vector<std::pair<int, int>> contexts() const {
    std::vector<std::pair<int, int>> out;
    for (int ranks : ranks_)
      if (ranks <= cores_) out.emplace_back(ranks, threads_per_rank(ranks));
    if (out.empty()) out.emplace_back(1, cores_);
    return out;
  }

  // A machine that others share is slow for seconds at a time. So all is measured several times, far apart, and the
  // best of it counts: that is the machine itself.
  int passes() const { return effort_ == Effort::quick ? 1 : 2; }
  double budget_ms() const { return 4; }

  static std::vector<Signature> with_job(std::vector<Signature> cases, const std::vector<Signature>& of_jobs) {
    cases.insert(cases.end(), of_jobs.begin(), of_jobs.end());
    return cases;
  }

  // Of classes whose operands matter.
  std::vector<Signature> far_of_jobs() const {
    std::set<std::string_view> classes;
    for (const Signature& one : cases_from_memory(effort_, {})) classes.insert(cost::work_of(one).name);
    std::vector<Signature> far;
    std::ranges::copy_if(job_cases_, std::back_inserter(far),
                         [&](const Signature& one) { return classes.contains(cost::work_of(one).name); });
    return far;
  }

  // 0 us: it cannot be measured by itself.
  cost::Figure measured(KernelBench& bench, const Signature& signature, bool from_memory) {
    if (knows_contents(signature)) try {
        return bench.measure(signature, budget_ms(), from_memory);
      } catch (const DataError&) {  // nor with the contents that are known
      }
    left_out_.insert(kernels::describe(signature));
    return {};
  }

  void kernels(int ranks, int threads) {
    KernelBench bench(ranks, threads);
    for (bool from_memory : {false, true})
      for (const Signature& signature : from_memory ? far_cases_ : cases_) {
        const cost::Work work = cost::work_of(signature);
        const std::string name = std::string(work.name) + std::string(from_memory ? cost::kFromMemory : "");
        line_.next(fmt::format("{} × {} threads: {} {}", ranks, threads, name_of(work.dtype), name));
        const cost::Figure us = measured(bench, signature, from_memory);
        if (us.value > 0)
          works_[{name, work.dtype, threads, ranks, work.sizes}][cost::exact_name(signature)].push_back(
              {work.amount / us.value * 1e6, us.spread});
      }
  }

  void collectives(int ranks) {
    const int threads = threads_per_rank(ranks);
    for (const std::string& name : collective_names()) {
      if (name == "send" && ranks != 2) continue;
      for (std::int64_t bytes : message_sizes(effort_)) {
        line_.next(fmt::format("{} ranks: {} of {}", ranks, name, bytes_text(static_cast<double>(bytes))));
        collectives_[{name, ranks, bytes}].push_back(collective_time(name, ranks, threads, bytes, 2 * budget_ms()));
      }
    }
    slowdowns_.push_back(overlap_slowdown(ranks, threads, 10 * budget_ms()));
  }

  // The best of all passes; its spread, or how far the second best lies from it, whichever is more.
  static cost::Figure best_of(std::vector<cost::Figure> figures, bool largest) {
    std::sort(figures.begin(), figures.end(), [&](const cost::Figure& a, const cost::Figure& b) {
      return largest ? a.value > b.value : a.value < b.value;
    });
    cost::Figure best = figures.front();
    if (figures.size() > 1)
      best.spread = std::min(0.99, std::max(best.spread, std::abs(figures[1].value / best.value - 1)));
    return best;
  }

  void take_best() {
    // Kernels of a job may be of one class and size and differ in what these do not say: the slowest stands for them.
    for (const auto& [key, kernels] : works_) {
      const auto& [work, dtype, threads, ranks, sizes] = key;
      cost::Figure slowest;
      for (const auto& [name, figures] : kernels)
        if (const cost::Figure best = best_of(figures, true); slowest.value == 0 || best.value < slowest.value)
          slowest = best;
      machine_.device.measured.push_back({work, dtype, threads, ranks, sizes, slowest});
    }
    for (const auto& [key, figures] : collectives_) {
      const auto& [name, ranks, bytes] = key;
      machine_.collectives.push_back({name, "threads", ranks, bytes, best_of(figures, false)});
    }
    if (!slowdowns_.empty()) machine_.overlap_slowdown = median_of(slowdowns_).value;
  }

  // The best rate of a class, of all threads and ranks together.
  cost::Figure best(std::string_view work, DType dtype) const {
    cost::Figure figure;
    for (const cost::MeasuredWork& one : machine_.device.measured)
      if (one.work == work && one.dtype == dtype && one.rate.value * one.ranks > figure.value)
        figure = {one.rate.value * one.ranks, one.rate.spread};
    return figure;
  }

  // What a step reads again comes from caches as long as it is below this: of a processor's last level that others
  // share, as in a virtual machine, far less than it has, since what they read drives it out in the meantime. So there
  // is a rest between two reads. Half the way, by logarithms, from the speed of little that is read again at once to
  // that of a lot.
  std::int64_t cache() const {
    constexpr double kRestMs = 5;  // between two uses in a step of a small model
    constexpr std::int64_t kMiB = std::int64_t{1} << 20;
    const std::int64_t second_level = cores_ * std::max<std::int64_t>(0, ::sysconf(_SC_LEVEL2_CACHE_SIZE)),
                       least = std::max(8 * kMiB, 2 * second_level), most = std::max(256 * kMiB, 4 * least);
    KernelBench bench(1, cores_);
    const auto speed = [&](std::int64_t bytes, double rest_ms) {
      const TensorDesc x{DType::f32, {bytes / 4}};
      return static_cast<double>(bytes) /
             bench.measure({Op::sum_squares, {}, {x, {DType::f64, {1}}}}, 12, false, rest_ms).value;
    };
    const double middle = std::sqrt(speed(least, 0) * speed(most, 0));
    std::int64_t last = least / 2;
    for (std::int64_t bytes = least; bytes <= most && speed(bytes, kRestMs) >= middle; bytes += bytes / 2) last = bytes;
    return last;
  }

  cost::Figure memory_bandwidth() const {
    KernelBench bench(1, cores_);
    constexpr std::int64_t kElements = 16 << 20;
    const TensorDesc x{DType::f32, {kElements}};
    const cost::Figure us = bench.measure({Op::add, {}, {x, x, x}}, 40);
    return {3 * 4 * static_cast<double>(kElements) / us.value * 1e6, us.spread};
  }

  void describe() {
    cost::DeviceModel& device = machine_.device;
    device.kind = cost::DeviceKind::cpu;
    device.memory_bytes = memory_bytes();
    device.reserve_bytes = reserved_bytes();
    device.cache_bytes = cache();
    device.units = cores_;
    device.launch_us = launch_time();
    device.memory_bandwidth = memory_bandwidth();
    for (DType dtype : {DType::f32, DType::bf16}) {
      const cost::Figure peak = best("linear", dtype);
      if (peak.value > 0) device.peak[dtype] = peak;
    }
    if (!device.peak.contains(DType::f32)) device.peak[DType::f32] = {1e11, 0.9};
    device.achievable["matmul"] = {1, 0};
    device.achievable["memory"] = {1, 0};
    machine_.devices_per_node = 1;
    machine_.inside.kind = "memory";
    machine_.inside.bandwidth = device.memory_bandwidth;
    machine_.inside.latency_us = latency();
    machine_.inside.achievable = {1, 0};
    machine_.host_memory_bytes = device.memory_bytes;
    machine_.disk = disk_speed(options_.disk, effort_);
    machine_.measured_here = true;
    machine_.description = description();
  }

  cost::Figure latency() const {
    for (const cost::MeasuredCollective& one : machine_.collectives)
      if (one.collective == "all_reduce") return one.us;
    return {20, 0.5};
  }

  std::string description() const {
    std::ifstream file("/proc/cpuinfo"), load("/proc/loadavg");
    std::string processor = "a processor", averages;
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("model name")) processor = line.substr(std::min(line.size(), line.find(':') + 2));
    std::getline(load, averages);
    const std::time_t now = std::time(nullptr);
    return fmt::format(
        "{}, {} cores, {}; {:%Y-%m-%d}, load averages {}{}{}", processor, cores_, name_of(kernels::cpu::detect_isa()),
        fmt::gmtime(now),
        averages.substr(
            0, averages.find('/') == std::string::npos ? averages.size() : averages.rfind(' ', averages.find('/'))),
        prioritized_ ? "" : ", without real-time priority", options_.quick ? ", quick" : "");
  }

  const Options& options_;
  const Effort effort_;
  const std::vector<int> ranks_;
  const int cores_;
  const std::vector<Signature> job_cases_, cases_, far_cases_;
  ProgressLine line_;
  bool prioritized_ = false;
  std::set<std::string> left_out_;
  std::map<std::tuple<std::string, DType, int, int, std::vector<std::int64_t>>,
           std::map<std::string, std::vector<cost::Figure>>>
      works_;                                                                                    // rates, by pass
  std::map<std::tuple<std::string, int, std::int64_t>, std::vector<cost::Figure>> collectives_;  // us, by pass
  std::vector<double> slowdowns_;
  cost::MachineModel machine_;
};

// ---- What is said of it -------------------------------------------------------------------------------------------

struct Summary {
  double best = 0, least = 1e300, spread = 0;
  int points = 0;
};

std::map<std::tuple<std::string, DType, int>, Summary> summaries(const cost::MachineModel& machine) {
  std::map<std::tuple<std::string, DType, int>, Summary> out;
  for (const cost::MeasuredWork& one : machine.device.measured) {
    Summary& summary = out[{one.work, one.dtype, one.ranks}];
    summary.best = std::max(summary.best, one.rate.value);
    summary.least = std::min(summary.least, one.rate.value);
    summary.spread += one.rate.spread;
    ++summary.points;
  }
  return out;
}

// What shows that other programs had the cores while this one measured.
std::vector<std::string> doubts(const cost::MachineModel& machine) {
  constexpr double kWide = 0.25;
  std::vector<std::string> found;
  double spread = 0;
  for (const cost::MeasuredWork& one : machine.device.measured)
    spread += one.rate.spread / static_cast<double>(machine.device.measured.size());
  if (spread > kWide) found.push_back(fmt::format("repeated measurements differ by {:.0f}% on average", 100 * spread));
  if (!found.empty())
    found.emplace_back("other programs seem to have used the processor: measure again when it is idle");
  return found;
}

Json json_of(const cost::MachineModel& machine, const std::string& path, double seconds) {
  Json works = Json::array(), collectives = Json::array();
  for (const auto& [key, summary] : summaries(machine))
    works.push_back({{"work", std::get<0>(key)},
                     {"dtype", name_of(std::get<1>(key))},
                     {"ranks", std::get<2>(key)},
                     {"points", summary.points},
                     {"best_rate", summary.best},
                     {"least_rate", summary.least},
                     {"spread", summary.spread / summary.points}});
  for (const cost::MeasuredCollective& one : machine.collectives)
    collectives.push_back({{"collective", one.collective},
                           {"ranks", one.ranks},
                           {"bytes", one.bytes},
                           {"us", one.us.value},
                           {"spread", one.us.spread}});
  return {{"file", path},
          {"description", machine.description},
          {"seconds", seconds},
          {"memory_bandwidth", machine.device.memory_bandwidth.value},
          {"launch_us", machine.device.launch_us.value},
          {"disk", {{"read", machine.disk->read.value}, {"write", machine.disk->write.value}}},
          {"overlap_slowdown", machine.overlap_slowdown},
          {"warnings", doubts(machine)},
          {"works", works},
          {"collectives", collectives}};
}

std::string rate_text(const std::string& work, const Summary& summary) {
  return fmt::format("{:.1f} to {:.1f} {}", summary.least * 1e-9, summary.best * 1e-9,
                     cost::counts_flops(work) ? "GFLOP/s" : "GB/s");
}

void put_all(const cost::MachineModel& machine) {
  report::Table works({"work", "dtype", "ranks", "points", "rate of a rank", "spread"});
  for (const auto& [key, summary] : summaries(machine)) {
    const auto& [work, dtype, ranks] = key;
    works.add({work, std::string(name_of(dtype)), std::to_string(ranks), std::to_string(summary.points),
               rate_text(work, summary), fmt::format("±{:.1f}%", 100 * summary.spread / summary.points)});
  }
  put("\n{}", works.str());
  if (machine.collectives.empty()) return;
  report::Table times({"collective", "ranks", "bytes", "us", "spread"});
  for (const cost::MeasuredCollective& one : machine.collectives)
    times.add({one.collective, std::to_string(one.ranks), bytes_text(static_cast<double>(one.bytes)),
               fmt::format("{:.1f}", one.us.value), fmt::format("±{:.0f}%", 100 * one.us.spread)});
  put("\n{}", times.str());
}

// What most of a step is: products and attention of one rank with all cores. The rest is in the file.
void put_summary(const cost::MachineModel& machine) {
  report::Table works({"work", "dtype", "rate", "spread"});
  std::size_t left_out = 0;
  for (const auto& [key, summary] : summaries(machine)) {
    const auto& [work, dtype, ranks] = key;
    if (ranks == 1 && (work == "linear" || work == "attention"))
      works.add({work, std::string(name_of(dtype)), rate_text(work, summary),
                 fmt::format("±{:.1f}%", 100 * summary.spread / summary.points)});
    else
      ++left_out;
  }
  put("{}  and {} more classes of work, {} times of collectives: --verbose shows them\n", works.str(), left_out,
      machine.collectives.size());
}

void put_text(const cost::MachineModel& machine, const Options& options, const std::string& path, double seconds) {
  put("{}\n", machine.description);
  put("memory: {:.1f} GB/s; from one instruction to the next: {:.2f} us; beside communication kernels take {:.2f} "
      "times as long\n",
      machine.device.memory_bandwidth.value * 1e-9, machine.device.launch_us.value, machine.overlap_slowdown);
  put("disk at {}: reads {:.2f} GB/s, writes {:.2f} GB/s\n", options.disk, machine.disk->read.value * 1e-9,
      machine.disk->write.value * 1e-9);
  if (options.verbose)
    put_all(machine);
  else
    put_summary(machine);
  put("\nmeasured in {:.0f} s and written to {}\n", seconds, path);
}

int calibrate(const Options& options) {
  if (options.device == "cuda") {
    if (options.quick || options.ranks != Options().ranks || options.disk != Options().disk || options.verbose)
      throw UsageError("--quick, --ranks, --disk and --verbose are of --device cpu");
    return calibrate_gpu({options.out, options.jobs, words_of(options.only), options.json});
  }
  const std::string path = options.out.empty() ? default_hardware_file() : options.out;
  const Clock::time_point start = Clock::now();
  Calibration calibration(options);
  const cost::MachineModel machine = calibration.run();
  write_hardware_file(path, hardware_text(machine));
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (options.json)
    put_document(json_of(machine, path, seconds));
  else
    put_text(machine, options, path, seconds);
  for (const std::string& one : calibration.left_out())
    say("trainer: warning: not measured, since its time depends on ids that only a run has: {}\n", one);
  for (const std::string& doubt : doubts(machine)) say("trainer: warning: {}\n", doubt);
  return kDone;
}

}  // namespace

void add_calibrate(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("calibrate", "measures this machine into a hardware file, for predictions");
  auto options = std::make_shared<Options>();
  command->add_option(
      "--out", options->out,
      "the file (~/.config/trainer/hardware.yaml, which jobs on this machine take); --device cuda has no default");
  command->add_flag("--quick", options->quick, "coarser grids: half a minute in place of a few");
  command->add_option("--ranks", options->ranks, "numbers of ranks that share the machine (1,2,4)");
  command->add_option(
      "--only", options->only,
      "classes of work by how their names begin, as in linear,attention; the file then has these alone");
  command
      ->add_option("--job", options->jobs,
                   "a job whose kernels are measured as well, in its sizes; may be given several times")
      ->one_value();
  command->add_option("--device", options->device, "what is measured (cpu): the processor, or cuda: a GPU")
      ->one_of({"cpu", "cuda"});
  command->add_option("--disk", options->disk, "a folder on the disk that offload will use (the working directory)");
  command->add_flag("--verbose", options->verbose, "shows every class of work and every collective that was measured");
  command->add_flag("--json", options->json, "makes stdout one JSON document");
  command->footer(
      "Examples:\n"
      "  trainer calibrate\n"
      "  trainer calibrate --quick --ranks 1,2 --out this.yaml\n"
      "  trainer calibrate --device cuda --job job.yaml --out my-h100.yaml    # then cluster.hardware: my-h100.yaml\n"
      "\n"
      "Of a GPU only the kernels of jobs are measured, on the first that CUDA shows, however many the jobs are for.\n"
      "Other programs disturb what is measured; allowed to, it takes real-time priority.\n");
  command->callback([options, &work] { work = [options] { return calibrate(*options); }; });
}

}  // namespace trainer::tools
