"""Writes the pages of the documentation that are made from code: settings, metrics, command line,
compatibility with Kafka, the checks of APIs.

`make docs` runs it; a test compares the pages in the tree with what it would write.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from docs.authorization_table import authorization_page
from docs.kafka_compatibility import compatibility_page
from lakehead.broker.cli.app import app
from lakehead.broker.cli.examples import EXAMPLES
from lakehead.broker.cli.sections import sections, shown_default
from lakehead.broker.configs.entries import BROKER_CONFIGS
from lakehead.broker.observability.metrics import SUBJECTS
from lakehead.broker.observability.table_metrics import TABLE_METRICS
from lakehead.broker.setting_sources import Setting
from lakehead.connectors.airflow.jobs import JOB_NAMES, job_named
from lakehead.lake.source.options import options_table
from lakehead.storage.jobs.options import options_of

FOLDER = Path(__file__).parent
_NOTE = "<!-- Made from code by `make docs`. -->\n\n"
_OPTIONS_BEGIN = "<!-- options: made from code by `make docs` -->"
_OPTIONS_END = "<!-- end of options -->"

_SETTINGS_INTRODUCTION = """\
# Settings

A node takes each setting from the first of these that has it:

1. its flag: `lakehead start --message.max.bytes 2m`;
2. the environment: `LAKEHEAD_MESSAGE_MAX_BYTES=2m`;
3. the TOML file given by `--config FILE` or `LAKEHEAD_CONFIG`: `message.max.bytes = "2m"`;
4. its default.

A setting that Kafka has, too, has Kafka's name and meaning. Sizes are bytes and take `k`, `m`, `g`
and `t` (powers of 1024); times are in the unit that the name ends with.

**Values that lie elsewhere.** A text in any of these places may have references, in the grammar of
[Kafka's config providers](https://cwiki.apache.org/confluence/x/ATRqBg), which are on without a
setting:

| Reference | Value |
| --- | --- |
| `${{file:/path:key}}` | a key of a file of Java's properties |
| `${{directory:/path:name}}` | all of the file `name` there, but the end of its last line |
| `${{env:NAME}}` | a variable of the environment |
| `${{secretsmanager:NAME:field}}` | a field of a secret in JSON; without it all of a secret |
| `${{ssm::NAME}}` | a parameter of Systems Manager, decrypted |

In the last two, NAME may be an ARN; credentials come from where AWS's own tools look.

A node reads them when it starts, and once: a value is not read for references again, and nothing
that a client sets is. A reference that leads nowhere, or to an unknown provider, ends the start
with one line. Values from references, and settings that are secret, are shown in no log, error,
DescribeConfigs or metric. A secret on the command line is refused, because lists of processes show
it; a reference to it is taken.

`lakehead settings list WORD` finds settings by a word in name or meaning; `--json` is for programs.

Some settings have no flag, only a line in the file: `log.retention.minutes` and
`log.retention.hours`, which are read if `log.retention.ms` is not given, and
[Kafka's settings](kafka-compatibility.md) without an effect here.

`kafka-configs` sets these while nodes run, for one or for all of them, with precedence over
everything above: {live}."""

_METRICS_INTRODUCTION = """\
# Metrics

`lakehead start --metrics.port 9404` serves these for Prometheus, at `/metrics` on that port of the
listening address.

Three probes are on the same port. Each responds with the node's health,
`{"status": "ok", "troubles": []}`, and with HTTP status 200 when it passes, else 503:

| | passes | for |
| --- | --- | --- |
| `/live` | unless the status is `failed` | a supervisor that restarts the node |
| `/ready` | in `ok`, `standby` and `degraded` | a load balancer |
| `/health` | in `ok` and `standby` | a monitor that calls an operator |

A node that has `failed` acknowledges nothing more and is about to end. The status is `degraded`
while the object store fails or producers have to wait (nothing is lost, and a restart does not
help), `starting` and `stopping` before and after the node serves. Any other path is 404. A
[standby](backup.md#standby-nodes) says `standby` in place of `ok`, and how old its `copy` is.

A node omits metrics of parts that it does not have: those of the object WAL with a block WAL."""

_TABLE_METRICS_INTRODUCTION = """\
## Tables

Jobs serve these, not nodes: `lakehead materialize --follow --metrics 9405` and `lakehead maintain
--follow --metrics 9405` have gauges of every [declared table](tables.md), on the loopback address
unless `HOST:PORT` names another. `lakehead tables` and `lakehead.tables` in [SQL](sql.md) show the
same. Unknown values (there is no table yet, or it cannot be read) are omitted; the lag is always
there."""

_COMMANDS_INTRODUCTION = """\
# Command line

`lakehead COMMAND --help` says the same, with the same examples. A failed command prints one line on
standard error.

**Exit status**

| Status | Means |
| --- | --- |
| 0 | the command is done |
| 1 | it failed: a wrong setting, a refused request, an unreachable store, failed items, damage |
| 2 | wrong usage: an unknown option, a value out of its bounds |
| 130 | it was interrupted (Ctrl-C) |

A command with `--follow` ends in order by the first Ctrl-C or SIGTERM: a line says what it does
until then, and the status is 0 unless something failed. A second one, a second or more later, ends
it at once.

A node has [more of them](operations.md#reasons-for-a-nodes-end). Programs that call jobs tell
failures apart by [their classes](adding-a-job.md#failures).

**Confirmation.** A command that deletes what cannot be had again requests a confirmation: `topics
delete`, `forget`, `sweep`, `rebuild-catalog --replace`, `rebuild-table --without-history`,
`features upgrade`, `rolling-update`, `restore --in-place --replicated`. `--yes` gives it. Without a
terminal and without `--yes` such a command changes nothing and ends with status 1. `vacuum` and
`apply-retention` request none: they delete what tables and topics have declared to be over. Most of
them have `--dry-run`.

**Output.** Tables are for people and may change. `--json` is for programs: [its
fields](json-output.md) keep their names. Progress is shown on standard error where that is a
terminal, and nowhere else. `NO_COLOR=1` turns off colours.

**Completion** of commands and options for bash, zsh, fish and PowerShell: `lakehead
--install-completion` writes it into the profile of your shell, `lakehead --show-completion` prints
it. Start a new shell after it."""


_WITH_SETTINGS = {
    "lakehead start": "Flags: `--config FILE`, and one for each of the [settings](settings.md); "
    "`--help-all` shows them all.",
    "lakehead doctor": "Flags: `--json`, and those of [lakehead start](#lakehead-start).",
}
"""Commands whose flags are the settings, with their line in place of a table."""


def pages() -> dict[str, str]:
    """Return every generated page by file name."""
    return {
        "settings.md": _settings(),
        "metrics.md": _metrics(),
        "cli.md": _command_line(),
        "kafka-compatibility.md": _NOTE + compatibility_page(),
        "authorization-table.md": _NOTE + authorization_page(),
        "spark.md": _with_options("spark.md", options_table()),
        "jobs.md": _with_options("jobs.md", "\n".join(_job_options())),
    }


def _with_options(name: str, table: str) -> str:
    """Return the page with the options of the code."""
    before, begin, rest = (FOLDER / name).read_text().partition(_OPTIONS_BEGIN)
    _, end, after = rest.partition(_OPTIONS_END)
    assert begin
    assert end
    return f"{before}{begin}\n{table}{end}{after}"


def _job_options() -> Iterator[str]:
    yield "| Job | Option | Flag | Default | Meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for name in JOB_NAMES:
        job = job_named(name)
        for one in options_of(job.options):
            flag = one.info.metavar if one.info.is_argument else one.info.flag
            flag = flag if job.help else ""  # it has no command
            shown = one.default if isinstance(one.default, int | str) else ""
            default = "" if shown == "" or shown is False else f"`{shown}`"
            flag = f"`{flag}`" if flag else ""
            yield f"| `{name}` | `{one.name}` | {flag} | {default} | {one.info.help} |"
    yield ""


def _settings() -> str:
    every = [setting.name for _, settings in sections() for setting in settings]
    live = ", ".join(f"`{name}`" for name in every if BROKER_CONFIGS[name].is_dynamic)
    lines = [_SETTINGS_INTRODUCTION.format(live=live)]
    for title, settings in sections():
        lines += [
            "",
            f"## {title}",
            "",
            "| Setting | Default | Range | Meaning |",
            "| --- | --- | --- | --- |",
        ]
        lines += [_setting_row(setting) for setting in settings]
    return _NOTE + "\n".join(lines) + "\n"


def _setting_row(setting: Setting) -> str:
    default = f"`{shown}`" if (shown := shown_default(setting)) else ""
    return f"| `{setting.name}` | {default} | {_span(setting)} | {setting.doc} |"


def _span(setting: Setting) -> str:
    if setting.kind == "bool":
        return "true, false"
    if setting.least is None:
        return ""
    return f"from {setting.least}" if setting.most is None else f"{setting.least} to {setting.most}"


def _metrics() -> str:
    lines = [_METRICS_INTRODUCTION]
    for subject, measures in SUBJECTS.items():
        lines += ["", f"## {subject}", "", "| Metric | Kind | Meaning |", "| --- | --- | --- |"]
        for metric in measures:
            lines.append(f"| `{metric.shown_name}` | {metric.kind} | {metric.doc} |")
    lines += ["", _TABLE_METRICS_INTRODUCTION, "", "| Metric | Meaning |", "| --- | --- |"]
    lines += [f"| `{metric.shown_name}` | {metric.doc} |" for metric in TABLE_METRICS]
    return _NOTE + "\n".join(lines) + "\n"


def _command_line() -> str:
    root: Any = typer.main.get_command(app)
    parts = [_COMMANDS_INTRODUCTION]
    for path, command in _commands("lakehead", root):
        parts += ["", f"## {path}", "", _help_text(command)]
        usage = " ".join(
            [path, *(_usage(p) for p in command.params if p.param_type_name == "argument")]
        )
        parts += ["", "```", f"{usage} [OPTIONS]", "```"]
        options = [
            p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)
        ]
        if path in _WITH_SETTINGS:
            parts += ["", _WITH_SETTINGS[path]]
        elif options:
            parts += ["", "| Parameter | Meaning |", "| --- | --- |"]
            parts += [_parameter_row(parameter) for parameter in options]
        parts += ["", "```bash"]
        for example in EXAMPLES[path.removeprefix("lakehead ")]:
            parts += [f"# {example.purpose}", example.command]
        parts.append("```")
    return _NOTE + "\n".join(parts) + "\n"


def _commands(path: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, by its path."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(f"{path} {name}", command)
        else:
            yield f"{path} {name}", command


def _help_text(command: Any) -> str:
    paragraphs = (command.help or "").strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _usage(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _parameter_row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"| `{_usage(parameter)}` | {parameter.help} |"
    flag = "`, `".join(parameter.opts)
    if not parameter.is_flag:
        flag += f" {parameter.metavar or 'VALUE'}"
    words = parameter.help or ""
    if parameter.envvar:
        words += f" Environment: `{parameter.envvar}`."
    if parameter.default not in {None, False, ""} and not parameter.is_flag:
        words += f" Default: `{parameter.default}`."
    return f"| `{flag}` | {words} |"


def main() -> None:
    """Write every page."""
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
