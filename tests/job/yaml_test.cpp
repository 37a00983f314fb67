// The YAML tree: scalars, places, limits, hostile files.
#include "engine/job/yaml.h"

#include <doctest/doctest.h>

#include <cmath>
#include <ctime>

namespace trainer::yaml::yaml_test {
namespace {

/// The first mistake as "line:column message"; empty if the text is a tree.
std::string mistake(const std::string& text) {
  try {
    parse(text, "file.yaml");
  } catch (const JobError& error) {
    const Diagnostic& first = error.diagnostics().at(0);
    CHECK(first.file == "file.yaml");
    return std::to_string(first.line) + ":" + std::to_string(first.column) + " " + first.message;
  }
  return "";
}

Node scalar(const std::string& text) {
  const Node root = parse("k: " + text + "\n", "file.yaml");
  return root.items.at(0);
}

bool is(const std::optional<double>& value, double expected) { return value.has_value() && *value == expected; }

TEST_CASE("a quote that nothing closes is told where it begins") {
  for (const std::string text : {"a: 'b\nc: 1\n", "a: \"b\\\"\nc: 1\n"}) {
    try {
      yaml::parse(text, "job.yaml");
      FAIL("taken");
    } catch (const JobError& error) {
      CHECK(error.diagnostics()[0].line == 1);
      CHECK(error.diagnostics()[0].column == 4);
      CHECK(error.diagnostics()[0].message.find("not closed") != std::string::npos);
    }
  }
  CHECK(yaml::parse("a: 'it''s'\n", "job.yaml").items[0].text == "it's");
}

TEST_CASE("scalars follow YAML 1.2's core schema") {
  for (const char* text : {"null", "Null", "NULL", "~", ""}) CHECK(scalar(text).is_null());
  for (const char* text : {"true", "True", "TRUE"}) CHECK(scalar(text).as_bool() == true);
  for (const char* text : {"false", "False", "FALSE"}) CHECK(scalar(text).as_bool() == false);
  for (const char* text :
       {"no", "yes", "on", "off", "n",  "y",    "nULL",  "tRUE",     "1f1b", "0o",  "0x",  "0b1",  "1e",  "e4",
        ".",  "-",   "+",  "_1",  "1_", "1__0", "1.2.3", "12:30:45", "inf",  "nan", "- 1", "0x1G", "0o8", "--1"}) {
    CAPTURE(text);
    const Node node =
        parse("[\"\", " + std::string(text == std::string("- 1") ? "'- 1'" : text) + "]", "file.yaml").items.at(1);
    CHECK(node.as_string().has_value());
    CHECK_FALSE(node.as_number().has_value());
  }
}

TEST_CASE("numbers are read whatever their notation") {
  CHECK(is(scalar("1e-4").as_number(), 1e-4));
  CHECK(is(scalar("1E+3").as_number(), 1000));
  CHECK(is(scalar(".5").as_number(), 0.5));
  CHECK(is(scalar("5.").as_number(), 5));
  CHECK(is(scalar("-0.25").as_number(), -0.25));
  CHECK(scalar("0o17").as_integer() == 15);
  CHECK(scalar("0x1F").as_integer() == 31);
  CHECK(is(scalar("0x1F").as_number(), 31));
  CHECK(scalar("010").as_integer() == 10);
  CHECK(scalar("+7").as_integer() == 7);
  CHECK(scalar("100_000_000").as_integer() == 100000000);
  CHECK(is(scalar("1_000.5").as_number(), 1000.5));
  CHECK(scalar(".inf").as_number() == INFINITY);
  CHECK(scalar("-.INF").as_number() == -INFINITY);
  CHECK(std::isnan(*scalar(".nan").as_number()));
  CHECK(scalar("1e999").as_number() == INFINITY);
  CHECK(is(scalar("1e-999").as_number(), 0));
  CHECK_FALSE(scalar("1e3").as_integer().has_value());
  CHECK_FALSE(scalar("9223372036854775808").as_integer().has_value());
  CHECK(scalar("9223372036854775808").looks_integer());
  CHECK(scalar("-9223372036854775808").as_integer() == INT64_MIN);
}

TEST_CASE("what is quoted, a block or tagged !!str is a string whatever its text") {
  for (const char* text : {"\"1\"", "'null'", "|\n  true", ">\n  12", "!!str 1e4", "! 7"}) {
    CAPTURE(text);
    CHECK(scalar(text).quoted);
    CHECK(scalar(text).as_string().has_value());
    CHECK_FALSE(scalar(text).as_number().has_value());
    CHECK_FALSE(scalar(text).is_null());
  }
}

TEST_CASE("every node knows its line and column, columns in code points") {
  const Node root = parse("# größe\na: 1\nb:\n  - x\n  - {größe: 2, c: 3}\n", "file.yaml");
  CHECK(root.line == 2);
  CHECK(root.find("a")->line == 2);
  CHECK(root.find("a")->column == 4);
  const Node& inner = root.find("b")->items.at(1);
  CHECK(inner.line == 5);
  CHECK(inner.column == 5);
  CHECK(inner.find("größe")->column == 13);
  CHECK(inner.find_key("c")->column == 16);
  CHECK(inner.find("c")->column == 19);
  CHECK(root.source->line(5) == "  - {größe: 2, c: 3}");
}

TEST_CASE("lines end with or without a carriage return, and a byte order mark is no part of a file") {
  const Node root = parse(
      "\xEF\xBB\xBF"
      "a: 1\r\nb: 2\r\n",
      "file.yaml");
  CHECK(root.find("b")->line == 2);
  CHECK(root.find("b")->text == "2");
  CHECK(root.source->line(1) == "a: 1");
}

TEST_CASE("a value that is not written has the place of its key") {
  const Node root = parse("a:\nb: 1\n", "file.yaml");
  CHECK(root.find("a")->is_null());
  CHECK(root.find("a")->line == 1);
  CHECK(root.find("a")->column == 1);
}

TEST_CASE("an alias stands for what its anchor names") {
  const Node root = parse("a: &x {lr: 0.5}\nb: *x\nc: [*x, *x]\n", "file.yaml");
  CHECK(root.find("b")->find("lr")->text == "0.5");
  CHECK(root.find("c")->items.at(1).find("lr")->line == 1);
}

TEST_CASE("what a job file may not hold is told at its place") {
  CHECK(mistake("a: 1\na: 2\n") == "2:1 duplicate key \"a\"; the first is in line 1");
  CHECK(mistake("{a: 1, \"a\": 2}") == "1:8 duplicate key \"a\"; the first is in line 1");
  CHECK(mistake("a: &x [*x]\n") == "1:8 an alias inside of its own anchor");
  CHECK(mistake("a: &x {b: {c: *x}}\n") == "1:15 an alias inside of its own anchor");
  CHECK(mistake("a: *nowhere\n").starts_with("1:4 not YAML: the referenced anchor is not defined"));
  CHECK(mistake("a: 1\n---\nb: 2\n").starts_with("3:1 more after the end of the first document"));
  CHECK(mistake("a: &x {b: 1}\nc:\n  <<: *x\n").starts_with("3:3 merge keys"));
  CHECK(mistake("? [a, b]\n: 1\n").starts_with("1:3 a key must be a word"));
  CHECK(mistake("~: 1\n").starts_with("1:1 a key is missing"));
  CHECK(mistake("a: !!int 3\n").starts_with("1:4 a tag"));
  CHECK(mistake("a: !mine {b: 1}\n").starts_with("1:4 a tag"));
  CHECK(mistake("a: [1, 2\n").find("not YAML") != std::string::npos);
  CHECK(mistake("\ta: 1\n").find("not YAML") != std::string::npos);
  CHECK(mistake("a: b: c\n").find("not YAML") != std::string::npos);
}

TEST_CASE("a text that is no YAML is blamed where it went wrong, in words") {
  const auto is = [](const std::string& text, const std::string& start) {
    CAPTURE(text);
    CHECK_MESSAGE(mistake(text).starts_with(start), mistake(text));
  };
  is("a:\n\tb: 1\n", "2:1 not YAML: a tab; YAML indents with spaces");
  is("a:\n  b: 1\n\tc: 2\n", "3:1 not YAML: a tab");
  is("a: {b: \"x}\nc: 1\n", "1:8 not YAML: this quote is not closed in its line");
  is("a: 'x\nb: it's\n", "1:4 not YAML: this quote");
  is("a: {b: 1, c: {d: 2}\ne: 3\n", "1:4 not YAML: this { is never closed");
  is("a: [1, 2\nb: 3\n", "1:4 not YAML: this [ is never closed");
  is("a: {b: 1", "1:4 not YAML: this { is never closed");
  is("a: {b: 1}}\n", "1:10 not YAML: a } that closes nothing");
  is("a: {b: 1]\n", "1:9 not YAML: a ] where } is needed");
  is("a: {b:{c:2}}\n", "1:7 not YAML: a space is missing after the colon");
  is("a: {b: 1 c: {d: 2}}\n", "1:10 not YAML: a comma is missing before \"c\"");
  is("a:\n  b: 1\n  c:2\n  d: 3\n", "3:4 not YAML: a space is missing after the colon");
  is("a:\n  b: 1\n  c 2\n  d: 3\n", "3:3 not YAML: a colon is missing");
  is("a:\n  b: 1\n   c: 2\n", "3:4 not YAML: an indent deeper than that of the line above");
  is("a:\n  b: 1\n c: 2\n", "3:2 not YAML: an indent that no line above has");
  is("a: b: c\n", "1:5 not YAML: a second `: ` in one line");
  // A line that lost its indent is blamed, not the one after it.
  is("a:\nb: 1\n  c: 2\n", "2:1 not YAML: this line has lost its indent");
  is("a:\n  b: 1\nc: 2\n  d: 3\n", "3:1 not YAML: this line has lost its indent");
  is("a:\n\xC2\xA0 b: 1\n", "2:1 a no-break space");
  // What YAML allows is read.
  is("a:\n  - b: 1\n    c: 2\n  - b: 3\nd: {e: 1\n", "5:4 not YAML: this { is never closed");
  CHECK(mistake("a: |\n  x: {\n   \"\nb: 'it''s'\nc: \"a \\\" b\"\nd: [1, {e: x}]  # {\n").empty());
}

TEST_CASE("bytes that are not UTF-8 are told at their place") {
  const std::string bad = "bytes that are not UTF-8";
  CHECK(mistake("a: \xFF\n") == "1:4 " + bad);
  CHECK(mistake("a: é\nb: x\x80\n") == "2:5 " + bad);
  CHECK(mistake("a: \xC0\x80\n") == "1:4 " + bad);          // overlong
  CHECK(mistake("a: \xE0\x80\x80\n") == "1:4 " + bad);      // overlong
  CHECK(mistake("a: \xED\xA0\x80\n") == "1:4 " + bad);      // surrogate
  CHECK(mistake("a: \xF4\x90\x80\x80\n") == "1:4 " + bad);  // above U+10FFFF
  CHECK(mistake("a: \xE2\x82") == "1:4 " + bad);            // cut off
  CHECK(mistake(std::string("\xFF\xFE"
                            "a\0",
                            4)) == "1:1 the file is UTF-16; save it as UTF-8");
  CHECK(mistake(std::string("a: \0\n", 5)).starts_with("1:4 a control character"));
  CHECK(mistake("a: 1\rb: 2\n").starts_with("1:5 a carriage return"));
  CHECK(mistake("a: größe € 🙂\n").empty());
}

TEST_CASE("fifty aliases pass and one more does not") {
  const auto text = [](int count) {
    std::string out = "a: &x 1\nb: [";
    for (int i = 0; i < count; ++i) out += "*x, ";
    return out + "1]\n";
  };
  CHECK(mistake(text(50)).empty());
  CHECK(mistake(text(51)).ends_with("more than 50 aliases"));
}

TEST_CASE("aliases that multiply end at 100,000 values") {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 6; ++i) {
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 9; ++k) text += (k ? ", *a" : "*a") + std::to_string(i - 1);
    text += "]\n";
  }
  CHECK(mistake(text).find("more than 100000 values once aliases are expanded") != std::string::npos);
  text.clear();
  for (int i = 0; i < 26; ++i)
    text += "- &b" + std::to_string(i) +
            (i ? " [*b" + std::to_string(i - 1) + ", *b" + std::to_string(i - 1) + "]\n" : " x\n");
  CHECK(mistake(text).find("more than 100000 values once aliases are expanded") != std::string::npos);
}

TEST_CASE("fifty levels pass and one more does not, in every notation and through aliases") {
  const auto flow = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(mistake(flow(50)).empty());
  CHECK(mistake(flow(51)) == "1:51 nested more than 50 deep");
  const auto block = [](int depth) {
    std::string out;
    for (int i = 0; i < depth; ++i) out += "- ";
    return out + "x\n";
  };
  CHECK(mistake(block(50)).empty());
  CHECK(mistake(block(51)).ends_with("nested more than 50 deep"));
  CHECK(mistake("a: &x " + flow(40) + "\nb: " + std::string(20, '[') + "*x" + std::string(20, ']') + "\n")
            .find("deep once aliases") != std::string::npos);
}

TEST_CASE("a file of 1 MiB passes and one byte more does not") {
  std::string text = "a: \"" + std::string(kMaxBytes - 6, 'x') + "\"\n";
  REQUIRE(text.size() == kMaxBytes);
  CHECK(mistake(text).empty());
  CHECK(mistake(text + "\n").find("larger than 1 MiB") != std::string::npos);
}

TEST_CASE("hostile files of 1 MiB end within seconds") {
  const std::clock_t begin = std::clock();  // of the processor: other programs may run beside the test
  for (const char* piece :
       {"[",      "{", "- ", "? ", "a: ", "[a, ", "{a: ", "&a ",    "*a ", "! ", "\"",   "'",          "|\n",
        "- - \n", "#", "%",  "\n", "a\n", ",",    ":",    "--- \n", "é",   "{}", "[]\n", "x: {a: 1}\n"}) {
    CAPTURE(piece);
    std::string text;
    while (text.size() + std::string(piece).size() <= kMaxBytes) text += piece;
    mistake(text);
  }
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 60);
}

TEST_CASE("a tree prints on one line that reads back to the same") {
  const std::string text =
      "{a: [1, \"1\", null, \"null\", x y, \"a: b\", \"- x\", \"#c\", \"t\\tn\\n\\\"\\\\\", \"\", -5, .5, \"~\"], \"no "
      "key: \": {}}";
  const Node node = parse(text, "file.yaml");
  CHECK(parse(node.flow(), "again").flow() == node.flow());
  CHECK(node.find("a")->items.at(8).text == "t\tn\n\"\\");
  CHECK(parse("a: x, y]\n", "file.yaml").flow() == "{a: \"x, y]\"}");
}

TEST_CASE("a long value is cut in messages, between code points") {
  const Node node = parse("a: " + std::string(59, 'x') + "ééé", "file.yaml").items.at(0);
  CHECK(node.brief().size() < 75);
  CHECK(node.brief().ends_with("…"));
}

TEST_CASE("an empty file is a null, and one that cannot be read an IoError") {
  CHECK(parse("", "file.yaml").is_null());
  CHECK(parse("# a comment\n", "file.yaml").is_null());
  CHECK_THROWS_AS(read_file("/nowhere/at/all.yaml"), IoError);
  CHECK_THROWS_AS(read_file("/"), IoError);
}

}  // namespace
}  // namespace trainer::yaml::yaml_test
