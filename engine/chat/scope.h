// Variables of a block. Blocks look outward for what they do not have.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/value.h"

namespace trainer::chat {

struct Scope {
  explicit Scope(Scope* outer) : outer(outer) {}

  void set(std::string_view name, Value value) {
    for (auto& [each, there] : variables)
      if (each == name) return void(there = std::move(value));
    variables.emplace_back(name, std::move(value));
  }
  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer)
      for (const auto& [each, value] : scope->variables)
        if (each == name) return &value;
    return nullptr;
  }
  /// A macro refers to it, so that it outlives its block.
  void hold() {
    for (Scope* scope = this; scope != nullptr && !scope->held; scope = scope->outer) scope->held = true;
  }

  Scope* outer;
  bool held = false;
  std::vector<std::pair<std::string, Value>> variables;
};

}  // namespace trainer::chat
