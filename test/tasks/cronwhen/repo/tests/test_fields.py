import unittest

from cronwhen.fields import DAY, MINUTE, MONTH, WEEKDAY, CronError, parse_field


class FieldTest(unittest.TestCase):
    def test_lists_ranges_and_steps(self):
        self.assertEqual(sorted(parse_field("1,5-7,*/20", MINUTE).values), [0, 1, 5, 6, 7, 20, 40])

    def test_a_number_with_a_step_runs_to_the_end(self):
        self.assertEqual(sorted(parse_field("20/5", DAY).values), [20, 25, 30])

    def test_names(self):
        self.assertEqual(sorted(parse_field("jan-mar", MONTH).values), [1, 2, 3])
        self.assertEqual(sorted(parse_field("mon,FRI", WEEKDAY).values), [1, 5])

    def test_seven_is_sunday(self):
        self.assertEqual(sorted(parse_field("5-7", WEEKDAY).values), [0, 5, 6])

    def test_what_is_no_field_is_refused(self):
        for text in ("", "60", "5-1", "*/0", "x", "1-"):
            with self.subTest(text), self.assertRaises(CronError):
                parse_field(text, MINUTE)


if __name__ == "__main__":
    unittest.main()
