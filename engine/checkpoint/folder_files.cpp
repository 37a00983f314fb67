// The files that belong to a model folder, by their names.
#include "engine/checkpoint/folder_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 17> kNames{"LICENSE",
                                                  "LICENSE.md",
                                                  "LICENSE.txt",
                                                  "NOTICE",
                                                  "added_tokens.json",
                                                  "chat_template.jinja",
                                                  "chat_template.json",
                                                  "config.json",
                                                  "generation_config.json",
                                                  "merges.txt",
                                                  "special_tokens_map.json",
                                                  "tekken.json",
                                                  "tokenizer.json",
                                                  "tokenizer.model",
                                                  "tokenizer_config.json",
                                                  "vocab.json",
                                                  "vocab.txt"};

}  // namespace

std::vector<std::string> files_beside_weights(const std::string& folder) {
  std::vector<std::string> paths;
  for (const std::string_view name : kNames) {
    const fs::path path = fs::path(folder) / name;
    std::error_code error;
    if (fs::is_regular_file(path, error)) paths.push_back(path.string());
  }
  return paths;
}

}  // namespace trainer::checkpoint
