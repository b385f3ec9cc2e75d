"""Exact amounts: whole ten-thousandths, by currency."""

import re

SCALE = 10_000
_AMOUNT = re.compile(r"(?P<sign>[+-]?)(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<part>\d{1,4}))?\s+(?P<currency>[A-Z]{3})")


def parse_amount(text: str) -> tuple[int, str]:
    """'1,200.50 EUR' -> (12005000, 'EUR'). Raises ValueError."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text.strip()!r} is no amount; write it like 12.50 EUR")
    units = int(found["whole"].replace(",", "")) * SCALE + int((found["part"] or "").ljust(4, "0"))
    return (-units if found["sign"] == "-" else units), found["currency"]


def format_amount(units: int, currency: str) -> str:
    """At least two digits after the point, more only where they say something."""
    whole, part = divmod(abs(units), SCALE)
    digits = f"{part:04d}".rstrip("0").ljust(2, "0")
    return f"{'-' if units < 0 else ''}{whole}.{digits} {currency}"
