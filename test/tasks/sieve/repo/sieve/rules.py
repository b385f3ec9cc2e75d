"""Rules, and what they say of a path."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sieve.pattern import to_regex


@dataclass(frozen=True)
class Rule:
    line: int
    text: str
    regex: re.Pattern[str]
    #: Takes back what an earlier rule ignores.
    is_negated: bool
    folders_only: bool


def read_rules(lines: Iterable[str]) -> list[Rule]:
    rules = []
    for number, raw in enumerate(lines, start=1):
        text = raw.rstrip("\n").rstrip(" ")
        if not text or text.startswith("#"):
            continue
        is_negated = text.startswith("!")
        pattern = text[1:] if is_negated else text
        folders_only = pattern.endswith("/")
        pattern = pattern.rstrip("/")
        is_tied = "/" in pattern
        pattern = pattern.removeprefix("/")
        if not pattern:
            continue
        rules.append(Rule(number, text, to_regex(pattern, is_tied=is_tied), is_negated, folders_only))
    return rules


def deciding_rule(rules: list[Rule], path: str) -> Rule | None:
    """The rule that says what becomes of a path; None when none speaks of it."""
    is_folder = path.endswith("/")
    names = path.rstrip("/").split("/")
    for depth in range(1, len(names) + 1):
        prefix = "/".join(names[:depth])
        rule = _match(rules, prefix, is_folder or depth < len(names))
        if rule is not None:
            return rule
    return None


def is_ignored(rules: list[Rule], path: str) -> bool:
    rule = deciding_rule(rules, path)
    return rule is not None and not rule.is_negated


def _match(rules: list[Rule], path: str, is_folder: bool) -> Rule | None:
    for rule in rules:
        if rule.folders_only and not is_folder:
            continue
        if rule.regex.fullmatch(path):
            return rule
    return None
