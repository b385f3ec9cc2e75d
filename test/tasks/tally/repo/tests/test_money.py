import pytest

from tally.money import format_amount, parse_amount


@pytest.mark.parametrize(
    ("text", "units"),
    [("12.50 EUR", 125_000), ("-3 EUR", -30_000), ("1,200.5 EUR", 12_005_000), ("0.0001 EUR", 1)],
)
def test_amounts_are_exact(text, units):
    assert parse_amount(text) == (units, "EUR")


@pytest.mark.parametrize("text", ["12.50", "EUR", "1,20 EUR", "1.00001 EUR", "12.50 euro", ""])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(ValueError):
        parse_amount(text)


def test_amounts_print_with_two_digits_or_more():
    assert format_amount(125_000, "EUR") == "12.50 EUR"
    assert format_amount(-1, "EUR") == "-0.0001 EUR"
