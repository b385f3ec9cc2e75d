import sys

from sieve.rules import deciding_rule, read_rules

USAGE = "usage: python3 -m sieve [--explain] RULES < PATHS"


def main(args: list[str]) -> int:
    explain = args[:1] == ["--explain"]
    files = args[1:] if explain else args
    if len(files) != 1:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        with open(files[0], encoding="utf-8") as file:
            rules = read_rules(file)
    except OSError as problem:
        print(f"{files[0]}: {problem.strerror}", file=sys.stderr)
        return 1
    for line in sys.stdin:
        path = line.rstrip("\n")
        rule = deciding_rule(rules, path)
        if explain:
            print(f"{'-' if rule is None else f'{rule.line}:{rule.text}'}\t{path}")
        elif rule is not None and not rule.is_negated:
            print(path)
    return 0


sys.exit(main(sys.argv[1:]))
