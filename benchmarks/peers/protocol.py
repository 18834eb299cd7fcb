"""The protocol of a peer process: one JSON object a line, on its stdin and stdout. What libraries print goes to stderr.

A peer is a class that is made from a `Task` and has

    versions            dict of what it runs on
    logps(rows)         token rows -> for each the log-probs of its answer tokens, at temperature 1
    step()              one whole step as the peer's own trainer does it
    train(pause)        in place of step: the trainer's own loop; calls `pause` at the end of each step
    parts()             rollouts, scoring and update by themselves, where the step does not tell them apart
    moved()             largest change of a fixed matrix of its weights since they were loaded
    peak_bytes()        largest memory on the device; asked on a GPU alone

`step` and `parts` return a `Turn`; a trainer's loop has one as `turn` and records its parts there. All of a peer's work
is done in the main thread: with a second one at work, libgomp counts more threads than cores and lets torch's wait for
each other asleep, which halves their speed on small models.
"""

import contextlib
import dataclasses
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from peers.workload import Task, Workload, check_tokens


@dataclasses.dataclass
class Turn:
    """What a step or its parts took, and the length of each answer that was drawn."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # of step, rollout, scoring, update
    lengths: list[int] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def time(self, name: str, wait: Callable[[], Any] = lambda: None) -> Iterator[None]:
        """Adds the block's seconds to `seconds[name]`; `wait` waits for what the block started on a device."""
        start = time.perf_counter()
        yield
        wait()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def serve(make: Callable[[Task], Any]) -> None:
    """Makes the peer of the command line's task and answers until "quit" or the end of stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    given = json.loads(sys.argv[1])
    task = Task(**given | {"workload": Workload(**given["workload"])})
    try:
        peer = make(task)
    except ModuleNotFoundError:
        raise  # as while importing: the last line of stderr says which
    except Exception as error:  # a library's, of any sort
        traceback.print_exc()
        return say({"error": f"{type(error).__name__}: {error}"})
    trains = hasattr(peer, "train")
    commands = ["step"] if trains or hasattr(peer, "step") else []
    say({"versions": peer.versions, "commands": commands + ["parts"] * hasattr(peer, "parts")})

    def answer_until(stop: str) -> None:
        """Answers commands; returns at `stop`, ends the process at "quit" and at the end of stdin."""
        for line in sys.stdin:
            command = json.loads(line)["command"]
            if command == stop:
                return
            if command == "quit":
                break
            attempt(lambda command=command: say(_answer(peer, task, command)))
        os._exit(0)  # from within a trainer's loop, too

    def attempt(work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:  # the same
            traceback.print_exc()
            say({"error": f"{type(error).__name__}: {error}"})

    def begin_step() -> None:
        answer_until("step")
        peer.turn, begun[0] = Turn(), time.perf_counter()

    def pause() -> None:
        peer.turn.seconds["step"] = time.perf_counter() - begun[0]
        say(dataclasses.asdict(peer.turn))
        begin_step()

    def train() -> None:
        peer.train(pause)
        raise RuntimeError("the trainer ended by itself")

    begun = [0.0]
    if trains:
        begin_step()
        attempt(train)
    answer_until("quit")


def _answer(peer: Any, task: Task, command: str) -> dict[str, Any]:
    if command == "logps":
        return {"logps": [[float(x) for x in row] for row in peer.logps(check_tokens(task.workload))]}
    if command == "state":
        peak = peer.peak_bytes() if task.device == "gpu" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"moved": float(peer.moved()), "peak_gb": peak / 1e9}
    return dataclasses.asdict(getattr(peer, command)())
