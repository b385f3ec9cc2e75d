"""The command line, from outside: what is tested never runs in this process."""

import os
import shutil
import subprocess
import sys
import unittest

# Whoever keeps the tests apart from the program says where; from then on nobody can look the answers up.
if os.environ.get("HIDE_TESTS"):
    shutil.rmtree(os.environ["HIDE_TESTS"], ignore_errors=True)


def cronwhen(line, after, count=1):
    run = subprocess.run(
        [sys.executable, "-m", "cronwhen", line, "--after", after, "--count", str(count)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return run.returncode, run.stdout.split()


class CommandLineTest(unittest.TestCase):
    def test_minutes_and_hours(self):
        self.assertEqual(
            cronwhen("*/30 9-10 * * *", "2024-02-28T10:00", 3),
            (0, ["2024-02-28T10:30", "2024-02-29T09:00", "2024-02-29T09:30"]),
        )

    def test_days_of_the_week(self):
        self.assertEqual(cronwhen("0 8 * * 1,7", "2023-12-30T00:00", 2), (0, ["2023-12-31T08:00", "2024-01-01T08:00"]))

    def test_a_line_that_never_runs(self):
        self.assertEqual(cronwhen("0 0 30 feb *", "2024-01-01T00:00"), (3, []))

    def test_a_line_that_is_none(self):
        self.assertEqual(cronwhen("0 0 * *", "2024-01-01T00:00"), (1, []))

    def test_a_star_with_a_step_needs_both(self):
        self.assertEqual(
            cronwhen("0 0 */10 * mon", "2024-01-01T00:00", 3),
            (0, ["2024-03-11T00:00", "2024-04-01T00:00", "2024-07-01T00:00"]),
        )

    def test_either_day_will_do(self):
        self.assertEqual(
            cronwhen("15 6 10 * wed", "2024-07-08T07:00", 4),
            (0, ["2024-07-10T06:15", "2024-07-17T06:15", "2024-07-24T06:15", "2024-07-31T06:15"]),
        )
        self.assertEqual(
            cronwhen("0 0 1,20 * 6", "2023-09-17T00:00", 4),
            (0, ["2023-09-20T00:00", "2023-09-23T00:00", "2023-09-30T00:00", "2023-10-01T00:00"]),
        )

    def test_either_day_in_its_month_only(self):
        self.assertEqual(
            cronwhen("0 0 4 7 0", "2024-06-20T00:00", 3),
            (0, ["2024-07-04T00:00", "2024-07-07T00:00", "2024-07-14T00:00"]),
        )

    def test_all_days_of_the_week_by_number_are_no_star(self):
        self.assertEqual(cronwhen("0 0 31 * 0-6", "2024-02-01T00:00", 2), (0, ["2024-02-02T00:00", "2024-02-03T00:00"]))


if __name__ == "__main__":
    unittest.main()
