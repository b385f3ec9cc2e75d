"""A whole cron line, and the times it means."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from cronwhen.fields import DAY, HOUR, MINUTE, MONTH, WEEKDAY, CronError, Field, parse_field

SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}

#: A line that names 29 February waits eight years at most; what did not come by then never does.
LONGEST_DAYS = 366 * 9


@dataclass(frozen=True)
class Schedule:
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    def matches_day(self, day: date) -> bool:
        if day.month not in self.month.values:
            return False
        return day.day in self.day.values and day.isoweekday() % 7 in self.weekday.values

    def times(self, after: datetime) -> Iterator[datetime]:
        """Later than `after`, in order; ends when nothing comes for years."""
        day = after.date()
        last = day
        while (day - last).days <= LONGEST_DAYS:
            if self.matches_day(day):
                for hour in sorted(self.hour.values):
                    for minute in sorted(self.minute.values):
                        found = datetime.combine(day, time(hour, minute))
                        if found > after:
                            last = day
                            yield found
            day += timedelta(days=1)


def parse_schedule(line: str) -> Schedule:
    fields = SHORTHANDS.get(line.strip(), line).split()
    if len(fields) != 5:
        raise CronError(f"a line has five fields, this has {len(fields)}")
    kinds = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)
    return Schedule(*(parse_field(text, kind) for text, kind in zip(fields, kinds, strict=True)))
