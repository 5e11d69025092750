"""The front door: help without imports, failures in one sentence."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from tests.unit.cli.commands import command_environment
from tests.unit.cli.named_commands import named_commands

import turbopump
from turbopump.cli import main
from turbopump.cli.entry import COMMANDS
from turbopump.compiled import KIND

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# `turbopump --help` may take 0.3 s. What it takes is imports, and these are what it may import of
# ours.
HELP_IMPORTS = {
    "turbopump",
    "turbopump.cli",
    "turbopump.cli.start",
    "turbopump.cli.entry",
    "turbopump.documentation",
    "turbopump.errors",
}


def test_help_imports_nothing_but_the_front_door(run_python: Callable[[str], str]) -> None:
    out = run_python(
        "import json, sys\nfrom turbopump.cli import "
        "main\nmain(['--help'])\nprint(json.dumps(sorted(sys.modules)))\n"
    )
    text, modules = out.rsplit("\n", 2)[0], json.loads(out.rsplit("\n", 2)[1])
    assert "Commands:" in text
    assert {name for name in modules if name.startswith("turbopump")} == HELP_IMPORTS
    assert not {"asyncio", "msgspec", "uvloop", "socket", "ssl"} & set(modules)


@pytest.mark.parametrize(
    "command",
    [["-m", "turbopump"], ["-c", "import sys; from turbopump.cli import main; sys.exit(main())"]],
)
def test_an_interrupt_while_a_command_is_being_imported_ends_it_quietly(
    command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "click.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    environment = command_environment()
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, *command, "--version"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_what_comes_before_the_front_door_is_short(run_python: Callable[[str], str]) -> None:
    """An interrupt there shows a traceback, and nothing can be done about it: it has to be
    short."""
    modules = run_python("import sys\nimport turbopump.cli\nprint(*sorted(sys.modules))\n").split()
    assert [name for name in modules if name.startswith("turbopump")] == [
        "turbopump",
        "turbopump.cli",
        "turbopump.cli.start",
    ]
    assert not {"click", "typing"} & set(modules)


def test_a_client_starts_without_the_settings_of_servers(run_python: Callable[[str], str]) -> None:
    """They are a quarter of what a command's start takes."""
    lines = "import sys\nimport turbopump.cli.topic\nprint(*sorted(sys.modules))\n"
    modules = run_python(lines).split()
    assert "turbopump.config.tls" in modules
    assert not {"turbopump.config.broker_config", "importlib.resources"} & set(modules)


@pytest.mark.parametrize(
    "name", ["topic", "offset", "group", "auth", "doctor", "cluster", "consume"]
)
def test_a_command_starts_without_what_it_seldom_needs(
    name: str, run_python: Callable[[str], str]
) -> None:
    """A command takes at most 0.2 s of a processor, and nearly all of that is imports."""
    lines = f"import sys\nimport turbopump.cli.{name}\nprint(*sorted(sys.modules))\n"
    modules = set(run_python(lines).split())
    seldom = {
        "turbopump.client.push_consumer",
        "turbopump.client.producer",
        "turbopump.broker.broker",
    }
    seldom |= {"turbopump.config.broker_config", "turbopump.cli.serving", "turbopump.spark"}
    seldom |= {"rich", "yaml", "cryptography", "pyarrow", "pyspark"}
    assert seldom & modules == set()
    assert name == "consume" or "turbopump.client.instance" not in modules


@pytest.mark.parametrize(
    "use", ["import turbopump\nturbopump.Producer", "from turbopump.blocking import Producer"]
)
def test_the_library_shows_nothing_of_its_log_by_itself(
    use: str, run_python: Callable[[str], str]
) -> None:
    log = "import logging\nprint(type(logging.getLogger('turbopump').handlers[0]).__name__)\n"
    assert run_python(f"{use}\n{log}") == "NullHandler\n"


def test_the_table_of_commands_is_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    modules = {path.stem for path in Path(turbopump.__file__).parent.joinpath("cli").glob("*.py")}
    assert set(COMMANDS) <= modules
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, about in COMMANDS.items():
        command = importlib.import_module(f"turbopump.cli.{name}").command
        assert isinstance(command, click.Command)
        assert command.name == name
        assert about in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: turbopump {name}")


def test_the_version_is_the_packages_and_tells_which_functions_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"turbopump {turbopump.__version__}, {KIND}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["bogus"], 2, "turbopump: No such command 'bogus'; see turbopump --help"),
        (
            ["prodcue", "orders"],
            2,
            "turbopump: No such command 'prodcue'. Did you mean 'produce'? See turbopump --help",
        ),
        (
            ["topic", "lst"],
            2,
            "turbopump topic: No such command 'lst'. Did you mean 'list'? See turbopump topic",
        ),
        (["namesrv", "--qqq"], 2, "turbopump namesrv: No such option"),
        (
            ["topic", "create"],
            2,
            "turbopump topic create: Missing argument 'TOPIC'; see turbopump topic create --help",
        ),
        (["dev", "--broker-port", "x"], 2, "turbopump dev: Invalid value for '--broker-port': "),
        (
            ["dev", "--host", "0.0.0.0"],
            2,
            "turbopump: 0.0.0.0 can be reached from other machines, and everyone there",
        ),
        (
            ["namesrv", "--host", "10.0.0.1"],
            2,
            "turbopump: 10.0.0.1 can be reached from other machines",
        ),
        (["broker", "--host", "::"], 2, "turbopump: :: can be reached from other machines"),
        (["broker", "--advertise", "a:b"], 2, "turbopump: --advertise 'a:b' has no valid port"),
        (["broker", "-n", "nowhere"], 2, "turbopump: namesrvAddr 'nowhere' has no port"),
        (
            ["broker", "-c", "/no/such/file"],
            2,
            "turbopump: the configuration file /no/such/file cannot be read: No such",
        ),
        (
            ["namesrv", "--log-file", "/no/such/dir/log"],
            2,
            "turbopump: the log file /no/such/dir/log cannot be opened",
        ),
        (["topic", "list", "-n", "host"], 2, "turbopump: name server address 'host' has no port"),
        (
            ["topic", "list", "-n", "127.0.0.1:1"],
            1,
            "turbopump: cannot reach a name server: cannot connect to 127.0",
        ),
    ],
)
def test_a_failure_is_one_sentence_and_an_exit_code(
    run_here: Run, arguments: list[str], code: int, sentence: str
) -> None:
    done = run_here(*arguments)
    assert done.returncode == code
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_bind_address_from_a_file_needs_insecure_too(run_here: Run, tmp_path: Path) -> None:
    conf = tmp_path / "server.conf"
    conf.write_text("bindAddress=0.0.0.0\n")
    for command in ("namesrv", "broker"):
        done = run_here(command, "-c", str(conf))
        assert done.returncode == 2
        assert done.stderr.endswith("add --insecure\n")


def test_without_a_command_the_help_is_shown_and_the_code_is_two(run: Run) -> None:
    for arguments in ([], ["topic"]):
        done = run(*arguments)
        assert done.returncode == 2
        assert "Commands:" in done.stderr


def test_the_log_of_every_command_has_a_form() -> None:
    without = {
        name
        for name, command in named_commands().items()
        if "log_format" not in {parameter.name for parameter in command.params}
        and (name in ("broker", "namesrv") or not isinstance(command, click.Group))
    }
    assert without == set()


def test_every_option_has_its_help_as_a_line_in_the_docs() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "reference", "cli.md").read_text("utf-8")
    plain = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", page)
    rows = re.findall(
        r"^\| `([^`]+)` \| `(--?[\w-]+)[^`]*` \| (.*) \| .*\|$", plain, flags=re.MULTILINE
    )
    common_texts = (
        "Form of the answer.",
        "Repeat the command",
        "The same as the argument",
        "Show old → new values",
    )
    documented = {
        (name, option): text.replace(r"\|", "|")
        for name, option, text in rows
        if not text.startswith(common_texts)
    }
    common = {"--log-level", "--log-format", "--log-file", "--namesrv", "--credentials"}
    common |= {"--tls", "--tls-trust", "--tls-config"}
    assert all(f"`{option}`" in page for option in common)
    options = {
        (name, max(option.opts, key=len)): (option.help or "").split("  [default")[0]
        for name, command in named_commands().items()
        for option in command.params
        if isinstance(option, click.Option)
    }
    assert documented == {
        one: text
        for one, text in options.items()
        if one[1] not in common and not text.startswith(common_texts)
    }
