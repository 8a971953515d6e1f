"""Compare the log of the demo's episode with what was saved when everything was killed: nothing lost, nothing twice."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import click

from dsec.episode.frames import scan_frames
from dsec.episode.log_content import Completeness
from dsec.episode.log_events import EnvironmentUsed, LifeBegan, RoundCommitted, decode_log_events
from dsec.stores.episode_log_reading import read_episode_log
from dsec.worker.output import read_results


def main() -> None:
    """Check the demo in the directory that is named first."""
    out, before, model_log = map(Path, sys.argv[1:4])
    (log,) = [path for path in (out / "worker" / "episodes").iterdir() if path.is_dir()]
    content = read_episode_log(log)
    events = [line for line in scan_frames(before.read_bytes(), name=str(before)).documents if b'"segment"' not in line]
    saved = [event.record for event in decode_log_events(events, name=str(before)) if isinstance(event, RoundCommitted)]
    rounds = content.rounds
    operations = Counter(operation.operation_id for record in rounds for operation in record.decision.operations)
    sandboxes = {event.sandbox_id for event in content.events if isinstance(event, EnvironmentUsed)}
    lives = sum(isinstance(event, LifeBegan) for event in content.events)
    asked = int(re.findall(r"asked (\d+) times", model_log.read_text())[-1])
    (result,) = read_results(out)[1]

    def check(holds: bool, words: str) -> None:
        click.echo(f"{'ok  ' if holds else 'NOT '} {words}")
        if not holds:
            sys.exit(1)

    check(len(saved) == 1, f"{len(saved)} round was saved when everything was killed, in the middle of the second")
    check(list(rounds[: len(saved)]) == saved, "it is in the log as it was: not lost, and not decided again")
    check(lives == 2 and content.completeness is Completeness.COMPLETE, f"the loop had {lives} lives, its log is whole")
    check([record.number for record in rounds] == [1, 2, 3], "there are rounds 1, 2 and 3, each once")
    check(max(operations.values()) == 1, f"{len(operations)} operations, each committed once")
    check(len(sandboxes) == 1, f"one sandbox for both lives: {sandboxes.pop()}")
    check(asked == len(rounds) + 1, f"the model was asked {asked} times: for each round, and again for the one cut off")
    check(
        result.verdict.reward == 1, "hidden tests pass: the edit, which fails where it was done before, was done once"
    )


if __name__ == "__main__":
    main()
