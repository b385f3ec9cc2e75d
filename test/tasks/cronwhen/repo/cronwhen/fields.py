"""One field of a cron line."""

from dataclasses import dataclass

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class CronError(Exception):
    """The line cannot be understood."""


@dataclass(frozen=True)
class Kind:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


MINUTE = Kind("minute", 0, 59)
HOUR = Kind("hour", 0, 23)
DAY = Kind("day of the month", 1, 31)
MONTH = Kind("month", 1, 12, MONTHS)
WEEKDAY = Kind("day of the week", 0, 7, DAYS)


@dataclass(frozen=True)
class Field:
    values: frozenset[int]
    #: Whether it was written as a star, with a step or without.
    is_star: bool


def parse_field(text: str, kind: Kind) -> Field:
    values: set[int] = set()
    for part in text.lower().split(","):
        values.update(_parse_part(part, kind))
    if kind is WEEKDAY and 7 in values:
        values = (values - {7}) | {0}
    return Field(frozenset(values), text.startswith("*"))


def _parse_part(part: str, kind: Kind) -> range:
    span, slash, step_text = part.partition("/")
    if slash and not (step_text.isdecimal() and int(step_text) > 0):
        raise CronError(f"{kind.name}: {step_text!r} is no step")
    step = int(step_text) if slash else 1
    if span == "*":
        high = 6 if kind is WEEKDAY else kind.high
        return range(kind.low, high + 1, step)
    first, dash, last = span.partition("-")
    low = _parse_value(first, kind)
    high = _parse_value(last, kind) if dash else (kind.high if slash else low)
    if high < low:
        raise CronError(f"{kind.name}: {span!r} runs backwards")
    return range(low, high + 1, step)


def _parse_value(text: str, kind: Kind) -> int:
    if text in kind.names:
        return kind.names.index(text) + kind.low
    if not text.isdecimal() or not kind.low <= int(text) <= kind.high:
        raise CronError(f"{kind.name}: {text!r} is not {kind.low}-{kind.high}")
    return int(text)
