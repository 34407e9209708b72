"""What `--help` says beyond a line for each flag: examples to begin with, and what a first configuration needs."""

MAIN = """\
to begin with:
  stallwatch-remediator --config.check --config.file remediator.yml
  stallwatch-remediator --config.file remediator.yml    then see http://127.0.0.1:9841/

a configuration that is enough; it restarts nothing until "mode: restart":
  mode: advise
  exporter_urls: ["http://127.0.0.1:9840"]
  backends:
    - name: gb10-a
      restart_on: [stuck]
      driver: {kind: docker, container: vllm-a}

Alertmanager sends to http://127.0.0.1:9841/api/v1/alerts. Beyond loopback it needs
webhook.bearer_token_file, or a name and password.

other commands, each with a --help of its own; they only read, also while it runs:
  stallwatch-remediator export      the journal as JSON lines
  stallwatch-remediator timeline    one backend's story as Markdown

exit codes: 0 ended as asked, 2 a mistake in the configuration, the flags or the journal.
SIGTERM waits for a restart that is under way; a second one does not, and the code is 1.
"""
