import pytest

from sieve.pattern import to_regex


@pytest.mark.parametrize(
    ("pattern", "is_tied", "path", "expected"),
    [
        ("*.log", False, "a/b.log", True),
        ("*.log", True, "a/b.log", False),
        ("a/**/z", True, "a/z", True),
        ("a/**/z", True, "a/b/c/z", True),
        ("**/tmp", True, "x/y/tmp", True),
        ("v?", False, "v1", True),
        ("v?", False, "v12", False),
        ("[ab].txt", False, "b.txt", True),
        ("[!ab].txt", False, "b.txt", False),
        ("\\*", False, "x", False),
    ],
)
def test_patterns(pattern, is_tied, path, expected):
    assert (to_regex(pattern, is_tied=is_tied).fullmatch(path) is not None) == expected
