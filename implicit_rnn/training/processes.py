"""Runs of several processes: how they find each other, who writes, and how they end together."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

# Seconds without a sign of life after which a process counts as dead, and the others end.
SILENCE = 30
PATIENCE = 300  # seconds until the others have to be there
_LONGEST = 256  # bytes that the first process tells the others
_updates = itertools.count()  # those of all runs of this process: the same in all processes


class ProcessError(RuntimeError):
    """Processes that cannot be brought together: what is missing, and how to say it."""


class EndedTogether(KeyboardInterrupt):
    """All processes of a run end, after the same update, because one was asked to."""


@contextlib.contextmanager
def together(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> Iterator[None]:
    """Joins the processes of a run, and ends this one as soon as they cannot go on together.

    An error ends the process here, with exit code 1: what waits for the others at the exit of the
    interpreter would wait for those that are gone.

    Args:
      coordinator: `host:port` of process 0, else `$JAX_COORDINATOR_ADDRESS`.
      processes: how many there are, else `$JAX_NUM_PROCESSES`.
      process: which one this is, from 0, else `$JAX_PROCESS_ID`. What none of these gives, JAX asks
        the cluster for: SLURM, Open MPI, Kubernetes, Cloud TPU.
    """
    join(coordinator, processes, process)
    try:
        yield
        wait("the end")
        jax.distributed.shutdown()
    except KeyboardInterrupt as error:
        number = signal.Signals(error.args[0] if error.args else signal.SIGINT)
        print(f"{_here()}: ended by {number.name}", file=sys.stderr)
        if isinstance(error, EndedTogether):
            jax.distributed.shutdown()
        leave(128 + number)
    except BaseException as error:
        ours = type(error).__module__.startswith("implicit_rnn") or isinstance(error, OSError)
        loss = _loss(error)
        here = _here()
        if loss:
            first = loss.strip().splitlines()[0]
            print(
                f"{here}: another process of this run has ended or cannot be reached: see what it "
                "said. --resume goes on from the last checkpoint, with any number of processes "
                f"({first})",
                file=sys.stderr,
            )
        elif ours:
            print(f"{here}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        leave(1)


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """`jax.distributed.initialize`, with errors that say what to do."""
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    processes = _number("JAX_NUM_PROCESSES", processes)
    process = _number("JAX_PROCESS_ID", process)
    host, _, port = (coordinator or "").rpartition(":")
    if coordinator is not None and not (host and port.isdigit() and 0 < int(port) < 2**16):
        raise ProcessError(f"a coordinator is an address and a port, HOST:PORT; got {coordinator}")
    if process is not None and processes is not None and not 0 <= process < processes:
        raise ProcessError(f"process {process} is none of the {processes} from 0: --process")
    if coordinator is not None and processes is not None and process is not None:
        if process == 0:
            _require_free(int(port))
        else:
            _require_listener(host.strip("[]"), int(port))
    waiting = threading.Timer(SILENCE, _say_that_it_waits, [processes])
    waiting.daemon = True
    waiting.start()
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            initialization_timeout=PATIENCE,
            heartbeat_timeout_seconds=SILENCE,
            shutdown_timeout_seconds=SILENCE,
        )
    except (ValueError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise ProcessError(
            f"the processes do not find each other ({first}). Under SLURM, Open MPI, Kubernetes or "
            "on a Cloud TPU nothing needs to be said; elsewhere --coordinator HOST:PORT, "
            "--processes N and --process I, the same HOST:PORT and N for all"
        ) from None
    finally:
        waiting.cancel()
    if listening():
        ends_here()  # from the first time on the runtime knows what to do with a signal


def _say_that_it_waits(processes: int | None) -> None:
    number = "all processes" if processes is None else f"all {processes} processes"
    print(
        f"implicit-rnn: still waiting until {number} are there, {PATIENCE} s in all",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def _require_free(port: int) -> None:
    """Refuses a port that is in use, of which JAX's runtime makes a segmentation fault."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except OSError as error:
        raise ProcessError(
            f"process 0 cannot listen at port {port} ({error.strerror}): give all processes "
            "another one, --coordinator HOST:PORT"
        ) from None


def _require_listener(host: str, port: int) -> None:
    """Waits for process 0, at whose absence JAX's runtime would abort without a sentence."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise ProcessError(
                    f"nobody listens at {host}:{port} ({error.strerror or error}): start process 0 "
                    "there, or give all processes the address of where it runs, --coordinator "
                    "HOST:PORT"
                ) from None
        time.sleep(0.2)


def leave(code: int) -> None:
    """Ends the process at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def first() -> bool:
    """Whether this is the process that prints and writes."""
    return jax.process_index() == 0


def listening() -> bool:
    """Whether JAX's runtime listens for a SIGTERM to one of several processes."""
    there = bool(getattr(jax.config, "jax_enable_preemption_service", False))
    return there and jax.process_count() > 1


def ends_here() -> bool:
    """Whether one of the processes was asked to end, and all are to, now; asked once an update."""
    from jax.experimental import multihost_utils

    return multihost_utils.reached_preemption_sync_point(next(_updates))


def wait(what: str) -> None:
    """Until all processes are here."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(what)


def gathered(tree: Any) -> Any:
    """Arrays on devices of all processes as whole ones on the host of each."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tree, tiled=True)


def from_first(text: str) -> str:
    """A short text of the first process, in all."""
    if jax.process_count() == 1:
        return text
    from jax.experimental import multihost_utils

    own = np.frombuffer(text.encode().ljust(_LONGEST), np.uint8)
    return bytes(np.asarray(multihost_utils.broadcast_one_to_all(own))).decode().strip()


def where_not(own: bool) -> list[int]:
    """The numbers of the processes in which something is not so, in all."""
    if jax.process_count() == 1:
        return [] if own else [0]
    from jax.experimental import multihost_utils

    found = multihost_utils.process_allgather(np.asarray(own))
    return [int(number) for number in np.flatnonzero(~np.asarray(found))]


def _here() -> str:
    return f"implicit-rnn: process {jax.process_index()} of {jax.process_count()}"


def _number(name: str, given: int | None) -> int | None:
    text = os.environ.get(name)
    if given is not None or text is None:
        return given
    if not text.isdigit():
        raise ProcessError(f"${name} must be a number, got {text!r}")
    return int(text)


def _loss(error: BaseException | None) -> str:
    """What the runtime says of a process that is gone, in an error or in a cause of it."""
    signs = ("gloo", "nccl", "unavailable", "connection", "heartbeat", "coordination", "barrier")
    while error is not None:
        said = str(error) if isinstance(error, jax.errors.JaxRuntimeError) else ""
        if any(sign in said.lower() for sign in signs):
            return said
        error = error.__cause__
    return ""
