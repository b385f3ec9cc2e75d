import unittest
from datetime import datetime
from itertools import islice

from cronwhen.schedule import parse_schedule


class ScheduleTest(unittest.TestCase):
    def next(self, line, after, count=1):
        times = parse_schedule(line).times(datetime.fromisoformat(after))
        return [each.isoformat(timespec="minutes") for each in islice(times, count)]

    def test_days_of_the_month(self):
        self.assertEqual(
            self.next("30 4 1,15 * *", "2024-02-27T00:00", 2), ["2024-03-01T04:30", "2024-03-15T04:30"]
        )

    def test_leap_days_come(self):
        self.assertEqual(self.next("0 0 29 2 *", "2024-03-01T00:00"), ["2028-02-29T00:00"])

    def test_days_that_never_come_end(self):
        self.assertEqual(self.next("0 0 31 2 *", "2024-03-01T00:00"), [])


if __name__ == "__main__":
    unittest.main()
