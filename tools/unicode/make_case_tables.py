#!/usr/bin/env python3
"""Writes engine/chat/case_tables.inc: what Python's str.upper, str.lower and str.title make of single characters.

  python3.13 tools/unicode/make_case_tables.py engine/chat/case_tables.inc
"""
import sys


def entries(mapping):
    out = []
    for c in range(0x80, 0x110000):
        if 0xD800 <= c < 0xE000 or mapping(chr(c)) == chr(c):
            continue
        text = mapping(chr(c))
        out += [f"0x{c:X}", str(len(text))] + [f"0x{ord(x):X}" for x in text]
    return out


def main():
    tables = [("kUpper", lambda c: c.upper(), "Upper case: character, length, what it becomes."),
              ("kLower", lambda c: c.lower(), "Lower case."),
              ("kTitle", lambda c: c.title() if c.title() != c.upper() else c, "Title case where it is not upper case.")]
    with open(sys.argv[1], "w") as out:
        out.write("// Written by tools/unicode/make_case_tables.py: do not edit.\n// clang-format off\n")
        for name, mapping, comment in tables:
            out.write(f"\n// {comment}\ninline constexpr char32_t {name}[] = {{\n")
            line = "   "
            for item in entries(mapping):
                if len(line) + len(item) + 2 > 120:
                    out.write(line + "\n")
                    line = "   "
                line += " " + item + ","
            out.write(line + "\n};\n")


main()
