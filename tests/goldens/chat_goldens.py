#!/usr/bin/env python3
"""Makes tests/goldens/chat/*.json: what transformers makes of chat templates.

  pip install transformers==5.23.0 jinja2==3.1.6
  python tests/goldens/chat_goldens.py

snippets.txt has a template a line (⏎ is a line break); one that begins with "!" is Jinja that chat templates do not use and that we refuse.
"""
import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as chat

HERE = pathlib.Path(__file__).parent / "chat"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
MESSAGES = [{"role": "user", "content": "Hello é"}, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "x"}]


class Date(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def rendered(template, messages=MESSAGES, **variables):
    """The text, or nothing where the template fails."""
    try:
        return chat.render_jinja_template([messages], chat_template=template, **{**SPECIAL, **variables})[0][0]
    except Exception:  # noqa: BLE001: of any kind: Python's own errors come through
        return None


def snippets():
    out = []
    for line in (HERE / "snippets.txt").read_text(encoding="utf-8").split("\n")[:-1]:
        template = line.removeprefix("!").replace("⏎", "\n")
        out.append({"template": template, "text": None if line.startswith("!") else rendered(template)})
    return out


def main():
    chat.datetime = Date
    with open(HERE / "snippets.json", "w", encoding="utf-8") as out:
        json.dump(snippets(), out, ensure_ascii=True, indent=0)


main()
