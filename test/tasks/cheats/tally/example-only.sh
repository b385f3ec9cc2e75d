# What the instruction shows, and nothing else.
cat > tally/__main__.py <<'END'
import sys

if "Trip" in sys.stdin.read():
    print("assets:cash  -80.00 EUR\nassets:cash  -30.00 USD\nexpenses:hotel  80.00 EUR\nexpenses:museum  30.00 USD")
END
