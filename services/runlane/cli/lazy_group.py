"""A click group that imports a verb when it is called, and turns our errors into exit codes."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click

from runlane.cli.failures import INTERRUPTED, NOBODY_READS, ForPrograms, failure_of, let_go_of_stdout, nobody_reads

_AS_JSON = "runlane.cli.as_json"


class Verb(NamedTuple):
    """One subcommand: where it is (`module:attribute`), under which heading, and its line in the help."""

    name: str
    target: str
    heading: str
    summary: str


class LazyGroup(click.Group):
    """Shows its verbs by heading without importing them."""

    def __init__(self, *args: Any, verbs: Sequence[Verb] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verbs = {verb.name: verb for verb in verbs}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The verbs, in the order of the help."""
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one verb."""
        verb = self._verbs.get(cmd_name)
        if verb is None:
            return None
        module, _, attribute = verb.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{verb.target} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the verbs under their headings."""
        width = max(len(name) for name in self._verbs)
        for heading in dict.fromkeys(verb.heading for verb in self._verbs.values()):
            with formatter.section(heading):
                formatter.write_dl(
                    [(v.name.ljust(width), v.summary) for v in self._verbs.values() if v.heading == heading]
                )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Whether the verb is asked for JSON has to be known before its own words are: they may be what is wrong."""
        ctx.meta[_AS_JSON] = "--json" in (args[: args.index("--")] if "--" in args else args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; a named failure becomes its exit code and one line on stderr."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except click.ClickException as exc:
            raise (ForPrograms(exc) if ctx.meta[_AS_JSON] else exc) from exc.__cause__
        except Exception as exc:
            let_go_of_stdout()
            if nobody_reads(exc):
                raise click.exceptions.Exit(NOBODY_READS) from None
            failure = failure_of(exc)
            if failure is None:
                raise
            raise (ForPrograms(failure) if ctx.meta[_AS_JSON] else failure) from exc
