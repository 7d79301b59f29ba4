#!/usr/bin/env bash
# libtpu 0.0.42.1: `jax.devices()` starts a timer for each thread that sends SIGPROF, also on a machine without a TPU.
#
# The timers count the CPU time of their threads, 100 signals a second. libtpu's own handler ignores them. So a program
# with a handler of its own for SIGPROF, such as a sampling profiler or a limit of CPU time by `signal.ITIMER_PROF`, is
# called 100 times a second from then on. A limit of 30 CPU seconds then ends a command at once. If such a program ends,
# Python takes its handler back before the timers stop, and the process can die by the signal after all its work.
#
# Without libtpu there are no timers. `signal.ITIMER_VIRTUAL` (SIGVTALRM) counts CPU time in user mode and is not
# disturbed.
#
# Seen with jax 0.10.2 and libtpu 0.0.42.1 on Python 3.11 and Linux. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jax==0.10.2 jaxlib==0.10.2
cat > "$folder/signals.py" <<'PYTHON'
import os
import signal
import time
from pathlib import Path

import jax


def signals(kind):
    """Return how often a handler is called in two CPU seconds without any timer of our own."""
    calls = []
    before = signal.signal(kind, lambda *_: calls.append(kind))
    begun = time.process_time()
    while time.process_time() < begun + 2:
        sum(range(10_000))
    signal.signal(kind, before or signal.SIG_IGN)
    return len(calls)


print(jax.devices()[0].platform, end=" ")
timers = Path("/proc/self/timers").read_text().count(f"signal: {int(signal.SIGPROF)}/")
print(timers > 0, signals(signal.SIGPROF) > 100, signals(signal.SIGVTALRM), flush=True)
os._exit(0)  # before Python takes the handlers back
PYTHON
show() { "$folder/venv/bin/python" "$folder/signals.py" 2> "$folder/log" || { cat "$folder/log"; exit 1; }; }
echo "platform, timers of SIGPROF, more than 100 SIGPROF in two CPU seconds, SIGVTALRM:"
without=$(show)
"$folder/venv/bin/python" -m pip install --quiet libtpu==0.0.42.1
with=$(show)
echo "without libtpu: $without"
echo "with libtpu: $with"
[ "$without" = "cpu False False 0" ] && [ "$with" = "cpu True True 0" ]
