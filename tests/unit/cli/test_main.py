"""The entry point: exit codes, sentences, and what is not imported."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Never

import pytest
import typer

from penstock import __version__
from penstock.cli import cluster, main
from penstock.cli.connecting import connection_options
from penstock.cli.failures import MEANINGS, Exit, hint_of
from penstock.cli.serve import FLAGS
from penstock.client.errors import (
    COORDINATOR_NOT_AVAILABLE,
    LEADER_NOT_AVAILABLE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    BrokerRefused,
)

DOCS = Path(__file__).resolve().parents[3] / "docs"


def closed_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def test_the_version(capsys) -> None:
    assert main.run(["--version"]) == Exit.OK
    assert capsys.readouterr().out == f"penstock {__version__}\n"


def test_help_names_every_noun_and_every_exit_code(capsys) -> None:
    assert main.run(["--help"]) == Exit.OK
    shown = " ".join(capsys.readouterr().out.split())
    assert [noun for noun in main.NOUNS if f" {noun} " not in shown] == []
    assert [code for code in Exit if f"{code.value} {MEANINGS[code]}" not in shown] == []


def test_the_list_of_nouns_has_whole_sentences(capsys) -> None:
    assert main.run(["--help"]) == Exit.OK
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


@pytest.mark.parametrize("noun", main.NOUNS)
def test_every_noun_has_help(noun, capsys) -> None:
    assert main.run([noun, "--help"]) == Exit.OK
    assert f"penstock {noun}" in capsys.readouterr().out


def test_no_arguments_show_the_help_and_are_wrong_usage(capsys) -> None:
    assert main.run([]) == Exit.USAGE
    shown = capsys.readouterr().err
    assert "Usage: penstock" in shown
    assert shown.endswith(".\n")
    assert "error:" not in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["topc", "ls"], "No such command 'topc'. Did you mean 'topic'? See penstock --help\n"),
        (["topic", "create", "t", "-p", "0"], "'-p': it must be at least 1; see penstock topic create --help\n"),
        (["topic", "create", "t", "-p", "x"], "'-p': write a whole number; see penstock topic create --help\n"),
        (["bench", "--seconds", "5000"], "'--seconds': it must be at most 3600; see penstock bench --help\n"),
        (["topic", "ls", "--request-timeout", "x"], "'--request-timeout': write a number; see"),
        (["topic", "nonsense"], "No such command 'nonsense'"),
        (["topic", "create"], "Missing argument"),
        (["topic", "ls", "--nonsense"], "No such option: --nonsense"),
        (["topic", "ls", "-o", "xml"], "'-o': 'xml' is not one of"),
        (["topic", "ls", "--bootstrap", "nowhere:x"], "--bootstrap: 'nowhere:x' has no port"),
        (["topic", "config", "t", "--set", "novalue"], "--set 'novalue': write NAME=VALUE"),
        (["produce", "t", "--header", "novalue"], "--header 'novalue': write NAME=VALUE"),
        (["produce", "t", "-K", ""], "--key-separator must not be empty"),
        (["group", "reset", "g"], "Use exactly one of --to-earliest"),
        (["group", "reset", "g", "--to-latest", "--to-earliest"], "Use exactly one of"),
        (["consume", "t", "--group", "g", "--partition", "0"], "--group cannot be combined with --partition"),
        (["queue", "ls", "--http", "nowhere"], "--http: 'nowhere' has no port"),
        (["sink", "ls", "--http", "nowhere"], "--http: 'nowhere' has no port"),
        (["sink", "show"], "Missing argument 'NAME'"),
        (["queue", "ack", "orders", "-g", "g"], "'orders' is not a record: write TOPIC/PARTITION@OFFSET"),
        (["queue", "peek", "orders"], "Missing option '--group'"),
        (["dlq", "show", "t", "--since", "noon"], "--since 'noon': write a time such as"),
        (
            ["why", "orders/0", "-g", "g"],
            "'orders/0' is not a record: write TOPIC/PARTITION@OFFSET, for example orders/0@42",
        ),
        (["bench", "--only", "nonsense"], "--only: Unknown workload nonsense; choose from"),
        (["bench", "-b", "nowhere:x"], "--bootstrap: 'nowhere:x' has no port"),
        (["bench", "--gateways", "--only", "nonsense"], "--only: Unknown workload nonsense; choose from"),
        (["bench", "--gateways", "--tcp", "nowhere"], "--tcp: 'nowhere' has no port"),
        (["serve", "--nonsense"], "Unknown option '--nonsense'"),
        (["serve", "--kafka", "nowhere"], "listeners.kafka: 'nowhere' has no port"),
        (["config", "show", "--http", "nowhere"], "listeners.http: 'nowhere' has no port"),
    ],
)
def test_wrong_usage_is_a_sentence_and_exit_code_2(arguments, says, capsys) -> None:
    assert main.run(arguments) == Exit.USAGE
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.startswith("error: ")
    assert captured.out == ""


@pytest.mark.parametrize(
    ("line", "better"),
    [
        ("--bootstrap-server h:1 topic ls", "topic ls --bootstrap-server h:1"),
        ("--bootstrap-server=h:1 topic ls", "topic ls --bootstrap-server=h:1"),
        ("--bootstrap h:1 topic create t", "topic create t --bootstrap h:1"),
        ("-b h:1 --request-timeout 3 topic ls", "topic ls -b h:1 --request-timeout 3"),
        ("topic --bootstrap h:1 ls", "topic ls --bootstrap h:1"),
        ("--http h:1 queue ls", "queue ls --http h:1"),
        ("--json topic ls", "topic ls --json"),
        ("--bootstrap h:1 produce t -- -v", "produce t --bootstrap h:1 -- -v"),
        ("--kafka h:1 serve", "serve --kafka h:1"),
    ],
)
def test_an_option_that_is_written_before_its_command_is_shown_after_it(line, better, capsys) -> None:
    assert main.run(line.split()) == Exit.USAGE
    told = capsys.readouterr().err
    assert told.startswith("error: No such option: -")
    assert told.endswith(f"; write it after the command: penstock {better}\n")


@pytest.mark.parametrize(
    "line", ["--nonsense topic ls", "--bootstrap h:1", "--bootstrap h:1 nonsense", "--bootstrap h:1 cluster up"]
)
def test_an_option_that_no_command_on_the_line_has_is_only_refused(line, capsys) -> None:
    assert main.run(line.split()) == Exit.USAGE
    told = capsys.readouterr().err
    assert told.startswith("error: No such option: --")
    assert told.endswith("see penstock --help\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "ls"],
        ["topic", "create", "t"],
        ["produce", "t"],
        ["consume", "t"],
        ["tail", "t"],
        ["group", "ls"],
        ["bench"],
    ],
)
def test_no_broker_is_exit_code_4_and_says_what_to_do(arguments, capsys) -> None:
    assert main.run([*arguments, "--bootstrap", f"127.0.0.1:{closed_port()}"]) == Exit.UNREACHABLE
    error = capsys.readouterr().err
    assert re.fullmatch(
        r"error: Cannot connect to 127\.0\.0\.1:\d+\. Is the broker running\? Start a broker with .*\n", error
    )


def test_several_brokers_of_which_none_is_there_are_all_named(capsys) -> None:
    one, two = f"127.0.0.1:{closed_port()}", f"127.0.0.1:{closed_port()}"
    assert main.run(["topic", "ls", "--bootstrap", f"{one},{two}"]) == Exit.UNREACHABLE
    assert capsys.readouterr().err.startswith(f"error: Cannot connect to any of {one}, {two}: ")


@pytest.mark.parametrize("code", [LEADER_NOT_AVAILABLE, COORDINATOR_NOT_AVAILABLE, NOT_ENOUGH_REPLICAS])
def test_who_finds_nobody_to_do_it_is_told_where_to_look_and_once(code) -> None:
    assert hint_of(BrokerRefused(code, "t/0")) == "; penstock cluster status shows which nodes are missing"
    assert hint_of(BrokerRefused(code, "t/0", "start the nodes (penstock cluster status)")) == ""
    assert hint_of(BrokerRefused(NOT_LEADER_OR_FOLLOWER, "t/0")) == ""


def test_json_is_short_for_output_json_wherever_there_is_an_output(capsys) -> None:
    assert main.run(["config", "show", "--json"]) == Exit.OK
    short = capsys.readouterr().out
    assert main.run(["config", "show", "-o", "json"]) == Exit.OK
    assert short == capsys.readouterr().out
    assert json.loads(short)
    for arguments in (["topic", "describe", "t"], ["consume", "t"], ["why", "t/0@1", "-g", "g"], ["group", "ls"]):
        where = "--http" if "why" in arguments else "--bootstrap"
        assert main.run([*arguments, "--json", where, f"127.0.0.1:{closed_port()}"]) == Exit.UNREACHABLE
    assert main.run(["topic", "rm", "t", "--json"]) == Exit.USAGE
    # An argument is no option, whatever it is called.
    assert main.run(["topic", "rm", "--yes", "--bootstrap", f"127.0.0.1:{closed_port()}", "--", "--json"]) != Exit.USAGE


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "ls"],
        ["produce", "t"],
        ["consume", "t"],
        ["group", "ls"],
        ["pipeline", "archive", "t", "--to", "lake"],
    ],
)
@pytest.mark.parametrize("flag", ["--bootstrap-server", "--bootstrap-servers"])
def test_the_bootstrap_option_may_be_written_as_in_kafkas_tools(arguments, flag, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    port = closed_port()
    for written in ([flag, f"127.0.0.1:{port}"], [f"{flag}=127.0.0.1:{port}"]):
        assert main.run([*arguments, *written]) != Exit.USAGE
        assert f"127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize("acks", ["0", "1", "all", "none", "leader"])
def test_acks_are_taken_by_kafkas_numbers_and_by_the_other_apis_names(acks, capsys) -> None:
    arguments = ["produce", "t", "--acks", acks, "--bootstrap", f"127.0.0.1:{closed_port()}"]
    assert main.run(arguments) == Exit.UNREACHABLE


@pytest.mark.parametrize(
    "arguments",
    [
        ["queue", "ls"],
        ["queue", "lease", "t", "-g", "g"],
        ["queue", "ack", "t/0@1", "-g", "g"],
        ["sink", "ls"],
        ["sink", "show", "s"],
        ["sink", "delete", "s"],
        ["dlq", "ls"],
        ["dlq", "redrive", "t"],
        ["why", "t/0@1", "-g", "g"],
    ],
)
def test_no_broker_at_the_http_address_is_exit_code_4_too(arguments, capsys) -> None:
    assert main.run([*arguments, "--http", f"127.0.0.1:{closed_port()}"]) == Exit.UNREACHABLE
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: Cannot connect to 127\.0\.0\.1:\d+\. Is the broker running\? .* with --http\n", error)


def test_the_bootstrap_servers_may_be_in_the_environment(capsys, monkeypatch) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", f"127.0.0.1:{closed_port()}")
    assert main.run(["topic", "ls"]) == Exit.UNREACHABLE
    assert os.environ["PENSTOCK_BOOTSTRAP"] in capsys.readouterr().err


def test_what_nobody_expected_is_a_sentence_too(capsys, monkeypatch) -> None:
    def broken(_) -> Never:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(main, "_dispatch", broken)
    assert main.run([]) == Exit.FAILED
    assert "error: Unexpected ZeroDivisionError: division by zero" in capsys.readouterr().err
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main.run([])


def test_ctrl_c_is_quiet(capsys, monkeypatch) -> None:
    def interrupted(_) -> Never:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "_dispatch", interrupted)
    assert main.run([]) == Exit.INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_before_the_command_is_there_is_quiet_too() -> None:
    code = """
import builtins
load = builtins.__import__
def interrupted(name, *rest):
    if name == "penstock.cli.failures":
        raise KeyboardInterrupt
    return load(name, *rest)
builtins.__import__ = interrupted
from penstock.cli.main import main
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "")


def test_a_reader_that_goes_away_is_quiet() -> None:
    command = f"{sys.executable} -m penstock config example; echo rc=$? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({command}) | true"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr in ("rc=141\n", "rc=0\n"), "0 when the pipe's buffer took all before the reader went"


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (
            ["--version"],
            ["typer", "rich", "msgspec", "asyncio", "penstock.client", "penstock.config", "penstock.server"],
        ),
        (["serve", "--kafka", "nowhere"], ["typer", "rich", "penstock.client", "difflib"]),
        (["topic", "ls", "--bootstrap", "127.0.0.1:1"], ["asyncio", "rich.table", "penstock.server", "penstock.core"]),
    ],
)
def test_a_command_imports_only_what_it_needs(arguments, unwanted) -> None:
    script = (
        f"import sys; from penstock.cli.main import run; run({arguments!r});"
        f"print([name for name in {unwanted!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_documentation_has_the_table_of_exit_codes() -> None:
    text = (DOCS / "cli.md").read_text()
    assert [code for code in Exit if f"| {code.value} | {MEANINGS[code]} |" not in text] == []


@pytest.mark.parametrize("noun", main.NOUNS)
def test_the_documentation_has_every_noun(noun) -> None:
    assert re.search(rf"^### penstock {noun}", (DOCS / "cli.md").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("flag", FLAGS)
def test_the_documentation_has_every_flag_of_serve(flag) -> None:
    section = (DOCS / "cli.md").read_text().partition("### penstock serve")[2].partition("\n### ")[0]
    assert f"[{flag} " in section


def test_the_documentation_has_every_option_of_the_cluster_commands() -> None:
    section = (DOCS / "cli.md").read_text().partition("### penstock cluster")[2].partition("\n## ")[0]
    common = {"--help", "--output", "--bootstrap", "--http", "--request-timeout"}
    common |= {f"--{name}".replace("_", "-") for name in inspect.signature(connection_options).parameters}
    command = typer.main.get_group(cluster.app)
    missing = [
        f"{name} {option}"
        for name, each in command.commands.items()
        for parameter in each.params
        for option in parameter.opts
        if option.startswith("--") and option not in common and option not in section
    ]
    assert missing == []


def test_config_show_takes_every_flag_of_serve(capsys) -> None:
    for flag, path in FLAGS.items():
        value = {
            "--node-id": "2",
            "--cluster": "shop",
            "--log-format": "json",
            "--log-level": "debug",
            "--tls-client-auth": "required",
            "--peer-tls": "accept",
        }.get(flag, "127.0.0.1:1")
        # These go together.
        tls = ("--tls-cert", "a.crt", "--tls-key", "a.key", "--tls-ca", "ca.crt") if flag.startswith("--tls") else ()
        assert main.run(["config", "show", *tls, flag, value, "--changed", "-o", "json"]) == Exit.OK
        assert path in [row["name"] for row in json.loads(capsys.readouterr().out)]
