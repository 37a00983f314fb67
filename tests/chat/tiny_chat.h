// The files of a tokenizer of seven texts with a chat template "u:…<>a:…<>", whose ids one can follow by eye.
#pragma once

#include <string>

#include "tests/temporary.h"

namespace trainer::tests {

/// Writes them into a folder below `folder`; its path.
inline std::string write_tiny_chat(const TemporaryFolder& folder, const std::string& name) {
  folder.write(
      name + "/tokenizer.json",
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<": 2, ">": 3, "u": 4, ":": 5, "s": 6}, "merges": []},
                   "pre_tokenizer": null,
                   "added_tokens": [{"id": 7, "content": "<>", "normalized": false, "special": true}]})");
  folder.write(
      name + "/chat_template.jinja",
      "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<>{% endfor %}{{ 'a:' if add_generation_prompt }}");
  folder.write(name + "/tokenizer_config.json", R"({"eos_token": "<>"})");
  return folder.path(name);
}

}  // namespace trainer::tests
