"""What `--help` says beyond a line for each flag: examples to begin with, and what the exit codes of `check` mean."""

MAIN = """\
to begin with:
  stallwatch-exporter check http://127.0.0.1:8000       is this server stuck, now?
  stallwatch-exporter --config.check --config.file exporter.yml
  stallwatch-exporter --config.file exporter.yml        then see http://127.0.0.1:9840/

a configuration that is enough:
  backends:
    - {name: gb10-a, url: "http://127.0.0.1:8000"}

Each command has a --help of its own; "serve --help" lists the limits.
"""

CHECK = """\
exit codes:
  0  healthy: it works, or is idle and answers, or has a reason to stand still
  1  unproven: it stands still, and the time given was not enough for proof
  2  stuck, down, unreachable or failing
  3  unknown: no metrics to judge by, several servers behind one address, or a wrong flag

With --fail-on stuck: 2 if it is stuck, 0 for everything else.

It sends a short request only to a server that is idle or stands still. It is no
liveness probe: whatever restarts on it would be a second decider beside the remediator.
"""
