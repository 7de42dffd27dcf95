"""main(): the commands, and what becomes of errors and signals."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import tyro
from tyro.conf import FlagCreatePairsOff

from outward.cli.context import context
from outward.cli.exploring import explore
from outward.cli.measuring import measure, merge
from outward.cli.options import UsageError
from outward.cli.printing import DONE, FAILED, USAGE, print_rows, say
from outward.cli.reporting import compare, report

DESCRIPTION = (
    "How much does attention hand each token back to itself? Begin with: outward measure smollm2. "
    "Results go to stdout, progress and warnings to stderr."
)
STOPPED = {signal.SIGINT: 130, signal.SIGTERM: 143}
PIPE = 141  # as of a program that the closing of its pipe ends


class Stop:
    """What to do on a signal. It remembers which: Ray raises a KeyboardInterrupt of its own instead."""

    by = signal.SIGINT

    def __call__(self, number: int, frame: Any) -> NoReturn:
        """End whatever is done; a second signal does not wait for anything."""
        self.by = signal.Signals(number)
        for each in STOPPED:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt


def models(*, json: bool = False, debug: bool = False) -> int:
    """Names that work here as MODEL, and what the others need.

    Args:
        json: print one JSON document.
        debug: show the traceback of an error.
    """
    from outward.environment import known_models

    return print_rows(known_models(), json)


def doctor(*, json: bool = False, debug: bool = False) -> int:
    """Versions, devices, and what is broken.

    Args:
        json: print one JSON document.
        debug: show the traceback of an error.
    """
    from outward.environment import diagnosis

    found = diagnosis()
    print_rows(found, json)
    return FAILED if any(row["state"] == "broken" for row in found) else DONE


COMMANDS: dict[str, Callable[..., int]] = {
    "measure": measure,
    "merge": merge,
    "context": context,
    "compare": compare,
    "report": report,
    "explore": explore,
    "models": models,
    "doctor": doctor,
}


def main(args: list[str] | None = None) -> NoReturn:
    """Exits with 0 done, 1 failed, 2 usage, 3 partial, 4 a condition is true, 130 or 143 stopped."""
    args = sys.argv[1:] if args is None else args
    stop = Stop()
    for number in STOPPED:
        signal.signal(number, stop)
    sys.exit(_code(args, stop))


def _code(args: list[str], stop: Stop) -> int:
    try:
        code = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="outward",
            args=args,
            description=DESCRIPTION,
            sort_subcommands=False,
            config=(FlagCreatePairsOff,),
        )
        sys.stdout.flush()
    except UsageError as error:
        say(str(error))
        return USAGE
    except KeyboardInterrupt:
        say("stopped; what is finished is kept where --out was given, and --resume goes on with it")
        return STOPPED[stop.by]
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE
    except Exception as error:
        if "--debug" in args:
            raise
        say(_explained(error))
        return FAILED
    return code


def _explained(error: Exception) -> str:
    """Errors that speak for themselves do; of the others, what they are and how to learn more."""
    if isinstance(error, _expected()):
        return str(error)
    said = next((line for line in str(error).splitlines() if line.strip()), "nothing is said")
    return f"{type(error).__name__}: {said}. That was not foreseen; --debug shows where it comes from."


def _expected() -> tuple[type[Exception], ...]:
    """Late, and only where they can have been raised: the rooms that raise them import torch."""
    homes = {"results": "ResultError", "sources.errors": "SourceError", "taps.proof": "ProofError"}
    loaded = {sys.modules.get(f"outward.{room}"): name for room, name in homes.items()}
    return tuple(getattr(room, name) for room, name in loaded.items() if room is not None)
