"""Generated tasks on small files. Each takes several tool calls, and a hidden command checks the result.

A task depends only on (seed, index). Held-out tasks have file names, keys and texts of words that no training task has.
`plan` is what an expert does; the policy never sees it.
"""

import random
import shlex
from dataclasses import dataclass

WORDS = """amber anchor apple arrow autumn badge basin beacon berry birch blanket bottle branch breeze bridge bronze bucket
butter button cabin candle canvas carbon castle cedar cellar chalk cherry circle cliff clover copper coral cotton crayon
crystal dagger daisy desert diamond dragon eagle ember engine falcon feather fern fiddle flame forest fossil fountain garden
garlic ginger glacier granite hammer harbor harvest hazel helmet honey horizon island ivory jacket jasmine kettle ladder
lantern lemon linen lizard lotus magnet maple marble meadow mirror mitten monkey mortar mountain nectar needle nickel noble
oasis olive onion orange orchid otter oyster paddle palace paper parrot pebble pepper piano pillow pine planet plum pocket
pollen poppy prairie pumpkin purple quartz rabbit raven ribbon river robin rocket saddle saffron salmon sandal satin scarlet
shadow silver spider spruce squirrel stable stone summer sunset tablet temple thistle thunder tiger timber tulip tunnel
turtle valley velvet violet walnut willow window winter yellow zebra""".split()
HELD_OUT_WORDS = WORDS[::3]
TRAINING_WORDS = [word for word in WORDS if word not in HELD_OUT_WORDS]

# (name of the function, operator, a wrong operator, what the function returns)
FUNCTIONS = [
    ("add", "+", "-", "the sum of a and b"),
    ("subtract", "-", "+", "a minus b"),
    ("multiply", "*", "+", "a times b"),
    ("larger", ">", "<", "whether a is greater than b"),
    ("equal", "==", "!=", "whether a and b are equal"),
]


@dataclass(frozen=True)
class Step:
    """One step of an expert: read(path), write(path, text), replace(path, old, new) or run(command)."""

    verb: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    kind: str
    instruction: str
    files: dict[str, str]
    check: str
    plan: tuple[Step, ...]

    def prepare(self) -> str:
        """A shell command that makes the files."""
        return "\n".join(f"printf %s {shlex.quote(text)} > {shlex.quote(path)}" for path, text in self.files.items()) or "true"


def make_task(seed: int, index: int, is_held_out: bool = False) -> Task:
    rng = random.Random(f"{seed}/{index}")
    return KINDS[index % len(KINDS)](rng, HELD_OUT_WORDS if is_held_out else TRAINING_WORDS)


def _is_text(path: str, text: str) -> str:
    """Checks that a file has the text, with or without a last newline."""
    return f'test "$(cat {shlex.quote(path)})" = {shlex.quote(text)}'


def copy_word(rng: random.Random, words: list[str]) -> Task:
    source, target, secret = rng.sample(words, 3)
    secret = f"{secret}{rng.randint(10, 99)}"
    instruction = rng.choice(
        [
            f"Read {source}.txt and write the word in it to {target}.txt.",
            f"The file {source}.txt has one word. Put the same word into a new file {target}.txt.",
            f"Make a file {target}.txt that has the word from {source}.txt.",
        ]
    )
    plan = (Step("read", (f"{source}.txt",)), Step("write", (f"{target}.txt", secret)))
    return Task("copy", instruction, {f"{source}.txt": f"{secret}\n"}, _is_text(f"{target}.txt", secret), plan)


def change_setting(rng: random.Random, words: list[str]) -> Task:
    name, *keys = rng.sample(words, 4)
    values = {key: rng.randint(100, 999) for key in keys}
    key = rng.choice(keys)
    old, new = values[key], values[key] + rng.randint(1, 90)
    path = f"{name}.conf"
    lines = lambda: "\n".join(f"{k} = {v}" for k, v in values.items())
    before = lines()
    values[key] = new
    instruction = rng.choice(
        [
            f"In {path}, change {key} to {new}. Leave the other lines as they are.",
            f"Set {key} to {new} in {path}, and change nothing else.",
        ]
    )
    plan = (Step("read", (path,)), Step("replace", (path, f"{key} = {old}", f"{key} = {new}")))
    return Task("change", instruction, {path: f"{before}\n"}, _is_text(path, lines()), plan)


def fix_function(rng: random.Random, words: list[str]) -> Task:
    module = rng.choice(words)
    name, right, wrong, meaning = rng.choice(FUNCTIONS)
    path, test = f"{module}.py", f"test_{module}.py"
    code = f"def {name}(a, b):\n    return a {wrong} b\n"
    pairs = [(rng.randint(2, 40), rng.randint(41, 90)), (rng.randint(41, 90), rng.randint(2, 40)), (7, 7)]
    expect = lambda sign: [eval(f"{a} {sign} {b}") for a, b in pairs]
    asserts = "".join(f"assert {name}({a}, {b}) == {value}\n" for (a, b), value in zip(pairs, expect(right)))
    tests = f"from {module} import {name}\n{asserts}print('ok')\n"
    instruction = rng.choice(
        [
            f"{test} fails. The function {name} in {path} should return {meaning}. Fix it, then run python3 {test}.",
            f"Fix the function {name} in {path}: it should return {meaning}. Check it with python3 {test}.",
        ]
    )
    hidden = f"python3 -c {shlex.quote(f'from {module} import {name}; assert [{name}(a, b) for a, b in {pairs}] == {expect(right)}')}"
    plan = (
        Step("read", (path,)),
        Step("replace", (path, f"a {wrong} b", f"a {right} b")),
        Step("run", (f"python3 {test}",)),
    )
    return Task("fix", instruction, {path: code, test: tests}, hidden, plan)


def make_files(rng: random.Random, words: list[str]) -> Task:
    folder, one, other, text, more = rng.sample(words, 5)
    text, more = f"{text} {rng.randint(10, 99)}", f"{more} {rng.randint(10, 99)}"
    instruction = (
        f'Make a folder {folder} with two files: {one}.txt with the text "{text}" and {other}.txt with the text "{more}". '
        f"Then list the folder."
    )
    plan = (
        Step("write", (f"{folder}/{one}.txt", text)),
        Step("write", (f"{folder}/{other}.txt", more)),
        Step("run", (f"ls {folder}",)),
    )
    check = f"{_is_text(f'{folder}/{one}.txt', text)} && {_is_text(f'{folder}/{other}.txt', more)}"
    return Task("make", instruction, {}, check, plan)


KINDS = [copy_word, change_setting, fix_function, make_files]
