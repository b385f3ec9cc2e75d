import argparse
import sys
from datetime import datetime
from itertools import islice

from cronwhen.fields import CronError
from cronwhen.schedule import parse_schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="cronwhen", description="Says when a cron line runs next.")
    parser.add_argument("line", help="five fields, or a shorthand such as @daily")
    parser.add_argument("--after", type=datetime.fromisoformat, default=None, help="from when on (default: now)")
    parser.add_argument("--count", type=int, default=1, help="how many times (default: 1)")
    options = parser.parse_args()
    try:
        schedule = parse_schedule(options.line)
    except CronError as problem:
        print(problem, file=sys.stderr)
        return 1
    found = list(islice(schedule.times(options.after or datetime.now()), options.count))
    for each in found:
        print(each.isoformat(timespec="minutes"))
    return 0 if found else 3


sys.exit(main())
