"""Turns the JSON files of experiment.py into a Markdown table and an SVG of the reward curves.

    python report.py results/*.json --to docs/results
"""

import argparse
import json
import math
from pathlib import Path

COLOURS = ["#2563eb", "#dc2626", "#16a34a", "#9333ea", "#ea580c", "#0891b2", "#4b5563", "#be185d", "#65a30d"]


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("files", nargs="+", type=Path)
    args.add_argument("--to", type=Path, required=True)
    given = args.parse_args()
    runs = [json.loads(file.read_text()) for file in sorted(given.files)]
    given.to.mkdir(parents=True, exist_ok=True)
    (given.to / "curves.svg").write_text(draw(runs))
    (given.to / "tables.md").write_text("\n\n".join([success_table(runs), step_table(runs), builder_table(runs)]) + "\n")


def rows_of(run: dict, phase: str) -> list[dict]:
    return [row for row in run["log"] if row["phase"] == phase]


def success_table(runs: list[dict]) -> str:
    lines = [
        "| Trained in | Seed | Evaluated in | As it comes | After imitation | After GRPO | p (imitation to GRPO) | p (whole) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        for harness in [run["config"]["harness"], *run["config"]["transfer"]]:
            cells = [next((r for r in rows_of(run, p) if r["harness"] == harness), None) for p in PHASES]
            if None in cells:
                continue
            shown = [f"{cell['success']:.3f} ({cell['successes']:.0f}/{cell['sessions']})" for cell in cells]
            first, middle, last = cells
            lines.append(
                f"| {run['config']['harness']} | {run['config']['seed']} | {harness} | {' | '.join(shown)} "
                f"| {p_value(middle, last):.1e} | {p_value(first, last):.1e} |"
            )
    return "\n".join(lines)


PHASES = ["untrained", "imitation", "grpo-end"]


def p_value(before: dict, after: dict) -> float:
    """Fisher's exact test, one-sided: the probability of at least this many successes after, if nothing had changed."""
    a, b = round(after["successes"]), after["sessions"]
    c, d = round(before["successes"]), before["sessions"]
    total = math.comb(b + d, a + c)
    return sum(math.comb(b, k) * math.comb(d, a + c - k) for k in range(a, min(b, a + c) + 1) if a + c - k <= d) / total


def step_table(runs: list[dict]) -> str:
    lines = [
        "| Trained in | Seed | Steps | Reward, first 3 | Reward, last 3 | Sessions | Trained tokens | Largest difference of a log probability | Sampling, s a step | Update, s a step |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        steps = rows_of(run, "grpo")
        if not steps:
            continue
        mean = lambda values: sum(values) / max(1, len(values))
        rewards = [row["reward"] for row in steps]
        lines.append(
            f"| {run['config']['harness']} | {run['config']['seed']} | {len(steps)} | {mean(rewards[:3]):.3f} | {mean(rewards[-3:]):.3f} "
            f"| {sum(row['sessions'] for row in steps)} | {sum(row.get('tokens', 0) for row in steps):.0f} "
            f"| {max(row.get('difference', 0) for row in steps):.1e} "
            f"| {mean([row['sampling_seconds'] for row in steps]):.1f} | {mean([row['update_seconds'] for row in steps]):.1f} |"
        )
    return "\n".join(lines)


def builder_table(runs: list[dict]) -> str:
    lines = [
        "| Trained in | Seed | Builder | Samples | Tokens | Trained tokens | Gradient, s | Export, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        for row in (each for found in rows_of(run, "builders") for each in found["rows"]):
            lines.append(
                f"| {run['config']['harness']} | {run['config']['seed']} | `{row['builder']}` | {row['samples']} | {row['tokens']} "
                f"| {row['trained_tokens']} | {row['gradient_seconds']:.2f} | {row['export_seconds']:.1f} |"
            )
    return "\n".join(lines)


def draw(runs: list[dict], width: int = 720, height: int = 340) -> str:
    left, right, top, bottom = 48, 150, 16, 40
    count = max((len(rows_of(run, "grpo")) for run in runs), default=1)
    x = lambda step: left + (width - left - right) * step / max(1, count - 1)
    y = lambda value: top + (height - top - bottom) * (1 - value)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for value in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path d="M{left} {y(value):.1f}H{width - right}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    for step in range(0, count, max(1, count // 8)):
        parts.append(f'<text x="{x(step):.1f}" y="{height - bottom + 16}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - 6}" text-anchor="middle">GRPO step</text>')
    parts.append(f'<text x="12" y="{height / 2}" transform="rotate(-90 12 {height / 2})" text-anchor="middle">mean reward</text>')
    for at, run in enumerate(runs):
        colour = COLOURS[at % len(COLOURS)]
        points = " ".join(f"{x(row['step']):.1f},{y(row['reward']):.1f}" for row in rows_of(run, "grpo"))
        name = f"{run['config']['harness']}, seed {run['config']['seed']}"
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<rect x="{width - right + 12}" y="{top + 18 * at}" width="12" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{width - right + 30}" y="{top + 18 * at + 6}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    main()
