"""What is printed of a ledger."""

from collections import defaultdict
from collections.abc import Iterable

from tally.ledger import Entry
from tally.money import format_amount


def balance(entries: Iterable[Entry]) -> list[str]:
    """A line for each account and currency that holds something, by name."""
    held: dict[tuple[str, str], int] = defaultdict(int)
    for entry in entries:
        for posting in entry.postings:
            held[posting.account, posting.currency] += posting.units
    return [
        f"{account}  {format_amount(units, currency)}"
        for (account, currency), units in sorted(held.items())
        if units != 0
    ]


def register(entries: Iterable[Entry], account: str) -> list[str]:
    """What moved an account, in the order of the ledger, with what it held afterwards."""
    held: dict[str, int] = defaultdict(int)
    lines = []
    for entry in entries:
        for posting in entry.postings:
            if posting.account != account:
                continue
            held[posting.currency] += posting.units
            moved = format_amount(posting.units, posting.currency)
            now = format_amount(held[posting.currency], posting.currency)
            lines.append(f"{entry.day.isoformat()}  {entry.what}  {moved}  {now}")
    return lines
