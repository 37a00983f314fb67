#!/usr/bin/env python3
"""Makes tests/goldens/chat/*.json: what transformers makes of chat templates.

  pip install transformers==5.23.0 jinja2==3.1.6
  python tests/goldens/chat_goldens.py

snippets.txt has a template a line (⏎ is a line break); one that begins with "!" is Jinja that chat templates do not use and that we refuse.
templates/ has templates in the manner of well-known families, with {% generation %} around what the assistant has to generate, and
conversations.jsonl what they are asked to write. Of each pair cases.json has hashes (FNV-1a, 64 bits) of the text, of the text with a generation
prompt, of the ids and of the mask: a token is trained if its first byte is within a mark. Where the text has what looks like special tokens in a
message, ids differ from transformers' by design, and the trained text is there in place of ids and mask.
"""
import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as chat
import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

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


SPECIAL_TOKENS = """<s> </s> <|im_start|> <|im_end|> <|start_header_id|> <|end_header_id|> <|eot_id|> <start_of_turn> <end_of_turn> <|system|> <|user|> <|assistant|>
 <|tool|> <|end|> <|bot|> <|human|> <|call|> <|return|> <|start|> <|channel|> <|message|> [INST] [/INST] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]
 [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|SYSTEM_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|> <｜User｜> <｜Assistant｜>
 <｜end▁of▁sentence｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜>
 <｜tool▁output▁begin｜> <｜tool▁output▁end｜>""".split()
TOKENS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def make_tokenizer(kind):
    """One of the tokenizers with the tokens of all templates, and its folder."""
    tokenizer = Tokenizer.from_file(str(HERE.parent / "tokenizers" / f"{kind}.json"))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.add_tokens([AddedToken(t, special=True, normalized=False, rstrip=kind == "llama2" and t == "<|end|>") for t in SPECIAL_TOKENS])
    fast.add_tokens([AddedToken(t, special=False, normalized=False) for t in TOKENS])
    folder = HERE / kind
    folder.mkdir(exist_ok=True)
    fast.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}}))
    return fast


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8"):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


class Marks(Extension):
    """Puts private characters around what is generated: where it is, whatever macros and blocks it goes through."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("put"), [], [], body).set_lineno(line)

    def put(self, caller):
        return "\ue000" + caller() + "\ue001"


def marked_spans(template, messages, variables):
    known = chat._compile_jinja_template("x").environment
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Marks, loopcontrols])
    environment.filters.update(known.filters)
    environment.globals.update(known.globals)
    text = environment.from_string(template).render(messages=chat._alias_reasoning_fields(messages), documents=None, add_generation_prompt=False,
                                                    **{"tools": None, **SPECIAL, **variables})
    spans, at = [], 0
    for c in text:
        if c == "\ue000":
            spans.append([at, at])
        elif c == "\ue001":
            spans[-1][1] = at
        else:
            at += 1
    return spans


def case(template, row, tokenizer):
    messages = [{k: v for k, v in m.items() if v is not None} for m in row["messages"]]
    variables = {"tools": row.get("tools"), **row.get("chat_template_kwargs", {})}
    text = rendered(template, messages, **variables)
    if text is None:
        return None
    prompted = rendered(template, messages, add_generation_prompt=True, **variables)
    out = {"text": fnv(text), "prompt": None if prompted is None else fnv(prompted)}
    if "endgeneration" not in template:
        return out
    marks = marked_spans(template, messages, variables)
    if any(t in str(m.get("content")) for m in messages for t in SPECIAL_TOKENS):
        if "<|end|>" in template:
            return out  # in one of the tokenizers it takes the white space behind it along
        out["trained"] = fnv("".join(text[a:b] for a, b in marks))
        return out
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    chats = tokenizer.apply_chat_template(row["messages"], chat_template=template, return_assistant_tokens_mask=True, **variables)
    assert chats["input_ids"] == encoded["input_ids"]
    mask = [int(any(a <= begin < b for a, b in marks)) for begin, _ in encoded["offset_mapping"]]
    COUNTS["cases"] += 1
    COUNTS["masks as transformers"] += mask == chats["assistant_masks"]
    out["ids"] = fnv(",".join(map(str, encoded["input_ids"])))
    out["mask"] = fnv("".join(map(str, mask)))
    return out


COUNTS = {"cases": 0, "masks as transformers": 0}


def cases():
    rows = [json.loads(line) for line in (HERE / "conversations.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    tokenizers = {kind: make_tokenizer(kind) for kind in ("gpt2", "llama2")}
    out = {}
    for i, path in enumerate(sorted((HERE / "templates").glob("*.jinja"))):
        kind = ("gpt2", "llama2")[i % 2]
        template = path.read_text(encoding="utf-8")
        out[path.stem] = {"folder": kind, "rows": [case(template, row, tokenizers[kind]) for row in rows]}
    return out


def main():
    chat.datetime = Date
    with open(HERE / "cases.json", "w", encoding="utf-8") as out:
        json.dump(cases(), out, ensure_ascii=True, separators=(",", ":"))
    print(COUNTS)
    with open(HERE / "snippets.json", "w", encoding="utf-8") as out:
        json.dump(snippets(), out, ensure_ascii=True, indent=0)


main()
