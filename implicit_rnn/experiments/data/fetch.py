"""Data sets listed, fetched and verified: what `implicit-rnn data` does.

The downloads are our own. `pooch` compares checksums as well, but it begins anew after a connection
that was cut, where one of some hundred megabytes should go on, and takes whatever a server sends
before it looks at it, where more than the size that is known should end the download.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from implicit_rnn.experiments.data.catalogue import DATASETS, File
from implicit_rnn.experiments.data.files import BLOCK, DataError, find, folders, verify

# A connection that fails, times out or is cut, and an answer that is none.
_CUT = (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException)


def fetch(file: File, path: Path) -> None:
    """Downloads a file, going on with what an earlier attempt has left; refuses a wrong one.

    Args:
      file: one with an address.
      path: where it goes.
    """
    assert file.url is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    if have >= file.size:
        part.unlink()
        have = 0
    request = urllib.request.Request(file.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            # A server that does not know ranges sends the whole file.
            goes_on = have > 0 and answer.status == 206
            with open(part, "ab" if goes_on else "wb") as out:
                left = file.size - have if goes_on else file.size
                while left >= 0 and (block := answer.read(min(BLOCK, left + 1))):
                    out.write(block)
                    left -= len(block)
    except _CUT as error:
        if getattr(error, "code", 0) == 416:  # what is there goes beyond the file: begin anew
            part.unlink(missing_ok=True)
        words = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{file.url}: {words}; what has arrived is kept, fetch again") from None
    if left < 0:
        part.unlink()
        raise DataError(f"{file.url} gives more than the {file.size:,} bytes expected: refused")
    if part.stat().st_size < file.size:
        raise DataError(f"{file.url} ended early; what has arrived is kept, fetch again")
    try:
        verify(part, file)
    except DataError:
        part.unlink()
        raise DataError(
            f"{file.url} did not give the file with checksum {file.sha256[:12]}...: refused"
        ) from None
    os.replace(part, path)


def show(names: Sequence[str]) -> int:
    """Prints the data sets and where they are."""
    for name in _chosen(names):
        data = DATASETS[name]
        size = sum(file.size for file in data.files)
        print(f"{name}: {data.what}; {size / 1e6:.1f} MB; {data.licence}; {_place(name)}")
    return 0


def fetch_all(names: Sequence[str]) -> int:
    """Fetches what is missing into the user's cache.

    Files without an address are named, and the others fetched; 1 if a set that was asked for lacks
    such a file.
    """
    lacking = False
    for name in _chosen(names):
        nowhere = []
        for file in DATASETS[name].files:
            path = folders()[-1] / name / file.path
            with contextlib.suppress(DataError):
                path = find(name, file.path)  # a damaged one is replaced where it is
                verify(path, file)
                print(f"{path} is there")
                continue
            if file.url is None:
                nowhere.append(file.path)
                continue
            packed = path  # perhaps a damaged one that lies there gzipped
            path = path.with_name(Path(file.path).name)
            print(f"fetching {file.url}")
            fetch(file, path)
            if packed != path:
                packed.unlink()
            print(f"wrote {path}")
        if nowhere:
            print(
                f"{name}: no public address gives {', '.join(nowhere)} "
                f"({DATASETS[name].source}); to be put into {folders()[-1] / name}",
                file=sys.stderr,
            )
            lacking = True
    return int(lacking and bool(names))


def verify_all(names: Sequence[str]) -> int:
    """Compares files with their checksums; 1 if one is missing or damaged."""
    bad = 0
    for name in _chosen(names):
        for file in DATASETS[name].files:
            try:
                path = find(name, file.path)
                verify(path, file)
                print(f"{path}: good")
            except DataError as error:
                print(error)
                bad = 1
    return bad


def _chosen(names: Sequence[str]) -> list[str]:
    unknown = [name for name in names if name not in DATASETS]
    if unknown:
        raise DataError(f"unknown data set {unknown[0]!r}; there are {', '.join(DATASETS)}")
    return list(names) or list(DATASETS)


def _place(name: str) -> str:
    try:
        return f"in {find(name, DATASETS[name].files[0].path).parent}"
    except DataError:
        return "not here"
