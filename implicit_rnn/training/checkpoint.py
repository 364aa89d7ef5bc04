"""Checkpoints: written by orbax in the background, sealed, the best and the last few kept."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from implicit_rnn.training.files import digest, plain, write_json
from implicit_rnn.training.processes import first, wait

_NUMBER = re.compile("[0-9]{6,}")
_ITEM = "state"  # the folder of the arrays within a checkpoint
_BEGUN = ".orbax-checkpoint-tmp"  # what orbax adds to the name of one that it is writing


class CheckpointError(RuntimeError):
    """No checkpoint could be read."""


def _not_of_orbax(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR or "orbax" not in record.pathname


class Checkpoints:
    """Checkpoints of one run: `000500/` with the arrays, `000500.json` with the seal.

    Orbax's manager writes them while training goes on, each under another name at first, and
    removes those that need not be kept; the seal comes last. A checkpoint without a seal does not
    exist, one whose files differ from their checksums is damaged.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = Path(folder).absolute(), keep
        self._manager: Any = None
        self._writing: dict[str, Any] | None = None
        self._scores: dict[int, float | None] = {}

    def save(self, update: int, state: Any, record: Mapping[str, Any]) -> None:
        """Begins to write a state, which may be donated at once; `settle` seals it.

        Args:
          update: the number it goes by.
          state: a pytree of arrays.
          record: anything JSON: `score` (the lower, the better) decides which one is the best.
        """
        self.settle(wait=True)
        try:
            manager = self._opened()
            if first():
                _require_room(self.folder, state)
            wait(f"room for checkpoint {update}")
            if update in manager.all_steps():  # one that could not be read
                if first():
                    self._seal(update).unlink(missing_ok=True)
                manager.delete(update)
            self._writing = {**record, "update": update}
            self._scores[update] = plain(record.get("score"))
            standard = self._orbax.args.StandardSave(state)
            manager.save(update, args=self._orbax.args.Composite(**{_ITEM: standard}), force=True)
        except Exception as error:
            self._fail(update, error)

    def settle(self, wait: bool = False) -> Path | None:
        """Seals the checkpoint that is being written if it is whole; returns its folder.

        Args:
          wait: until it is.
        """
        if self._writing is None or not (wait or not self._manager.is_saving_in_progress()):
            return None
        update = self._writing["update"]
        path = self._path(update)
        try:
            # Not by the manager's own wait, which tells of a signal that ends it by a traceback.
            while self._manager.is_saving_in_progress():
                time.sleep(0.001)
            self._manager.wait_until_finished()  # raises what went wrong
            if first():
                content = self._writing | {"files": _checksums(path)}
                write_json(self._seal(update), {"record": content, "sum": digest(plain(content))})
                for seal in self.folder.glob("*.json"):
                    gone = _NUMBER.fullmatch(seal.stem) and not seal.with_suffix("").exists()
                    if gone and self.record(int(seal.stem)):
                        seal.unlink()  # the manager has removed what it stood for
        except Exception as error:
            self._fail(update, error)
        self._writing = None
        return path

    def close(self) -> None:
        """Waits for the last one; all processes see its seal."""
        self.settle(wait=True)
        if self._manager is not None:
            self._manager.close()
            self._manager = None
        wait("seal of the last checkpoint")

    def _opened(self) -> Any:
        """The manager of what is there; what has no seal is cleared away before it looks."""
        if self._manager is not None:
            return self._manager
        if first():
            self.folder.mkdir(parents=True, exist_ok=True)
            for update in self._unsealed():
                self._remove(update)
        wait("checkpoints to go on from")
        self._scores = {update: self.record(update).get("score") for update in self.updates()}
        kept = self._orbax.checkpoint_managers
        options = self._orbax.CheckpointManagerOptions(
            step_format_fixed_length=6,
            preservation_policy=kept.AnyPreservationPolicy(
                [kept.LatestN(self.keep), _Best(self._scores)]
            ),
            lightweight_initialize=True,
            # One that cannot be made is told at once; made beside, it is waited for.
            async_options=self._orbax.AsyncOptions(create_directories_asynchronously=False),
            save_root_metadata=False,
        )
        self._manager = self._orbax.CheckpointManager(self.folder, options=options)
        return self._manager

    @functools.cached_property
    def _orbax(self) -> Any:
        import orbax.checkpoint  # here: a recipe alone does not wait for it

        # What goes wrong is raised, and told once: not by tracebacks of its threads as well.
        logging.getLogger("absl").addFilter(_not_of_orbax)
        return orbax.checkpoint

    def _fail(self, update: int, error: Exception) -> NoReturn:
        self._writing = None
        if first():
            self._remove(update)  # what there is of it takes room, and is no checkpoint
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"checkpoint {update:06d} cannot be written: {reason}") from error

    def updates(self) -> list[int]:
        """The sealed ones, oldest first."""
        return sorted(
            int(path.stem)
            for path in self.folder.glob("*.json")
            if _NUMBER.fullmatch(path.stem) and path.with_suffix("").is_dir()
        )

    def best(self) -> int | None:
        """The one with the lowest score; the earliest of several."""
        return _lowest({update: self.record(update).get("score") for update in self.updates()})

    def record(self, update: int) -> dict[str, Any]:
        """What was saved with a state; empty if the seal is damaged."""
        try:
            seal = json.loads(self._seal(update).read_text("utf-8"))
            whole = seal["sum"] == digest(seal["record"])
            own = whole and seal["record"]["update"] == update
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return {}
        return seal["record"] if own else {}

    def restore(self, update: int, like: Any) -> Any:
        """The state saved at an update; raises `CheckpointError` if it is damaged."""
        path, record = self._path(update), self.record(update)
        if "files" not in record:
            raise CheckpointError(f"checkpoint {path.name}: its seal {path.name}.json is damaged")
        found = _checksums(path)
        for name, checksum in record["files"].items():
            if found.get(name) != checksum:
                what = "is missing" if name not in found else "is damaged"
                raise CheckpointError(f"checkpoint {path.name}: {name} {what}")
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def shape(leaf: Any) -> jax.ShapeDtypeStruct:
            place = getattr(leaf, "sharding", None) or here
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

        try:
            with self._orbax.StandardCheckpointer() as reader:
                read = reader.restore(path / _ITEM, jax.tree.map(shape, like))
        except (ValueError, OSError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointError(
                f"checkpoint {path.name} does not fit this configuration: {reason}"
            ) from error
        # What is bound to a device, as all that is read, is compiled for anew.
        return jax.tree.map(
            lambda leaf, old: (
                leaf if getattr(old, "committed", True) else jax.device_put(np.asarray(leaf))
            ),
            read,
            like,
        )

    def restore_last(
        self, like: Any, say: Callable[[str], None]
    ) -> tuple[Any, dict[str, Any]] | None:
        """The newest state that can be read, with its record; None if there never was one."""
        self._unsealed()  # what does not belong here is better said before than after training
        return self._first(self.updates()[::-1], like, say)

    def restore_best(
        self, like: Any, say: Callable[[str], None], best: float | None = None
    ) -> tuple[Any, dict[str, Any]] | None:
        """The state with the lowest score that can be read; the newest if none has a score.

        Args:
          like: a state of its shapes.
          say: prints what is wrong with those that are passed over.
          best: the score of the best, if known: it is said if that one is not there any more.
        """
        updates = self.updates()
        scores = {update: self.record(update).get("score") for update in updates}
        scored = [(score, update) for update, score in scores.items() if score is not None]
        others = [update for update in updates[::-1] if scores[update] is None]
        found = self._first([update for _, update in sorted(scored)] + others, like, say)
        if found is not None and best is not None and found[1].get("score") != best:
            say(
                f"{self.folder}: the best state, of score {best:.4g}, is damaged or gone; "
                f"the next best, {found[1]['update']:06d}, takes its place"
            )
        return found

    def restore_several(self, count: int, like: Any) -> list[Any]:
        """The newest states, so many, oldest first; raises `CheckpointError` if one is missing."""
        updates = self.updates()[-count:]
        if len(updates) < count:
            raise CheckpointError(
                f"{self.folder} holds {len(updates)} checkpoints, {count} are wanted: ask for "
                f"fewer, or train with training.keep = {count}"
            )
        return [self.restore(update, like) for update in updates]

    def _first(
        self, updates: list[int], like: Any, say: Callable[[str], None]
    ) -> tuple[Any, dict[str, Any]] | None:
        for update, following in zip(updates, [*updates[1:], None], strict=False):
            try:
                return self.restore(update, like), self.record(update)
            except CheckpointError as error:
                if following is None:
                    raise
                say(f"{error}; falling back to {self._path(following).name}")
        return None

    def _path(self, update: int) -> Path:
        return self.folder / f"{update:06d}"

    def _seal(self, update: int) -> Path:
        return self.folder / f"{update:06d}.json"

    def _unsealed(self) -> set[int]:
        """Those that a save which did not end has left; an error if another's files look alike."""
        found, sealed = set(), set(self.updates())
        for path in self.folder.glob("[0-9]*"):
            name, begun, _ = path.name.partition(_BEGUN)
            if not _NUMBER.fullmatch(name) or int(name) in sealed:
                continue
            if not begun and not _written_by_orbax(path):
                raise CheckpointError(f"{path} is no checkpoint: take it out of this folder")
            found.add(int(name))
        return found

    def _remove(self, update: int) -> None:
        self._seal(update).unlink(missing_ok=True)
        # Also what a kill in the middle of a save has left under another name.
        for path in [self._path(update), *self.folder.glob(f"{self._path(update).name}{_BEGUN}*")]:
            shutil.rmtree(path, ignore_errors=True)


class _Best(NamedTuple):
    """A policy of orbax's manager: the checkpoint with the lowest score stays."""

    scores: Mapping[int, float | None]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        best = _lowest({info.step: self.scores.get(info.step) for info in checkpoints})
        return [info.step == best for info in checkpoints]


def _written_by_orbax(path: Path) -> bool:
    """Whether a folder is a checkpoint, perhaps a part of one, and nothing else."""
    own = {_ITEM, "_CHECKPOINT_METADATA", "commit_success.txt"}
    return path.is_dir() and all(entry.name.partition(_BEGUN)[0] in own for entry in path.iterdir())


def _lowest(scores: Mapping[int, float | None]) -> int | None:
    """The update with the lowest score; the earliest of several."""
    known = {update: score for update, score in sorted(scores.items()) if score is not None}
    return min(known, key=lambda update: known[update]) if known else None


def _require_room(folder: Path, state: Any) -> None:
    """Takes the room that a checkpoint may need and gives it back; an `OSError` if there is none.

    Asked for at once: what orbax finds missing on its way it tells by the hundred lines.
    """
    leaves = jax.tree.leaves(state)
    # Orbax writes arrays twice before it drops the first copy, and keeps notes of each.
    size = 2 * sum(leaf.nbytes for leaf in leaves) + 2048 * len(leaves) + 2**16
    if not hasattr(os, "posix_fallocate"):  # Windows
        if shutil.disk_usage(folder).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return
    path = folder / f"room.{os.getpid()}.tmp"
    try:
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that cannot tell
            raise OSError(error.errno, error.strerror, str(folder)) from None
    finally:
        path.unlink(missing_ok=True)


def _checksums(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
