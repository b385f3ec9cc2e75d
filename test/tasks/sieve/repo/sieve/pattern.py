"""From the pattern of a rule to a regular expression."""

import re


def to_regex(pattern: str, *, is_tied: bool) -> re.Pattern[str]:
    """`is_tied`: to the top folder; otherwise it may begin in any folder."""
    parts = pattern.split("/")
    out = [] if is_tied else ["(?:.*/)?"]
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part == "**":
            out.append(".*" if is_last else "(?:[^/]+/)*")
            continue
        out.append(_part_to_regex(part))
        if not is_last:
            out.append("/")
    return re.compile("".join(out))


def _part_to_regex(part: str) -> str:
    out = []
    at = 0
    while at < len(part):
        letter = part[at]
        at += 1
        if letter == "*":
            out.append("[^/]*")
        elif letter == "?":
            out.append("[^/]")
        elif letter == "\\" and at < len(part):
            out.append(re.escape(part[at]))
            at += 1
        elif letter == "[" and (end := part.find("]", at + 1)) != -1:
            body = part[at:end].replace("\\", "\\\\")
            out.append(f"[^{body[1:]}]" if body[0] == "!" else f"[{body}]")
            at = end + 1
        else:
            out.append(re.escape(letter))
    return "".join(out)
