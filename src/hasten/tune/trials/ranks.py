"""The ranks of a trial as rank 0 sees them: it starts them, forwards each command, and answers for all of them.

Every rank is the same worker with the same pipes; this module is used on rank 0 only. If a rank fails, the others wait in a
collective operation forever, so a failure on any rank ends the whole group once the answer is sent.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from hasten.train.process_group import open_store, rank_environment

GRACE_S = 2.0
"""Seconds that the other ranks have to answer after a failure, so that the first failure and its cause can be found."""

LAST_WORDS = 4
"""Number of log lines of a rank that are reported if it dies."""

Answer = dict[str, Any]


class Group:
    """The other ranks of this trial. Created on rank 0 before the user's code runs; it sets the environment variables.

    Args:
        ranks: Number of ranks, including this one.
        send: Sends an answer to the parent.
    """

    def __init__(self, ranks: int, send: Callable[[Answer], None]) -> None:
        self._send = send
        self._store = open_store()
        environments = [rank_environment(rank, ranks, self._store.port, os.environ) for rank in range(ranks)]
        os.environ.update(environments[0])
        self._arrived = threading.Condition()
        self._answers: dict[int, Answer] = {}
        self._dead: dict[int, Answer] = {}
        self._asked = 0
        # Children in the same session: freezing, thawing or ending this process's group affects them too.
        self._others = {
            rank: subprocess.Popen(
                [sys.executable, "-m", "hasten.tune.trials.worker", "--member"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
            )
            for rank, environ in enumerate(environments[1:], 1)
        }
        for rank, process in self._others.items():
            tail: deque[str] = deque(maxlen=LAST_WORDS)
            log = threading.Thread(target=_pass_on, args=(rank, process.stderr, tail), daemon=True)
            log.start()
            threading.Thread(target=self._listen, args=(rank, process, log, tail), daemon=True).start()

    def perform(self, command: str, operation: str, act: Callable[[], Answer]) -> Answer:
        """Forward a command, carry it out here as well, and combine the answers of all ranks.

        If another rank fails while this one waits for it, the failure is sent from here and the process ends.

        Args:
            command: The line as received.
            operation: The name of the command.
            act: Carries the command out on this rank.
        """
        with self._arrived:
            self._answers = dict(self._dead)
            self._asked += 1
        for process in self._others.values():
            _write(process.stdin, command)
        threading.Thread(target=self._guard, args=(self._asked, operation), daemon=True).start()
        mine = act()
        with self._arrived:
            self._answers[0] = mine
            self._arrived.notify_all()
            self._arrived.wait_for(lambda: self._complete or self._failed)
            self._arrived.wait_for(lambda: self._complete, timeout=GRACE_S)
            answers = dict(self._answers)
        if any(not answer["ok"] for answer in answers.values()):
            return failure_of(answers, operation)
        return merged(operation, [answers[rank] for rank in sorted(answers)])

    def end(self) -> None:
        """End the other ranks."""
        for process in self._others.values():
            process.kill()

    @property
    def _complete(self) -> bool:
        return len(self._answers) == len(self._others) + 1

    @property
    def _failed(self) -> bool:
        return any(not answer["ok"] for answer in self._answers.values())

    def _guard(self, command: int, operation: str) -> None:
        """Answer for this rank if it waits, perhaps forever, for a rank that failed."""

        def answered() -> bool:
            return self._asked != command or 0 in self._answers

        with self._arrived:
            self._arrived.wait_for(lambda: answered() or self._failed)
            if answered() or self._arrived.wait_for(answered, timeout=GRACE_S):
                return
            self._send(failure_of(self._answers, operation))
            self.end()
            os._exit(1)

    def _listen(self, rank: int, process: subprocess.Popen[bytes], log: threading.Thread, tail: Sequence[str]) -> None:
        """Receive the answers of one rank, and record its death as one."""
        for line in process.stdout or ():
            if line.endswith(b"\n") and "progress" not in (answer := json.loads(line)):
                self._note(rank, answer)
        ended = ended_words(process.wait())
        log.join(GRACE_S)
        output = f". Last output: {' | '.join(tail)}" if tail else ""
        self._dead[rank] = {"ok": False, "kind": "killed", "message": ended + output}
        self._note(rank, self._dead[rank])

    def _note(self, rank: int, answer: Answer) -> None:
        with self._arrived:
            self._answers.setdefault(rank, answer)
            self._arrived.notify_all()


def failure_of(answers: Mapping[int, Answer], operation: str) -> Answer:
    """Return the answer of a group in which a rank failed: a death first, otherwise the first failure, with its rank.

    Args:
        answers: The answers by rank, in the order of arrival.
        operation: The name of the command.
    """
    failed = {rank: answer for rank, answer in answers.items() if not answer["ok"]}
    dead = [rank for rank, answer in failed.items() if answer["kind"] == "killed"]
    rank = (dead or list(failed))[0]
    failure = failed[rank]
    where = f"rank {rank}, during `{operation}`: " if rank in dead else f"rank {rank}: "
    return {"ok": False, "kind": failure["kind"], "message": where + failure["message"]}


def merged(operation: str, answers: Sequence[Answer]) -> Answer:
    """Combine the answers of all ranks, rank 0 first: the slowest rank's times, summed counts, checks that all ranks passed.

    The CPU time of a run is rank 0's, which includes the other ranks because they are its children.
    """
    first = dict(answers[0])
    if operation == "run":
        first["times"] = [max(each) for each in zip(*(answer["times"] for answer in answers), strict=True)]
        for name in ("major_faults", "minor_faults"):
            first[name] = sum(answer[name] for answer in answers)
        first["items"] = [sum(each) for each in zip(*(answer["items"] for answer in answers), strict=True)]
    elif operation == "memory":
        first["peak_bytes"] = peak_of([answer["peak_bytes"] for answer in answers], first["device"])
    elif operation == "profile":
        device = first["profile"]["job"]["device"]
        peak = peak_of([answer["facts"]["peak_memory_bytes"] for answer in answers], device)
        first["facts"]["peak_memory_bytes"] = first["profile"]["memory"]["peak_bytes"] = peak
    elif operation == "trace":
        first["evidence"] = {name: checks_of([answer["evidence"][name] for answer in answers]) for name in first["evidence"]}
    elif "seconds" in first:
        first["seconds"] = max(answer["seconds"] for answer in answers)
    return first


def peak_of(peaks: Sequence[int], device: str) -> int:
    """Return the peak memory of a group: the sum on a CPU, where ranks share memory; otherwise the maximum."""
    return sum(peaks) if device == "cpu" else max(peaks)


def checks_of(by_rank: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return each check of rank 0, or of the first rank on which it did not pass."""
    checks = []
    for each in zip(*by_rank, strict=True):
        rank, check = next(((rank, check) for rank, check in enumerate(each) if not check["passed"]), (0, each[0]))
        checks.append(check if check["passed"] else {**check, "seen": f"rank {rank}: {check['seen']}"})
    return checks


def ended_words(code: int) -> str:
    """Return how a process ended, from its exit status as in subprocess (negative: a signal)."""
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}" + (", perhaps because the system ran out of memory" if name == "SIGKILL" else "")


def _pass_on(rank: int, log: IO[bytes] | None, tail: deque[str]) -> None:
    """Copy the output of another rank to this process's log, and keep its last lines."""
    for line in log or ():
        text = line.decode(errors="replace").rstrip()
        tail.append(text)
        sys.stderr.write(f"[rank {rank}] {text}\n")
        sys.stderr.flush()


def _write(pipe: IO[bytes] | None, command: str) -> None:
    if pipe is None:
        return
    try:
        pipe.write(command.rstrip("\n").encode() + b"\n")
        pipe.flush()
    except BrokenPipeError:  # the listening thread reports its death
        return
