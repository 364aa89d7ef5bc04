"""What the command says about bad input, bad folders and bad servers: one sentence each.

Every case runs the real command in a child process; cases that end before a program is compiled
share one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from implicit_rnn.experiments.config import load as resolved
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.training.tables import dump
from tests.faults.child import run, several
from tests.implicit_rnn.experiments.problems import CONTENT

SETTINGS = {
    "optimiser.rate=nan": "optimiser.rate must be a finite number, got nan",
    "task.bias=nan": "task.bias must be a finite number, got nan",
    "task.bias=-inf": "task.bias must be a finite number, got -inf",
    "solver.rtol=nan": "solver.rtol must be a finite number, got nan",
    "solver.rtol=-1": "solver.rtol must be positive, got -1",
    "optimiser.momentum=1.5": "optimiser.momentum must be at least 0 and below 1, got 1.5",
    "training.seed=-1": "training.seed must be at least 0",
    "training.updates=99999999999": "training.updates must be at most",
    "model.hidden=-4": "model.hidden must be at least 1, got -4",
    "model.hidden=0": "model.hidden must be at least 1, got 0",
    "model.layers=0": "model.layers must be at least 1, got 0",
    "model.feature_dropout=1.0": "model.feature_dropout must be at least 0 and below 1, got 1.0",
    "model.hidden=1000000000": "model.hidden must be at most 1e+06 in size, got 1000000000",
    "solver.backward=2.5": "solver.backward: an integer or a string wanted, got 2.5",
    "task.dimension=0": "task.dimension must be at least 1, got 0",
    "task.valid=0": "task.valid must be at least 1, got 0",
    "task.max_length=0": "task.max_length must be at least 1, got 0",
    "task=3": "'task' is not of the form table.key",
}
TABLES = {
    "[variants]\nx = 3\n": "variants.x: a table wanted, got 3",
    "profiles = 3\n": "profiles: a table wanted, got 3",
    "grid = 3\n": "grid: a table wanted, got 3",
    "paper = 3\n": "paper: a list of tables wanted, got 3",
    "title = 3\n": "title: a string wanted, got 3",
    'solver = "fast"\n': "solver: a table wanted, got 'fast'",
    "[grid]\n'task.bias' = []\n": "grid.task.bias: a list of values wanted, got []",
    '[variants."../../evil"]\n': "run '../../evil' is no name",
    '[variants."a/b"]\n': "run 'a/b' is no name",
    '[variants.".."]\n': "run '..' is no name",
    "[variants.plots]\n": "'plots' is what a file of the results is called",
    "[grid]\n'model.encoder' = ['../gru']\n": "run 'encoder=../gru' is no name",
    "[grid]\n'task.bias' = [1.0, 1.0]\n": "two runs are called 'bias=1.0'",
    "x = " + "[" * 5000 + "]" * 5000 + "\n": "nested too deeply",
}


def test_a_wrong_configuration_is_refused_in_a_sentence(tmp_path: Path) -> None:
    good, output = tmp_path / "good.toml", tmp_path / "deep" / "er" / "out"
    good.write_text(dump(CONTENT))
    train = ["train", good, "--output", output]
    commands = [[*train, "--set", setting] for setting in SETTINGS]
    for number, text in enumerate(TABLES):
        path = tmp_path / f"{number}.toml"
        # Keys first: what follows a table's head is that table's.
        parts = [text, dump(CONTENT)] if not text.startswith("[") else [dump(CONTENT), text]
        path.write_text("\n".join(parts))
        commands.append(["train", path, "--output", output])
    others = {
        "a single run, without a name: leave out --only": [*train, "--only", "zzz"],
        "is a file: name a folder": ["train", good, "--output", good],
        "is no run folder": ["evaluate", tmp_path, "--average", "50"],
        # Numbers that do not fit together are found when the task is made.
        "min_length must be at most max_length, got 7 and 6": [
            *["train", good, "--output", tmp_path / "begun"],
            "--set",
            "task.min_length=7",
        ],
    }
    ended = several(*commands, *others.values())
    for found, message in zip(ended, [*SETTINGS.values(), *TABLES.values(), *others], strict=True):
        assert found.code == 1, (message, found)
        assert message in found.sentence
        assert not found.out
    # What an editor of another system put before the first word is no error.
    (tmp_path / "long.toml").write_bytes(b"#" * 10_000_001)
    with pytest.raises(ConfigError, match=r"long\.toml has more than 10,000,000 bytes"):
        resolved(tmp_path / "long.toml")
    (marked := tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbf" + dump(CONTENT).encode())
    assert resolved(marked).runs
    # Nothing was written, neither where it should have been nor anywhere else.
    assert not (tmp_path / "deep").exists()
    strange = {path.name for path in tmp_path.iterdir() if path.suffix != ".toml"}
    assert strange == {"begun"}


def little_memory() -> None:
    """What a machine says that has room for the program, and for no large network."""
    resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))


def test_a_network_that_no_memory_has_room_for_is_no_hang(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(dump(CONTENT))
    train = ["train", tmp_path / "small.toml", "--output", tmp_path / "run"]
    ended = run(*train, "--set", "model.hidden=1000000", limit=little_memory)
    assert ended.code == 1
    assert "there is not enough memory" in ended.sentence


RESULT = {
    "test": {"error": 0.5}, "config": {}, "parameters": 10, "updates": 5, "skipped": 0,
    "seconds": 2.0,
}  # fmt: skip
LINES = [b'{"update": 5, "valid_error": 0.5, "seconds": 1}\n', b'{"update": 7, "valid_error": 1}\n']


def test_odd_folders_are_refused_or_told_in_a_sentence(tmp_path: Path) -> None:
    """Folders that nothing was trained in: their files were written, or damaged, by hand."""
    whole = {
        "config.toml": dump(CONTENT).encode(),
        "experiment.json": json.dumps({"title": "t", "runs": {"": {}}, "paper": []}).encode(),
        "result.json": json.dumps(RESULT).encode(),
        "metrics.jsonl": b"".join(LINES),
    }

    def folder(name: str, **changes: bytes | None) -> Path:
        (tmp_path / name).mkdir()
        files = whole | {key.replace("_", "."): value for key, value in changes.items()}
        for file, content in files.items():
            if content is not None:
                (tmp_path / name / file).write_bytes(content)
        return tmp_path / name

    (tmp_path / "record.json").write_text('{"runs": 3}')
    (tmp_path / "a-folder.json").mkdir()
    good = folder("good")
    record = ["record", good, "--output"]
    refused: dict[str, list[str | Path]] = {
        "record.json is damaged: its runs are 3": [*record, tmp_path / "record.json", "--add"],
        "Is a directory: " + str(tmp_path / "a-folder.json"): [*record, tmp_path / "a-folder.json"],
        "result.json is damaged: its test is 3": [
            *["report", folder("test", result_json=json.dumps(RESULT | {"test": 3}).encode())]
        ],
        "run.json is damaged: it holds no list": ["report", folder("run", run_json=b"{}")],
        "result.json is damaged: it must hold": ["plot", folder("list", result_json=b"[1]")],
        "has no run that can be evaluated": ["evaluate", folder("none", config_toml=None)],
        "odd.json is no recorded experiment (AttributeError": ["plot", tmp_path / "odd.json"],
        "bad.json is damaged: it is not JSON": ["plot", tmp_path / "bad.json"],
        "is a file: name a folder": ["demo", "--output", good / "config.toml"],
        "what comes before .toml '..' is no name": ["train", tmp_path / "...toml"],
    }
    (tmp_path / "odd.json").write_text('{"runs": {"a": 3}, "labels": {"a": 3}, "title": 3}')
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "...toml").write_text(dump(CONTENT))
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "title.toml").write_text("title = 3\nprofiles = 3")
    (tmp_path / "configs" / "bad.toml").write_bytes(b"\xff")
    damaged = folder("bad", metrics_jsonl=b"[1]\n".join(LINES))
    told = [["plot", damaged], ["list"], ["demo", "--seed", str(10**30)]]
    ended = several(*refused.values(), *told, before=f"import os; os.chdir({str(tmp_path)!r})")
    for found, message in zip(ended, refused, strict=False):
        *before, last = found.err.splitlines()
        assert found.code == 1, (message, found)
        assert last.startswith("implicit-rnn: ")
        assert message in last
        assert all("left out: " in line for line in before)
    plotted, listed, demo = ended[len(refused) :]
    assert plotted.code == 0, plotted
    assert "metrics.jsonl is damaged (line 2 cannot be read): figures show" in plotted.err
    assert listed.code == 0, listed
    assert "cannot be read: " in " ".join(listed.out.split())
    assert demo.code == 2
    assert "must be at most 2147483647" in demo.err


def test_an_output_that_cannot_take_the_words_is_no_traceback(tmp_path: Path) -> None:
    closed = run("list", limit=lambda: os.close(1))
    assert (closed.code, closed.err) == (0, "")
    with open("/dev/full", "w") as full:
        ended = run("list", limit=lambda: os.dup2(full.fileno(), 1))
    assert ended.code == 1
    assert "No space left on device" in ended.sentence
    # A terminal that has no words for what is printed: names that are not its own.
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "na\u00efve.toml").write_text("")
    before = f"import os; os.chdir({str(tmp_path)!r})"
    ended = run("list", before=before, changes={"PYTHONIOENCODING": "ascii"})
    assert ended.code == 1
    assert "set PYTHONIOENCODING=utf-8" in ended.sentence


CONTENTS = bytes(range(256)) * 100
GZIPPED = b"no gzip at all"
ANSWERS = {
    # A chunk that is announced and does not come.
    "cut": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\nshort",
    "status": b"HTTP/1.1 twohundred OK\r\n\r\n",
    "no answer": b"",
    "whole": b"HTTP/1.1 200 OK\r\n\r\n" + CONTENTS,
}


@contextlib.contextmanager
def server() -> Iterator[tuple[str, list[int]]]:
    """Its address, and how many bytes of an answer without end it was asked for."""
    sent: list[int] = []

    class Answers(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            request = self.rfile.readline().decode()
            while self.rfile.readline().strip():
                pass
            name = request.split()[1].strip("/").replace("%20", " ")
            if name != "endless":
                self.wfile.write(ANSWERS[name])
                return
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            with contextlib.suppress(OSError):
                for _ in range(600):
                    self.wfile.write(bytes(100_000))
                    sent.append(100_000)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answers) as found:
        found.daemon_threads = True
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_address[1]}", sent
        found.shutdown()


def test_a_download_that_goes_wrong_ends_in_a_sentence_and_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IMPLICIT_RNN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names, packed = [*ANSWERS, "endless"], tmp_path / "implicit_rnn" / "whole" / "file.bin.gz"
    packed.parent.mkdir(parents=True)
    packed.write_bytes(GZIPPED)
    with server() as (address, sent):
        before = (
            "from implicit_rnn.experiments import data\n"
            f"for name in {names!r}:\n"
            f"    file = data.File('file.bin', {address!r} + '/' + name.replace(' ', '%20'), "
            f"{hashlib.sha256(CONTENTS).hexdigest()!r}, {len(CONTENTS)})\n"
            "    data.DATASETS[name] = data.DataSet('a test', 'none', (file,))\n"
        )
        ended = several(
            *[["data", "fetch", name] for name in names],
            ["data", "verify", "whole"],
            before=before,
        )
    told = dict(zip(names, ended, strict=False))
    assert "what has arrived is kept" in told["cut"].sentence
    assert "fetch again" in told["status"].sentence
    assert "fetch again" in told["no answer"].sentence
    assert f"gives more than the {len(CONTENTS):,} bytes" in told["endless"].sentence
    assert sum(sent) < 20_000_000  # what the system buffers on its way, and no more
    # The damaged file that lay there gzipped is replaced by a whole one.
    assert told["whole"].code == ended[-1].code == 0, ended
    assert "good" in ended[-1].out
    assert not packed.exists()


# A signal that comes while Python is in a callback, which drops what is raised in it.
DROPPED = """
import gc, os, signal, time
from implicit_rnn.experiments import commands
def slow(options, fired=[]):
    def callback(phase, info):
        if not fired:
            fired.append(True)
            os.kill(os.getpid(), signal.{name})
            sum(range(1000))
    gc.callbacks.append(callback)
    gc.collect()
    print("dropped", flush=True)
    time.sleep(60)
commands.list_all = slow
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_that_a_callback_drops_comes_again(name: str, code: int) -> None:
    ended = run("list", before=DROPPED.format(name=name))
    assert ended.code == code
    assert ended.sentence == f"implicit-rnn: ended by {name}"
    assert "dropped" in ended.out
