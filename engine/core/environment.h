// Every environment switch of the program, in one list. Nothing else reads the environment for settings of its own;
// what a launcher sets (RANK, WORLD_SIZE …) is read where launchers are told apart.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainer::environment {

struct Switch {
  const char* name;
  std::string_view meaning;
  bool secret = false;  ///< not to be printed
};

inline constexpr Switch kIsa{"TRAINER_ISA",
                             "lowers the instruction set of CPU kernels: portable, avx2, avx512, avx512_bf16 or amx"};

inline constexpr Switch kPoison{"TRAINER_POISON",
                                "1 fills scratch memory with NaN before every program, so that a read of what was "
                                "never written shows (the default of debug builds)"};

inline constexpr Switch kThreads{
    "TRAINER_THREADS", "threads of this machine that the ranks share, in place of the number of cores (1 to 4096)"};

inline constexpr Switch kSilent{
    "TRAINER_SILENT_S",
    "seconds after which a rank in another process that sends no heartbeat counts as lost, in place of 8 (2 to 86400)"};

inline constexpr Switch kToken{
    "TRAINER_TOKEN", "a secret that processes of a job must share to meet each other, at most 64 bytes", true};

inline constexpr Switch kPort{"TRAINER_PORT",
                              "port at MASTER_ADDR where the processes of a job meet, in place of MASTER_PORT (or the "
                              "one above it under torchrun)"};

inline constexpr Switch kRendezvous{"TRAINER_RENDEZVOUS_S",
                                    "seconds in which all processes of a job must have met, in place of 300"};

inline constexpr Switch kShareGpu{"TRAINER_SHARE_GPU",
                                  "1 lets several ranks share a GPU, for tests: each needs an NCCL_HOSTID of its own"};

inline constexpr Switch kCudaGraph{"TRAINER_CUDA_GRAPH",
                                   "0 issues every program to the GPU instruction by instruction, in place of "
                                   "capturing it as a graph and replaying that"};

inline constexpr Switch kCudaTune{
    "TRAINER_CUDA_TUNE",
    "0 takes the library's first algorithm for each matrix product on a GPU. Otherwise the "
    "first run on a machine times several, and what the library joins to a product against "
    "passes of its own, and keeps the fastest in the cache; 1 does so without a cache too"};

inline constexpr Switch kStarted{"TRAINER_STARTED",
                                 "set by trainer run for the ranks that it starts itself, one for each GPU"};

inline constexpr Switch kCudnn{"TRAINER_CUDNN", "0 keeps attention on the own kernels for GPUs, in place of cuDNN's"};

inline constexpr Switch kCache{"TRAINER_CACHE",
                               "folder of the cache of tokenized text and of what was timed on GPUs, in place of "
                               "$XDG_CACHE_HOME/trainer or ~/.cache/trainer; off holds token ids in memory"};

inline constexpr std::array kSwitches{kCache,  kCudaGraph, kCudnn, kCudaTune,   kIsa,      kPoison, kThreads,
                                      kSilent, kToken,     kPort,  kRendezvous, kShareGpu, kStarted};

/// The value of a switch, or nothing where it is unset or empty.
std::optional<std::string> value_of(const Switch& which);
/// The folder of the cache: as kCache says. Empty: there is none, for it is off, or there is no home folder.
std::string cache_folder();
/// A switch, or another variable, as a number. Throws UsageError, which names it, where `text` is not a number from
/// `least` to `most`.
std::int64_t whole_number(const char* variable, const std::string& text, std::int64_t least, std::int64_t most);
double number(const char* variable, const std::string& text, double least, double most);

}  // namespace trainer::environment
