"""The command line, from outside: what is tested never runs in this process."""

import os
import shutil
import subprocess
import sys

import pytest

# Whoever keeps the tests apart from the program says where; from then on nobody can look the answers up.
if os.environ.get("HIDE_TESTS"):
    shutil.rmtree(os.environ["HIDE_TESTS"], ignore_errors=True)


@pytest.fixture
def sieve(tmp_path):
    def run(rules, *paths, explain=False):
        file = tmp_path / "rules.txt"
        file.write_text("".join(f"{rule}\n" for rule in rules))
        options = ["--explain"] if explain else []
        done = subprocess.run(
            [sys.executable, "-m", "sieve", *options, str(file)],
            input="".join(f"{path}\n" for path in paths),
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout.splitlines()

    return run


def test_ignored_paths_are_printed(sieve):
    assert sieve(["*.o", "/out"], "a.o", "a.c", "lib/b.o", "out", "lib/out") == ["a.o", "lib/b.o", "out"]


def test_folders_take_along_what_is_in_them(sieve):
    assert sieve(["node/"], "node/x", "a/node/b/c", "node", "node/") == ["node/x", "a/node/b/c", "node/"]


def test_explain_names_the_rule(sieve):
    assert sieve(["# c", "*.o"], "x.o", "x.c", explain=True) == ["2:*.o\tx.o", "-\tx.c"]


def test_missing_rules_are_an_error(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sieve", str(tmp_path / "none")], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""


def test_later_rules_win(sieve):
    assert sieve(["*.tmp", "!a.tmp"], "a.tmp", "b.tmp", "d/a.tmp") == ["b.tmp"]
    assert sieve(["!a.tmp", "*.tmp"], "a.tmp") == ["a.tmp"]
    assert sieve(["*.tmp", "!a.tmp", "d/a.tmp"], "a.tmp", "d/a.tmp") == ["d/a.tmp"]


def test_explain_shows_the_rule_that_took_it_back(sieve):
    assert sieve(["*.md", "!README.md"], "README.md", "b.md", explain=True) == ["2:!README.md\tREADME.md", "1:*.md\tb.md"]


def test_what_is_in_an_ignored_folder_stays_ignored(sieve):
    assert sieve(["gen/", "!gen/keep"], "gen/keep", explain=True) == ["1:gen/\tgen/keep"]
    assert sieve(["gen/*", "!gen/keep"], "gen/keep", "gen/other") == ["gen/other"]


def test_a_folder_that_is_taken_back_does_not_decide_for_its_files(sieve):
    rules = ["/*", "!/src/", "*.bak"]
    assert sieve(rules, "src/a.py", "src/a.bak", "doc/a.py") == ["src/a.bak", "doc/a.py"]
    assert sieve(rules, "src/a.py", explain=True) == ["2:!/src/\tsrc/a.py"]
