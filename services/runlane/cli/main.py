"""The `runlane` command. `runlane --help` loads no verb, so it answers at once."""

import click

from runlane.cli.lazy_group import LazyGroup, Verb

VERBS = (
    Verb("up", "runlane.cli.up:up", "Run", "Run all of Runlane here, in one process."),
    Verb("demo", "runlane.cli.demo:demo", "Run", "Start a demo agent that asks for your approval."),
    Verb("bridge", "runlane.cli.bridge:bridge", "Run", "Run another agent program and record it."),
    Verb("start", "runlane.cli.start:start", "Run", "Start a run."),
    Verb("re-execute", "runlane.cli.re_execute:re_execute", "Run", "Execute a run that is over again, as a new run."),
    Verb("env", "runlane.cli.env:env", "Run", "Print where it serves and with which tokens, for a shell."),
    Verb("runs", "runlane.cli.runs:runs", "Look", "List runs, newest first."),
    Verb("watch", "runlane.cli.watch:watch", "Look", "Follow a run as it happens."),
    Verb("replay", "runlane.cli.replay:replay", "Look", "Show the record of a run, or how it stood at a sequence."),
    Verb("approve", "runlane.cli.decide:approve", "Decide", "Say yes to what a run asks."),
    Verb("reject", "runlane.cli.decide:reject", "Decide", "Say no to what a run asks."),
    Verb("send", "runlane.cli.steer:send", "Decide", "Say something to a run."),
    Verb("retry", "runlane.cli.steer:retry", "Decide", "Try a failed tool call again."),
    Verb("reconcile", "runlane.cli.steer:reconcile", "Decide", "Say what became of a call whose outcome is unknown."),
    Verb("pause", "runlane.cli.steer:pause", "Decide", "Stop a run at its next safe point, to go on later."),
    Verb("resume", "runlane.cli.steer:resume", "Decide", "Let a paused run go on."),
    Verb("cancel", "runlane.cli.steer:cancel", "Decide", "End a run."),
    Verb("keys", "runlane.cli.keys:keys", "Operate", "Show, make and revoke API keys."),
    Verb("audit", "runlane.cli.audit:audit", "Operate", "Check and export the record of who did what."),
    Verb(
        "tenants", "runlane.cli.tenants:tenants", "Operate", "Show and set what each tenant may have of what all share."
    ),
    Verb("provision", "runlane.cli.provision:provision", "Operate", "Make the broker's streams match the layout."),
    Verb("rebuild", "runlane.cli.rebuild:rebuild", "Operate", "Fold the read store again from the view."),
    Verb("compact", "runlane.cli.compact:compact", "Operate", "Archive finished runs and take them out of the log."),
    Verb("erase", "runlane.cli.erase:erase", "Operate", "Remove the content of a finished run for good."),
    Verb("doctor", "runlane.cli.doctor:doctor", "Operate", "Look for what is wrong, and say what to do."),
    Verb("dead-letters", "runlane.cli.dead_letters:dead_letters", "Operate", "Show what could not be processed."),
    Verb("bench", "runlane.cli.bench:bench", "Operate", "Measure what this installation carries."),
)


@click.group(
    cls=LazyGroup, verbs=VERBS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="runlane", message="%(prog)s %(version)s")
def runlane() -> None:
    """The durable event backbone for fleets of AI agents.

    Verbs find a running `runlane up` by its state directory; RUNLANE_URL and RUNLANE_TOKEN point them elsewhere.
    With --json a verb prints one JSON object a line on stdout, and everything else on stderr: a failure as one
    object, {"code", "detail", "retryable", "exit_code"}, in its last line.

    Exit codes: 0 done, 1 refused or failed with a named code, 2 usage, 3 unreachable.
    """


def main() -> None:
    """The entry point of the `runlane` script."""
    runlane(prog_name="runlane")
