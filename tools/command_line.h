// The command line: subcommands, their options and their help. It is CLI11 behind a few functions, because CLI11 is one
// large header: command_line.cpp is the only file that includes it.
//
// Pointers that these functions return belong to the CommandLine and live as long as it does. Variables that options
// are bound to have to outlive parse().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace trainer::tools {

/// A subcommand's work, done once the whole command line is read. Returns the exit code.
using Work = std::function<int()>;

/// An option, a flag (`--name`) or a positional argument (`NAME`). Each function returns the option itself.
class Option {
 public:
  Option* required();
  Option* description(const std::string& text);
  /// What help shows for the value; "" for nothing.
  Option* type_name(const std::string& name);
  /// Help shows the variable's value as the default.
  Option* capture_default_str();
  Option* excludes(const Option* other);
  /// A list takes one value each time the option is given, so that what follows can be an argument.
  Option* one_value();
  Option* within(double least, double most);
  Option* at_least(double least);
  Option* one_of(const std::vector<std::string>& words);

 private:
  friend class Subcommand;
  explicit Option(CLI::Option* option) : option_(option) {}
  CLI::Option* option_;
};

class Subcommand {
 public:
  Option* add_option(const std::string& name, std::string& variable, const std::string& help);
  Option* add_option(const std::string& name, std::vector<std::string>& variable, const std::string& help);
  Option* add_option(const std::string& name, std::int64_t& variable, const std::string& help);
  Option* add_option(const std::string& name, std::uint64_t& variable, const std::string& help);
  Option* add_option(const std::string& name, double& variable, const std::string& help);
  Option* add_flag(const std::string& name, bool& variable, const std::string& help);
  /// The option of that name, which was added before.
  Option* get_option(const std::string& name);
  /// Examples and details, shown below the options.
  void footer(const std::string& text);
  /// Called where the command line names this subcommand.
  void callback(std::function<void()> function);

 private:
  friend class CommandLine;
  explicit Subcommand(CLI::App* app) : app_(app) {}
  Option* keep(CLI::Option* option);
  CLI::App* app_;
  std::vector<std::unique_ptr<Option>> options_;
};

class CommandLine {
 public:
  CommandLine(const std::string& description, const std::string& name, const std::string& version);
  ~CommandLine();
  Subcommand* add_subcommand(const std::string& name, const std::string& description);
  void footer(const std::string& text);
  std::vector<std::string> subcommands() const;

  struct Outcome {
    enum class Kind : std::uint8_t { run, shown, mistake } kind;  ///< shown: help or version, on stdout
    std::string subcommand;                                       ///< of a mistake: where it was made; empty: in none
    std::string message;
  };
  /// Calls the callback of the subcommand that was named.
  Outcome parse(int argc, char** argv);

 private:
  struct Apps;
  std::unique_ptr<Apps> apps_;
};

}  // namespace trainer::tools
