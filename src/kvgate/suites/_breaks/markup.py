"""What belongs to the protocol and leaked into the content: think tags, control tokens, raw tool markup."""

from __future__ import annotations

import re

from kvgate.suites._breaks.answer import Answer
from kvgate.suites._breaks.json_scan import count_values
from kvgate.suites._breaks.taxonomy import Flag, State, one_line

_CONTROL = re.compile(
    r"<\|[A-Za-z0-9_▁/-]{1,40}\|>"  # <|im_end|> <|eot_id|> <|endoftext|>
    r"|<｜[^<>｜]{1,40}｜>"  # the full-width bars of DeepSeek
    r"|<(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>|\[/?INST\]|<</?SYS>>"
    r"|<0x[0-9A-Fa-f]{2}>"  # a byte token that was not decoded
)
_TOOL = re.compile(
    r"</?tool_calls?>|\[TOOL_CALLS\]|<\|python_tag\|>|<\|tool_calls?\|>|<function=[\w.-]+>|</function>"
    r"|<｜tool▁calls?▁(?:begin|end)｜>|\A\s*functools\["
)
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def check_think(answer: Answer) -> tuple[State, list[Flag]]:
    """`<think>` that is never closed. Cut at the limit, it might still have been."""
    opened = answer.text.lstrip().startswith("<think>") and "</think>" not in answer.text
    if not opened:
        return State.OK, []
    if answer.cut:
        return State.UNKNOWN, []
    return State.BAD, [Flag("unclosed_think", "think", "<think> without </think>")]


def check_control(answer: Answer, prompt: str) -> tuple[State, list[Flag]]:
    """Control tokens in the content, unless the prompt speaks of them."""
    found = [t for t in _CONTROL.findall(answer.text) if t not in prompt and not _TOOL.fullmatch(t)]
    found += [t for t in _edge_tokens(answer.text.strip()) if t not in prompt]
    if not found:
        return State.OK, []
    return State.BAD, [Flag("control_tokens", "control", one_line(" ".join(sorted(set(found)))))]


def check_tool_markup(answer: Answer, prompt: str) -> tuple[State, list[Flag]]:
    """A tool call that the server did not recognise and left in the content.

    Two JSON values inside one tag are why a parser gives up ("Extra data: line 3 column 1"); that is said first.
    """
    found = sorted({t.strip() for t in _TOOL.findall(answer.text) if t.strip() not in prompt})
    if not found:
        return State.OK, []
    flags = [Flag("tool_markup", "tool_markup", one_line(" ".join(found)))]
    for body in _TAGGED.findall(answer.text)[:20]:
        n = count_values(body)
        if n > 1:
            flags.insert(0, Flag("extra_data_in_call", "tool_markup", f"{n} JSON values in one <tool_call>"))
            break
    return State.BAD, flags


def _edge_tokens(text: str) -> list[str]:
    """`<s>` opens and `</s>` closes struck-out text in HTML; unpaired at an edge they are tokens."""
    opened, closed = text.count("<s>"), text.count("</s>")
    found = ["<s>"] if text.startswith("<s>") and opened > closed else []
    return [*found, "</s>"] if text.endswith("</s>") and closed > opened else found
