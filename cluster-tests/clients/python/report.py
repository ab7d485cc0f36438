"""What a script tells the test that runs it: one JSON object per line on standard output, and one line back for each
"ask"."""

import json
import sys
import threading
import time
import traceback

_lock = threading.Lock()


def say(**fields):
    with _lock:
        print(json.dumps(fields), flush=True)


def ask(what, node):
    """Asks the test to do something to a node ("kill", "start"), and waits until it is done."""
    say(ask=what, node=node)
    answer = sys.stdin.readline()
    if answer.strip() != "done":
        raise RuntimeError(f"{what} {node} was answered {answer!r}")


def until(what, condition, within=15.0):
    """Waits for a condition with a deadline."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within} s in vain for {what}")
        time.sleep(0.005)


def rules(*functions):
    """Checks each rule under its own name; a broken one does not keep the others from being checked."""
    for function in functions:
        try:
            function()
            say(rule=function.__name__, holds=True)
        except Exception:
            say(rule=function.__name__, holds=False, why=traceback.format_exc())
