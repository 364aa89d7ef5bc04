"""The cases of the campaign: what is done to a run, drawn from a seed and a number."""

from __future__ import annotations

import contextlib
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.child import Child, Ended, Forked, end, start, strike
from tests.faults.judge import files, lost, metrics, outcome

SAME, TOLD = "same metrics", "told, kept aside"
REFUSED, EARLY = "one sentence, nothing lost", "ended before it began"
WEIGHTS = {
    "kill": 45, "SIGTERM": 30, "SIGINT": 20, "full disk": 30, "damage": 45, "clock": 10,
    "read only": 10, "two hosts": 10,
}  # fmt: skip

NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "false"}  # it has faults of its own, and says so

# What a wall clock that runs backwards tells a program.
CLOCK = """
import datetime, time
_now, _began = time.time, time.time()
time.time = lambda: 2 * _began - _now() - {jump}
time.time_ns = lambda: int(1e9 * time.time())
class Backwards(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
datetime.datetime = Backwards
"""
# A host whose locks another does not see.
HOST = """
import fcntl, socket
fcntl.flock = lambda file, how: None
socket.gethostname = lambda: {name!r}
"""


class Bench(NamedTuple):
    """What cases are tried on.

    Attributes:
      config: the configuration of the run.
      whole: the folder of one that nothing happened to.
      half: that of one which was ended half-way.
      seconds: how long one takes to begin, with imports.
      share: how long one lasts after it has begun, in units of the time that it took to begin.
      forks: whether commands may be forked from this process, see `Forked`.
    """

    config: Path
    whole: Path
    half: Path
    seconds: float = 0.0
    share: float = 1.0
    forks: bool = False

    def start(self, folder: Path, started: bool = False, **how: Any) -> Child:
        """Begins a run, or goes on where the folder is.

        Args:
          folder: of the run.
          started: as a process of its own from the first instruction on.
          how: as for `child.start`, which then starts it.
        """
        if self.forks and not started and not any(how.values()):
            return Forked(self.train(folder))
        return start(self.train(folder), **how)

    def train(self, folder: Path) -> list[str | Path]:
        """The command, which goes on where the folder is."""
        return ["train", self.config, "--no-figures", "--resume", "--output", folder]

    def same(self, folder: Path) -> bool:
        """Whether a run came to what the whole one came to."""
        try:
            own = metrics(folder), outcome(folder)
        except (OSError, ValueError):  # damaged, and perhaps said to be
            return False
        return own == (metrics(self.whole), outcome(self.whole))


def drawn(seed: int, number: int, disks: bool = True) -> tuple[str, random.Random]:
    """The kind of a case, and what draws the rest of it.

    Args:
      seed, number: of the case.
      disks: whether disks can be mounted here; without, none can be made read-only.
    """
    rng = random.Random(f"{seed} {number}")
    kinds = {kind: weight for kind, weight in WEIGHTS.items() if disks or kind != "read only"}
    return rng.choices([*kinds], [*kinds.values()])[0], rng


def tried(kind: str, bench: Bench, folder: Path, rng: random.Random) -> tuple[str, str]:
    """What became of a case: a verdict, and what was done; anything else is an `AssertionError`."""
    if kind in ("kill", "SIGTERM", "SIGINT"):
        number = {"kill": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}[kind]
        return struck(bench, folder, rng, number)
    return {
        "full disk": full_disk,
        "damage": damage,
        "clock": clock,
        "read only": read_only,
        "two hosts": two_hosts,
    }[kind](bench, folder, rng)


def struck(
    bench: Bench, folder: Path, rng: random.Random, number: signal.Signals
) -> tuple[str, str]:
    """A signal while all is imported, at any moment of the run, or while a checkpoint is written.

    Then the run goes on.
    """
    moment = rng.choice(["starting", "running", "running", "writing"])
    child = bench.start(folder, started=moment == "starting")
    if moment == "writing":
        name = f"{rng.choice([7, 14, 21]):06d}.orbax*"
        there = strike(child, number, lambda: any((folder / "checkpoints").glob(name)))
        what = f"{number.name} while {name} was there"
    elif moment == "starting":
        after = rng.uniform(0, bench.seconds)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(after)
        there, what = strike(child, number, lambda: True), f"{number.name} after {after:.2f} s"
    else:
        what = f"{number.name} {running(bench, child, folder, rng)}"
        there = strike(child, number, lambda: True)
    ended = end(child)
    early = not folder.exists() and "KeyboardInterrupt" in ended.err
    if there and number != signal.SIGKILL and ended.code not in (0, -number) and not early:
        assert ended.code == 128 + number, ended
        assert ended.sentence == f"implicit-rnn: ended by {number.name}"
    assert early or "Traceback" not in ended.err, ended
    goes_on(bench, folder)
    return (EARLY if early or ended.code == -signal.SIGTERM else SAME), what


def running(bench: Bench, child: Child, folder: Path, rng: random.Random) -> str:
    """Waits for a moment of a run: compilation, an update, a checkpoint, an evaluation, its end.

    It is drawn in units of the time that the run took to begin, whatever else the machine does.
    """
    began = time.monotonic()
    while not (folder / "config.toml").exists() and child.poll() is None:
        time.sleep(0.001)
    share = bench.share if isinstance(child, Forked) else 1.0  # imports are a part of beginning
    after = rng.uniform(0, 1.5 * share) * (time.monotonic() - began)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(after)
    return f"{after:.2f} s after it began"


def goes_on(bench: Bench, folder: Path, told: str = "") -> Ended:
    """The run to its end, after which it must be what it would have been."""
    ended = end(bench.start(folder))
    assert ended.code == 0, ended
    assert bench.same(folder), (told, ended)
    return ended


def full_disk(bench: Bench, folder: Path, rng: random.Random) -> tuple[str, str]:
    """A disk of random size; then there is room, and the run goes on.

    Where no disk can be mounted, files may not grow beyond that size.
    """
    size = int(2 ** rng.uniform(2, 10.5))  # kilobytes: from a note to more than a run needs
    with mounted(folder, size) as disk:
        own, how = (disk or folder) / "run", {}
        if disk is None:
            limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1024 * size, 1024 * size))
            how = {"limit": limit, "changes": NO_CACHE}
        ended = end(bench.start(own, **how))
        what = f"{size} kB"
        if ended.code == 0:
            assert bench.same(own)
            return SAME, what
        assert "No space left" in ended.sentence or "File too large" in ended.sentence, ended
        sealed = any((own / "checkpoints").glob("0*.json"))
        if disk is not None:
            remount(disk, f"size={2**16}k")
        ended = goes_on(bench, own)
        assert ("going on from update" in ended.out) == sealed, ended
    return REFUSED, what


def damage(bench: Bench, folder: Path, rng: random.Random) -> tuple[str, str]:
    """One file of a run that is half done, or done, is not what it was; the run goes on."""
    origin = rng.choice([bench.half, bench.half, bench.whole])
    shutil.copytree(origin, folder)
    kinds: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            inside = path.parent.name if path.parent.name.isdigit() else ""
            kind = "checkpoint" if "checkpoints" in path.parts else path.name
            kinds.setdefault(f"{kind}{path.suffix if not inside else ' data'}", []).append(path)
    path = rng.choice(kinds[rng.choice(sorted(kinds))])
    how = rng.choice(["truncated", "flipped", "deleted", "swapped", "replaced"])
    content = path.read_bytes()
    place = rng.randrange(max(len(content), 1))
    if how == "deleted":
        path.unlink()
    elif how == "swapped":
        other = rng.choice([p for p in sorted(folder.rglob("*")) if p.is_file() and p != path])
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
        how = f"swapped with {other.relative_to(folder)}"
    else:
        bad = bytes([content[place] ^ 1 << rng.randrange(8)]) if content else b"\xff"
        junk = rng.choice([b"[1]", b"\xff\xfe", b"null", b"{}", b"\x00" * 100])
        path.write_bytes(
            {
                "truncated": content[:place],
                "flipped": content[:place] + bad + content[place + 1 :],
                "replaced": junk,
            }[how]
        )
    what = f"{origin.name}: {path.relative_to(folder)} {how}"
    before = files(folder)
    ended = end(bench.start(folder))
    if ended.code:
        assert ended.code == 1, (what, ended)
        assert ended.sentence
        gone = lost(before, files(folder))
        assert not gone, (what, gone, ended)
        return REFUSED, what
    if bench.same(folder):
        return SAME, what
    words = ("damaged", "is gone", "is that of another run")
    assert any(word in ended.out for word in words), (what, ended)
    if "takes its place" not in ended.out:
        assert outcome(folder) == outcome(bench.whole), (what, ended)
    gone = [name for name in lost(before, files(folder)) if not name.startswith("checkpoints/")]
    assert not {*gone} - {"run.json", "table.json", "metrics.jsonl"}, (what, gone, ended)
    if "metrics.jsonl" in gone:  # longer than it was
        assert metrics(folder) == metrics(bench.whole), (what, ended)
    return TOLD, what


def clock(bench: Bench, folder: Path, rng: random.Random) -> tuple[str, str]:
    """A clock that runs backwards, and is set back by up to a year; killed once, too."""
    jump = rng.choice([0, 3600, 86400 * 365]) * rng.random()
    before = CLOCK.format(jump=jump)
    child = bench.start(folder, before=before)
    running(bench, child, folder, rng)
    child.kill()
    end(child)
    ended = end(bench.start(folder, before=CLOCK.format(jump=2 * jump)))
    assert ended.code == 0, ended
    assert bench.same(folder), ended
    return SAME, f"back by {jump:.0f} s"


def read_only(bench: Bench, folder: Path, rng: random.Random) -> tuple[str, str]:
    """A disk that can only be read, from a random moment on and from the start; then both again."""
    with mounted(folder, 2**16) as disk:
        assert disk is not None
        own, refused = disk / "run", ("Operation not permitted", "Read-only file system")
        child = bench.start(own)
        when = running(bench, child, own, rng)
        change(disk, "+i")  # a file system with a writer cannot be mounted again as read-only
        ended = end(child)
        change(disk, "-i")
        if ended.code:
            assert ended.code == 1, ended
            assert any(words in ended.sentence for words in refused), ended
        remount(disk, "ro")
        again = end(bench.start(own))
        assert again.code == 1, again
        assert any(words in again.sentence for words in refused), again
        remount(disk, "rw")
        goes_on(bench, own)
        return (REFUSED if ended.code else SAME), when


def two_hosts(bench: Bench, folder: Path, rng: random.Random) -> tuple[str, str]:
    """Two hosts that do not see one another's locks begin in one folder; the later one has it."""
    first = bench.start(folder, before=HOST.format(name="first"))
    when = running(bench, first, folder, rng)
    second = bench.start(folder, before=HOST.format(name="second"))
    both = end(first), end(second)
    codes = sorted(ended.code for ended in both)
    assert codes in ([0, 0], [0, 1]), both
    for ended in both:
        if ended.code:
            assert "taken by another run" in ended.sentence, ended
    assert bench.same(folder), both
    return (REFUSED if 1 in codes else SAME), f"the second {when}"


def mountable() -> bool:
    """Whether disks can be mounted, and made read-only, here."""
    with tempfile.TemporaryDirectory() as folder, mounted(Path(folder) / "try", 64) as disk:
        return disk is not None


@contextlib.contextmanager
def mounted(path: Path, kilobytes: int) -> Iterator[Path | None]:
    """A disk of its own of this size, in memory; None where none can be mounted."""
    path.mkdir(parents=True)
    how = ["-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs"]
    if subprocess.run(["mount", *how, str(path)], capture_output=True).returncode:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def remount(path: Path, how: str) -> None:
    """Mounts a disk again in another way."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(path)], check=True)


def change(path: Path, how: str) -> None:
    """Makes all that is below a folder, and itself, unchangeable, or changeable again."""
    subprocess.run(["chattr", "-R", how, str(path)], capture_output=True)
