"""Tables of experiments: rows, repetitions, the paper's numbers."""

import json
import math

import pytest

from implicit_rnn.experiments import report, runs
from implicit_rnn.experiments.runs import MARK
from implicit_rnn.training import FolderError


def write(folder, runs, paper=()):
    """An experiment folder out of `name -> (label, test error)`."""
    labels = {name: label for name, (label, _) in runs.items()}
    folder.joinpath(MARK).write_text(
        json.dumps({"title": "t", "runs": labels, "paper": list(paper)})
    )
    for name, (_, error) in runs.items():
        if error is None:
            continue
        result = {
            "test": {"error": error, "loss": 9.0}, "config": {"model": {"rule": "rbp"}},
            "parameters": 10, "updates": 5, "skipped": 0, "seconds": 2.0,
            "forward_steps": [1.0, 2.0], "backward_steps": [3.0, 4.0], "converged": 1.0,
        }  # fmt: skip
        (folder / name).mkdir()
        (folder / name / "result.json").write_text(json.dumps(result))


def test_runs_that_differ_in_seeds_share_a_row(tmp_path):
    found = {
        f"{variant}-{seed}": ({"variant": variant, "training.seed": seed}, error)
        for variant, errors in {"a": (0.1, 0.2, 0.3), "b": (0.5, None, None)}.items()
        for seed, error in enumerate(errors)
    }
    write(tmp_path, found)
    first, second = report.results(tmp_path)
    assert first["variant"] == "a"
    assert first["seeds"] == 3
    assert first["test error"] == pytest.approx(0.2)
    assert first["spread"] == pytest.approx(0.1)  # of a sample
    assert "training.seed" not in first
    assert second["test error"] == 0.5
    assert "spread" not in second  # one run has none
    assert first["forward steps"] == "1.0-2.0"
    assert "| 0.2000 | 0.1000 | 3 |" in report.markdown([first])


def test_figures_call_runs_by_what_tells_them_apart(tmp_path):
    labels = {
        f"{rule}-{steps}-{seed}": {
            "variant": rule,
            "model.truncation": steps,
            "model.cell": "gru",
            "training.seed": seed,
        }
        for rule in "ab"
        for steps in (1, 2)
        for seed in (0, 1)
    }
    write(tmp_path, {name: (label, 0.5) for name, label in labels.items()})
    groups = runs.repetitions([tmp_path / name for name in labels])
    assert list(groups) == [f"{r}, truncation {n}, gru" for r in "ab" for n in (1, 2)]
    assert [folder.name for folder in groups["b, truncation 2, gru"]] == ["b-2-0", "b-2-1"]


def test_a_row_shows_what_all_its_seeds_were_judged_by(tmp_path):
    write(tmp_path, {f"a-{s}": ({"variant": "a", "training.seed": s}, 0.1 * s) for s in range(2)})
    path = tmp_path / "a-0" / "result.json"
    judged = json.loads(path.read_text())
    judged["translations"] = [
        {"split": "test", "beam": 4, "average": 0, "length_penalty": 0.6, "bleu": 20.0}
    ]
    path.write_text(json.dumps(judged))
    (row,) = report.results(tmp_path)
    assert row["seeds"] == 2
    assert not [key for key in row if key.startswith("BLEU")]


def test_a_record_keeps_earlier_runs_only_of_the_same_experiment(tmp_path):
    label = {"variant": "a"}
    early, late, path = tmp_path / "early", tmp_path / "late", tmp_path / "record.json"
    seeds = {f"seed={seed}-a": label | {"training.seed": seed} for seed in range(3)}
    for folder, errors in ((early, (0.1, 0.2, None)), (late, (None, 0.4, 0.3))):
        folder.mkdir()
        write(
            folder,
            {name: (own, error) for (name, own), error in zip(seeds.items(), errors, strict=True)},
        )
    report.record(early, path)
    report.record(late, path, add=True)
    kept = json.loads(path.read_text())
    assert list(kept["runs"]) == list(seeds)
    assert [run["test"]["error"] for run in kept["runs"].values()] == [0.1, 0.4, 0.3]
    assert [row["seeds"] for row in kept["rows"]] == [3]
    report.record(late, path)
    assert len(json.loads(path.read_text())["runs"]) == 2  # without `add` the folder is all
    other = tmp_path / "other"
    other.mkdir()
    write(other, {"b": (label, 0.5)})
    with pytest.raises(FolderError, match=r"another experiment.*seed=1-a"):
        report.record(other, path, add=True)


def test_paper_numbers_stand_beside_the_runs_they_belong_to(tmp_path):
    paper = [
        {"variant": "a", "task.bias": 1.0, "error": 0.7},
        {"variant": "b", "model.rule": "rbp", "error": 0.6},  # told by the configuration
    ]
    write(
        tmp_path,
        {
            "1-a": ({"task.bias": 1.0, "variant": "a"}, 0.1),
            "2-a": ({"task.bias": 2.0}, 0.1),
            "b": ({"variant": "b"}, 0.1),
        },
        paper,
    )
    assert [row.get("paper's error") for row in report.results(tmp_path)] == [0.7, None, 0.6]


def test_exact_matches_come_with_perplexity_and_parts_of_the_test_set(tmp_path):
    write(tmp_path, {"one": ({}, 0.5)})
    path = tmp_path / "one" / "result.json"
    result = json.loads(path.read_text())
    test = {"exact": 0.25, "error": 0.5, "loss": 2.0}
    path.write_text(json.dumps(result | {"test": test, "parts": {"7": {"exact": 0.125}}}))
    (row,) = report.results(tmp_path)
    assert list(row)[:3] == ["test exact", "test perplexity", "exact 7"]
    assert row["test exact"] == 0.25
    assert row["test perplexity"] == pytest.approx(math.exp(2))
    assert row["exact 7"] == 0.125


@pytest.mark.parametrize(
    ("name", "values", "late"),
    [("error", [0.5, 0.4, 0.3, 0.2, 0.15], "-0.0500"),
     ("error", [0.5, 0.2, 0.3, 0.3, 0.3], "0"),
     ("exact", [0.1, 0.4, 0.3, 0.5, 0.75], "+0.2500"),
     ("error", [0.5, 0.4, 0.3], None),  # too few to tell
     ("error", [0.5, 0.4, None, 0.2, 0.1], None)],
)  # fmt: skip
def test_a_row_tells_what_the_end_of_a_training_still_changed(tmp_path, name, values, late):
    write(tmp_path, {"one": ({}, 0.5)})
    lines = [
        json.dumps({"update": 100 * (number + 1), "seconds": 1.0, f"valid_{name}": value})
        for number, value in enumerate(values)
    ]
    (tmp_path / "one" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (row,) = report.results(tmp_path)
    assert (report.cell(report.LATE, row[report.LATE]) if report.LATE in row else None) == late


def test_what_is_not_finite_is_shown_and_ends_nothing(tmp_path):
    write(tmp_path, {"a-0": ({"variant": "a", "seed": 0}, 0.5), "a-1": ({"variant": "a"}, 0.5)})
    for name, test in {
        "a-0": {"exact": None, "loss": None},  # NaN, as JSON keeps it
        "a-1": {"exact": 0.5, "loss": 1e5},  # whose perplexity is beyond any number
    }.items():
        path = tmp_path / name / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"test": test}))
    (row,) = report.results(tmp_path)
    assert math.isnan(row["test exact"])
    assert math.isnan(row["spread"])
    rows = report.run_rows(tmp_path)
    assert rows["a-1"]["metric"]["test perplexity"] == math.inf
    assert "nan" in report.markdown([row])


@pytest.mark.parametrize(
    "odd",
    [{"test": 3}, {"test": {"error": []}}, {"config": []}, {"parameters": "x"}, {"seconds": None},
     {"verdict": 3}, {"verdict": {"x": "y"}}, {"translations": {}}],
)  # fmt: skip
def test_a_result_that_is_none_is_refused(tmp_path, odd):
    write(tmp_path, {"one": ({}, 0.5)})
    path = tmp_path / "one" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | odd))
    with pytest.raises(FolderError, match=r"result\.json is damaged: its"):
        report.results(tmp_path)
