// Globs over names and paths.
#include "engine/core/glob.h"

#include <doctest/doctest.h>

#include <string>

using namespace trainer;

TEST_CASE("in whole names a star crosses dots, in paths it does not") {
  CHECK(name_matches("*.bias", "h.0.attn.c_attn.bias"));
  CHECK(!glob_matches("*.bias", "h.0.attn.c_attn.bias"));
  CHECK(glob_matches("**.bias", "h.0.attn.c_attn.bias"));
  CHECK(name_matches("h.1*norm*", "h.11.layer.norm.weight"));
  CHECK(!name_matches("h.1.*", "h.11.ln_1.weight"));
  CHECK(name_matches("*", ""));
  CHECK(name_matches("a*b*c", "a.b.bc"));
  CHECK(!name_matches("a*b*c", "a.b.b"));
  CHECK(!name_matches("wte", "wte.weight"));
  CHECK(!name_matches("", "wte"));
}

TEST_CASE("a glob of many stars is matched in no more than the product of the lengths") {
  std::string glob;
  for (int i = 0; i < 200; ++i) glob += "*a";
  CHECK(!name_matches(glob + "b", std::string(2000, 'a')));
}
