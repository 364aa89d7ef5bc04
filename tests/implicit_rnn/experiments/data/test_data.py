"""Data sets: found, fetched, resumed, and refused when they are not what they should be."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments import data
from implicit_rnn.experiments.shakespeare.task import tiny_shakespeare_task

CONTENT = bytes(range(256)) * 700


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one file, by ranges if asked to; remembers what was asked for."""

    asked: list = []  # noqa: RUF012
    content = CONTENT
    ranges = True

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        type(self).asked.append(wanted)
        first = int(wanted.split("=")[1].rstrip("-")) if wanted and self.ranges else 0
        self.send_response(206 if first else 200)
        self.end_headers()
        self.wfile.write(self.content[first:])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[data.File]:
    monkeypatch.delenv("IMPLICIT_RNN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Server.asked, Server.content, Server.ranges = [], CONTENT, True
    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        file = data.File(
            "file.bin",
            f"http://127.0.0.1:{server.server_port}/file.bin",
            hashlib.sha256(CONTENT).hexdigest(),
            len(CONTENT),
        )
        monkeypatch.setitem(data.DATASETS, "small", data.DataSet("a test", "none", (file,)))
        yield file
        server.shutdown()


def cached(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "implicit_rnn" / "small" / "file.bin"


def test_fetching_verifies_and_does_not_fetch_twice(served: data.File, tmp_path: Path, capsys):
    assert main(["data", "fetch", "small"]) == 0
    assert cached(tmp_path).read_bytes() == CONTENT
    assert main(["data", "fetch", "small"]) == 0
    assert len(Server.asked) == 1
    assert main(["data", "verify", "small"]) == 0
    assert "small: a test" in (main(["data", "list", "small"]), capsys.readouterr().out)[1]


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_goes_on(served: data.File, tmp_path: Path, ranges: bool):
    Server.ranges = ranges
    part = cached(tmp_path).with_name("file.bin.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:1000])
    assert main(["data", "fetch", "small"]) == 0
    assert Server.asked == ["bytes=1000-"]
    assert cached(tmp_path).read_bytes() == CONTENT
    assert not part.exists()


def test_a_wrong_file_is_refused(served: data.File, tmp_path: Path, capsys):
    Server.content = CONTENT[:-1] + b"x"
    assert main(["data", "fetch", "small"]) == 1
    assert "refused" in capsys.readouterr().err
    assert not cached(tmp_path).exists()
    assert not cached(tmp_path).with_name("file.bin.part").exists()


def test_a_damaged_file_is_named_and_fetched_again(served: data.File, tmp_path: Path, capsys):
    main(["data", "fetch", "small"])
    cached(tmp_path).write_bytes(CONTENT[:-1] + b"x")
    assert main(["data", "verify", "small"]) == 1
    assert "file.bin is damaged" in capsys.readouterr().out
    assert main(["data", "fetch", "small"]) == 0
    assert cached(tmp_path).read_bytes() == CONTENT


def test_a_damaged_packed_file_is_replaced_by_a_whole_one(
    served: data.File, tmp_path: Path, capsys
):
    packed = cached(tmp_path).with_name("file.bin.gz")
    packed.parent.mkdir(parents=True)
    packed.write_bytes(gzip.compress(CONTENT))
    assert main(["data", "fetch", "small"]) == 0
    assert "file.bin.gz is there" in capsys.readouterr().out
    for damaged in (packed.read_bytes()[:-20], gzip.compress(CONTENT[1:])):
        packed.write_bytes(damaged)
        assert main(["data", "verify", "small"]) == 1
        assert main(["data", "fetch", "small"]) == 0
        assert main(["data", "verify", "small"]) == 0
        assert cached(tmp_path).read_bytes() == CONTENT
        assert not packed.exists()
        cached(tmp_path).unlink()


def test_a_file_of_the_published_size_must_be_the_published_one(served: data.File, tmp_path: Path):
    main(["data", "fetch", "small"])
    assert data.sound("small", "file.bin") == cached(tmp_path)
    cached(tmp_path).write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(data.DataError, match=r"file.bin is damaged"):
        data.sound("small", "file.bin")
    cached(tmp_path).write_bytes(CONTENT[:100])  # for the reader to judge
    assert data.sound("small", "file.bin") == cached(tmp_path)


def test_files_without_an_address_do_not_stop_the_others(served, monkeypatch, tmp_path, capsys):
    private = served._replace(path="private.bin", url=None)
    half = data.DataSet("a test", "none", (private, served), "a friend's")
    for name in [*data.DATASETS]:
        if name != "small":
            monkeypatch.delitem(data.DATASETS, name)
    monkeypatch.setitem(data.DATASETS, "half", half)
    assert main(["data", "fetch"]) == 0
    told = capsys.readouterr().err
    assert "half: no public address gives private.bin (a friend's); to be put into" in told
    assert cached(tmp_path).exists()
    assert (data.folders()[-1] / "half" / "file.bin").exists()
    assert main(["data", "fetch", "half"]) == 1
    assert "private.bin" in capsys.readouterr().err


def test_a_missing_set_says_how_to_get_it(served: data.File, capsys):
    with pytest.raises(data.DataError, match=r"data fetch small.*IMPLICIT_RNN_DATA"):
        data.find("small", "file.bin")
    assert main(["data", "fetch", "smal"]) == 1
    assert "unknown data set 'smal'" in capsys.readouterr().err


def test_shakespeare_is_as_published():
    try:
        data.find("tiny_shakespeare", "input.txt")
    except data.DataError as error:
        pytest.skip(str(error))
    assert main(["data", "verify", "tiny_shakespeare"]) == 0
    task = tiny_shakespeare_task(window=50)
    assert sum(len(part) for part in task.details["text"].values()) == 1_115_394
    assert task.sizes == {"vocabulary": 65}
