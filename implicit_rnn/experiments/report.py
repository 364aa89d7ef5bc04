"""Tables of experiments: what their runs came to, beside the paper's numbers."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from implicit_rnn.experiments.config import look_up
from implicit_rnn.experiments.runs import experiment, outcome
from implicit_rnn.training import files
from implicit_rnn.training import folder as folders

_LARGEST_EXPONENT = 700  # in double precision
_USUAL_PENALTY = 0.6  # of long translations
METRICS = ("exact", "bits", "nll", "error", "loss")  # the first that a model has is the one to show
LATE = "validation, last fifth"


def tabulate(output: Path, console: Console) -> list[dict[str, Any]]:
    """Prints and writes the table of an experiment as it is now; returns its rows."""
    title, rows = experiment(output)["title"], results(output)
    console.print(table(title, rows))
    files.write_json(output / "table.json", {"title": title, "rows": rows})
    return rows


def results(output: Path) -> list[dict[str, Any]]:
    """A row for every finished run of an experiment: labels, metrics, cost, the paper's numbers.

    Runs that differ in nothing but seeds share a row: means, and the spread of the metric.
    """
    return _grouped(run_rows(output))


def run_rows(output: Path) -> dict[str, dict[str, Any]]:
    """By the name of each finished run: its `label`, its `metric` by name, and its `cost`.

    Also the `paper` numbers that belong beside them.
    """
    mark = experiment(output)
    return _rows(mark, _finished(mark, output))


def _finished(mark: dict[str, Any], output: Path) -> dict[str, dict[str, Any]]:
    """What every finished run says of itself, and the curve of its evaluations, by name."""
    finished = [name for name in mark["runs"] if (output / name / "result.json").exists()]
    return {name: outcome(output / name) | _curve(output / name) for name in finished}


def _rows(mark: dict[str, Any], results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    rows = {}
    for name, result in results.items():
        label = mark["runs"][name]
        cost: dict[str, Any] = {}
        if "forward_steps" in result:
            for way in ("forward", "backward"):
                cost[f"{way} first"], cost[f"{way} last"] = result[f"{way}_steps"]
            cost["converged"] = result["converged"]
        cost |= {key: result[key] for key in ("parameters", "updates", "skipped", "seconds")}
        cost |= _late(result.get("curve", {}))
        rows[name] = {
            "label": label,
            "metric": _shown(result),
            "paper": _beside(mark["paper"], label, result["config"]),
            "cost": cost,
        }
    return rows


def _grouped(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows.values():
        groups.setdefault(json.dumps(_without_seeds(row["label"])), []).append(row)
    return [_merged(members) for members in groups.values()]


def _shown(result: dict[str, Any]) -> dict[str, float]:
    """The metric of the test set, that of parts of it, what goes with it, the task's verdict.

    Of what has been translated, BLEU and perplexity.
    """
    test = result["test"]
    if "translations" in result:
        scores = {_searched(record): record["bleu"] for record in result["translations"]}
        return scores | {"test perplexity": _perplexity(test["loss"])}
    for key in [key for key in METRICS if key in test][:1]:
        beside = {"test perplexity": _perplexity(test["loss"])} if key == "exact" else {}
        beside |= {"test F1": test["f1"]} if "f1" in test else {}
        beside |= {
            _searched(record, "exact"): record["exact"] for record in result.get("searched", [])
        }
        parts = {f"{key} {name}": part[key] for name, part in result.get("parts", {}).items()}
        return {f"test {key}": test[key]} | beside | parts | result.get("verdict", {})
    return {}


def _perplexity(loss: float | None) -> float:
    """Of a loss in nats; one that is not known, or too large to raise, has none that is finite."""
    if loss is None:
        return math.nan
    return math.exp(loss) if loss < _LARGEST_EXPONENT else math.inf


def _mean(values: Sequence[float | None]) -> float:
    """The mean; NaN if a value is not finite, which JSON keeps as null."""
    return statistics.fmean(math.nan if value is None else value for value in values)


def _searched(record: dict[str, Any], metric: str = "BLEU") -> str:
    """`BLEU test, beam 4, mean of 5`; a length penalty only where it is not the usual one."""
    words = [f"{metric} {record['split']}", f"beam {record['beam']}"]
    if record["average"] > 1:
        words.append(f"mean of {record['average']}")
    if record["length_penalty"] != _USUAL_PENALTY:
        words.append(f"penalty {record['length_penalty']:g}")
    return ", ".join(words)


def _beside(paper: list[dict[str, Any]], label: dict[str, Any], config: dict) -> dict[str, float]:
    """The paper's numbers whose labels, or keys of the configuration, are those of a run."""
    found: dict[str, float] = {}
    for entry in paper:
        numbers = {k: v for k, v in entry.items() if k != "variant" and "." not in k}
        where = {k: v for k, v in entry.items() if k not in numbers}
        if all(label.get(k, look_up(config, k)) == v for k, v in where.items()):
            found |= {f"paper's {key}": value for key, value in numbers.items()}
    return found


def _without_seeds(label: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in label.items() if key.rsplit(".", 1)[-1] != "seed"}


def _merged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the table out of those of one run, or of its repetitions."""
    row = _without_seeds(rows[0]["label"])
    # What some of the repetitions have not been judged by is no column of all.
    shared = [key for key in rows[0]["metric"] if all(key in other["metric"] for other in rows)]
    for number, key in enumerate(shared):
        values = [other["metric"][key] for other in rows]
        row[key] = _mean(values)
        if len(rows) > 1 and not number:
            finite = math.isfinite(row[key])
            row["spread"] = statistics.stdev(values) if finite else math.nan
    if len(rows) > 1:
        row["seeds"] = len(rows)
    known = [key for key in rows[0]["cost"] if all(key in other["cost"] for other in rows)]
    cost: dict[str, Any] = {key: _mean([other["cost"][key] for other in rows]) for key in known}
    for way in ("forward", "backward"):
        if f"{way} first" in cost:
            cost[f"{way} steps"] = f"{cost.pop(f'{way} first'):.1f}-{cost.pop(f'{way} last'):.1f}"
    row |= rows[0]["paper"]
    row |= {key: cost[key] for key in sorted(cost, key=_COSTS.index)}
    for key in ("parameters", "updates", "skipped", "seconds"):
        row[key] = round(row[key])
    if not row["skipped"]:
        del row["skipped"]
    return row


_COSTS = [
    LATE, "forward steps", "backward steps", "converged", "parameters", "updates", "skipped",
    "seconds",
]  # fmt: skip


def record(output: Path, path: Path, *, add: bool = False) -> str:
    """Collects an experiment in one JSON file: the table, and what every run says of itself.

    Args:
      output: the folder of the experiment.
      path: the file to write.
      add: keep the runs of the experiment that the file has and the folder has not.

    Returns:
      The table as Markdown.
    """
    mark = experiment(output)
    runs = _finished(mark, output)
    if not runs:
        raise folders.FolderError(f"no run of {output} has finished")
    if add and path.exists():
        kept = files.read_sealed(path).get("runs", {})
        if not isinstance(kept, dict):
            raise folders.FolderError(f"{path} is damaged: its runs are {kept!r:.40}")
        strange = [name for name in kept if name not in mark["runs"]]
        if strange:
            raise folders.FolderError(
                f"{path} is that of another experiment: {output} has no run {', '.join(strange)}"
            )
        runs = {name: (kept | runs)[name] for name in mark["runs"] if name in kept or name in runs}
    rows = _grouped(_rows(mark, runs))
    labels = {name: mark["runs"][name] for name in runs}
    content = {"title": mark["title"], "rows": rows, "labels": labels, "runs": runs}
    files.write_json(path, content)
    return markdown(rows)


def _curve(folder: Path) -> dict[str, Any]:
    """What a run's evaluations gave: `update`, `seconds`, and `valid_` of its metric."""
    lines = folders.Records(folder / "metrics.jsonl").read()
    for key in [f"valid_{metric}" for metric in METRICS]:
        names = ("update", "seconds", key)
        found = [line for line in lines if all(name in line for name in names)]
        if found:
            return {"curve": {name: [line[name] for line in found] for name in names}}
    return {}


def _late(curve: dict[str, list[float]]) -> dict[str, float]:
    """What the last fifth of a training still changed in the best value of the validation metric.

    Zero where it had levelled off; none where fewer than five evaluations tell.
    """
    for name, values in curve.items():
        if name.startswith("valid_") and len(values) >= 5 and None not in values:
            best = max if name == "valid_exact" else min
            until = 0.8 * curve["update"][-1]
            early = [v for u, v in zip(curve["update"], values, strict=True) if u <= until]
            return {LATE: best(values) - best(early)} if early else {}
    return {}


def printer() -> Console:
    """A terminal that does not fold tables where the output is a file, nor reads text as markup."""
    found = Console(highlight=False, markup=False, emoji=False)
    if found.is_terminal:
        return found
    return Console(highlight=False, markup=False, emoji=False, width=140)


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Rows as a table, one column a key."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    shown = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        words = all(isinstance(row.get(column, ""), str) for row in rows)
        shown.add_column(column, justify="left" if words else "right")
    for row in rows:
        shown.add_row(*[cell(column, row.get(column)) for column in columns])
    return shown


def markdown(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(cell(key, row.get(key)) for key in columns) + " |")
    return "\n".join(lines) + "\n"


def cell(column: str, value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return ""
    if column == "converged":
        return f"{value:.2%}"
    if column == LATE:
        return f"{value:+.4f}" if value else "0"
    if isinstance(value, float):
        exact = any(word in column for word in ("error", "loss", "nll", "spread"))
        return f"{value:.4f}" if exact else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
