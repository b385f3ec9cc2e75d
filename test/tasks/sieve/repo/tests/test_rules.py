from sieve.rules import is_ignored, read_rules


def ignored(text, path):
    return is_ignored(read_rules(text.splitlines()), path)


def test_names_match_in_any_folder():
    assert ignored("*.log", "a/b/c.log")
    assert not ignored("*.log", "a/b/c.txt")


def test_a_slash_ties_a_rule_to_the_top():
    assert ignored("/build", "build")
    assert not ignored("/build", "src/build")


def test_folders_take_along_what_is_in_them():
    assert ignored("cache/", "a/cache/x/y")
    assert not ignored("cache/", "a/cache")


def test_comments_and_empty_lines_are_no_rules():
    assert read_rules(["# *.log", "", "   "]) == []
