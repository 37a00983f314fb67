// What reaches a terminal from texts of others.
#include "engine/core/printable.h"

#include <doctest/doctest.h>

#include "engine/core/utf8.h"

using namespace trainer;

TEST_CASE("text that a terminal does not obey is unchanged") {
  CHECK(printable("plain: \\ \"quoted\" 100%") == "plain: \\ \"quoted\" 100%");
  CHECK(printable("größe – 学习率 🙂") == "größe – 学习率 🙂");
  CHECK(printable("") == "");
}

TEST_CASE("escape sequences, control characters and reversed text are shown, not obeyed") {
  CHECK(printable("a\x1b]0;title\x07z") == "a\\x1b]0;title\\x07z");
  CHECK(printable("\x1b[2J\x7f") == "\\x1b[2J\\x7f");
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\xc2\x9b"
                  "31m") == "\\u009b31m");  // C1: CSI in one code point
  CHECK(printable("abc\u202egpj.exe") == "abc\\u202egpj.exe");
}

TEST_CASE("bytes that are not UTF-8 are shown: a terminal of another encoding could obey them") {
  CHECK(printable("\x9b"
                  "31m") == "\\x9b31m");
  CHECK(printable("caf\xe9") == "caf\\xe9");
  CHECK(printable("\xe2\x82") == "\\xe2\\x82");
}

TEST_CASE("a name cannot break its line, text of several lines keeps them") {
  CHECK(printable("w\nevery checksum is right\tx\r") == "w\\nevery checksum is right\\tx\\r");
  CHECK(printable_lines("one\n\ttwo\r\x1b") == "one\n\ttwo\\r\\x1b");
}

TEST_CASE("a character of which only the first bytes are there is not whole") {
  CHECK(whole_characters("ab") == 2);
  CHECK(whole_characters("a\xc3") == 1);
  CHECK(whole_characters("a\xc3\xa9") == 3);
  CHECK(whole_characters("\xf0\x9f\x99") == 0);
  CHECK(whole_characters("\xe2\x82\xac") == 3);
  CHECK(whole_characters("\x80\x80\x80\x80") == 4);  // no character at all: nothing to wait for
  CHECK(whole_characters("") == 0);
}
