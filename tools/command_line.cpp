// Each function passes its arguments to CLI11.
#include "tools/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/job/nearest.h"

namespace trainer::tools {
Option* Option::required() {
  option_->required();
  return this;
}

Option* Option::description(const std::string& text) {
  option_->description(text);
  return this;
}

Option* Option::type_name(const std::string& name) {
  option_->type_name(name);
  return this;
}

Option* Option::capture_default_str() {
  option_->capture_default_str();
  return this;
}

Option* Option::excludes(const Option* other) {
  option_->excludes(other->option_);
  return this;
}

Option* Option::one_value() {
  option_->allow_extra_args(false);
  return this;
}

Option* Option::within(double least, double most) {
  const CLI::Validator check(
      [least, most](const std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return std::string();
        return fmt::format("\"{}\" is not a number from {} to {}", text, least, most);
      },
      "");
  option_->check(check);
  return this;
}

Option* Option::at_least(double least) {
  const CLI::Validator check(
      [least](const std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= least) return std::string();
        return fmt::format("\"{}\" is not a number of at least {}", text, least);
      },
      "");
  option_->check(check);
  return this;
}

Option* Option::one_of(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
  return this;
}

Option* Subcommand::keep(CLI::Option* option) {
  return options_.emplace_back(std::unique_ptr<Option>(new Option(option))).get();
}

Option* Subcommand::add_option(const std::string& name, std::string& variable, const std::string& help) {
  return keep(app_->add_option(name, variable, help));
}

Option* Subcommand::add_option(const std::string& name, std::vector<std::string>& variable, const std::string& help) {
  return keep(app_->add_option(name, variable, help));
}

Option* Subcommand::add_option(const std::string& name, std::int64_t& variable, const std::string& help) {
  return keep(app_->add_option(name, variable, help));
}

Option* Subcommand::add_option(const std::string& name, std::uint64_t& variable, const std::string& help) {
  return keep(app_->add_option(name, variable, help));
}

Option* Subcommand::add_option(const std::string& name, double& variable, const std::string& help) {
  return keep(app_->add_option(name, variable, help));
}

Option* Subcommand::add_flag(const std::string& name, bool& variable, const std::string& help) {
  return keep(app_->add_flag(name, variable, help));
}

Option* Subcommand::get_option(const std::string& name) { return keep(app_->get_option(name)); }

void Subcommand::footer(const std::string& text) { app_->footer(text); }

void Subcommand::callback(std::function<void()> function) { app_->callback(std::move(function)); }

struct CommandLine::Apps {
  Apps(const std::string& description, const std::string& name) : app(description, name) {}

  CLI::App app;
  std::vector<std::unique_ptr<Subcommand>> subcommands;
};

CommandLine::CommandLine(const std::string& description, const std::string& name, const std::string& version)
    : apps_(std::make_unique<Apps>(description, name)) {
  apps_->app.set_version_flag("--version", version);
  apps_->app.require_subcommand(1);
}

CommandLine::~CommandLine() = default;

Subcommand* CommandLine::add_subcommand(const std::string& name, const std::string& description) {
  CLI::App* app = apps_->app.add_subcommand(name, description);
  return apps_->subcommands.emplace_back(std::unique_ptr<Subcommand>(new Subcommand(app))).get();
}

void CommandLine::footer(const std::string& text) { apps_->app.footer(text); }

std::vector<std::string> CommandLine::subcommands() const {
  std::vector<std::string> names;
  for (const CLI::App* command : apps_->app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

namespace {

/// What is wrong with the words that `command` has no place for: an option that there is not, with the nearest of its
/// own, or an argument too many.
std::string unexpected_word(const CLI::App& command) {
  const std::vector<std::string> words = command.remaining();
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  const std::vector<std::string_view> names(options.begin(), options.end());
  for (const std::string& word : words) {
    if (!word.starts_with("--")) continue;
    const std::string option = word.substr(0, word.find('='));
    const std::string meant = nearest(option, names);
    const bool takes_overrides = command.get_option_no_throw("OVERRIDES") != nullptr;
    return fmt::format("there is no option \"{}\"{}", option,
                       !meant.empty()    ? fmt::format("; did you mean \"{}\"?", meant)
                       : takes_overrides ? "; a value of the job is replaced by key.path=value, without dashes"
                                         : "");
  }
  return fmt::format("unexpected argument \"{}\"", words.front());
}

}  // namespace

CommandLine::Outcome CommandLine::parse(int argc, char** argv) {
  CLI::App& app = apps_->app;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app.exit(error);
      return {Outcome::Kind::shown, "", ""};
    }
    const auto chosen = app.get_subcommands();
    if (chosen.empty()) return {Outcome::Kind::mistake, "", error.what()};
    const bool left_over =
        dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !chosen.front()->remaining().empty();
    return {Outcome::Kind::mistake, chosen.front()->get_name(),
            left_over ? unexpected_word(*chosen.front()) : error.what()};
  }
  return {Outcome::Kind::run, "", ""};
}

}  // namespace trainer::tools
