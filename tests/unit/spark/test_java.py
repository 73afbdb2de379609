import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark import java
from penstock.spark.java import JavaError, Origin, find, parse_version, refusal_of


@pytest.fixture
def fake(tmp_path):
    """``fake("name", "17.0.1")``: a Java home whose ``java`` says that it is of this version."""

    def make(name, version, code=0):
        home = tmp_path / name
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(
            "#!/bin/sh\n"
            f"printf 'Property settings:\\n    java.home = {home}\\n    java.version = {version}\\n' >&2\n"
            f"exit {code}\n"
        )
        program.chmod(0o755)
        return home

    return make


@pytest.fixture(autouse=True)
def _no_java(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("17.0.15", (17, 0, 15)),
        ("21", (21,)),
        ("1.8.0_402", (8, 0)),
        ("25.0.3+9-LTS", (25, 0, 3)),
        ("26-ea", (26,)),
        ("", None),
        ("GraalVM", None),
    ],
)
def test_a_version_is_read_in_every_form_that_java_writes(text, numbers) -> None:
    assert parse_version(text) == numbers


@pytest.mark.parametrize("version", [(17,), (17, 0, 15), (21, 0, 8), (25, 0, 3), (25, 1)])
def test_spark_runs_on_it(version) -> None:
    assert refusal_of(version) is None


@pytest.mark.parametrize("version", [(8, 0), (11, 0, 2), (18,), (24,), (26,), (25,), (25, 0, 2)])
def test_spark_does_not_run_on_it(version) -> None:
    assert refusal_of(version) is not None


def test_java_home_comes_before_path(fake, monkeypatch) -> None:
    home = fake("home", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(fake("other", "21.0.1") / "bin"))
    found = find()
    assert (found.home, found.version, found.origin) == (str(home), (17, 0, 1), Origin.JAVA_HOME)


def test_an_old_java_home_is_passed_over_and_the_log_says_what_was_taken(fake, monkeypatch, caplog) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake("old", "11.0.2")))
    path = fake("new", "21.0.1")
    monkeypatch.setenv("PATH", str(path / "bin"))
    with caplog.at_level(logging.WARNING, "penstock.spark.java"):
        found = java.provide()
    assert (found.home, found.origin) == (str(path), Origin.PATH)
    assert "Java 11.0.2 from JAVA_HOME" in caplog.text
    assert "using this instead: Java 21.0.1 from PATH" in caplog.text
    assert os.environ["JAVA_HOME"] == str(path)


def test_a_java_home_where_nothing_answers_is_passed_over(fake, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(fake("path", "17") / "bin"))
    assert find().origin is Origin.PATH


def test_a_stub_that_only_says_where_to_get_java_is_passed_over(fake, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(fake("stub", "17", code=1) / "bin"))
    assert find().origin is Origin.PIP


def test_a_chosen_java_25_that_corrupts_data_is_refused(fake, monkeypatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake("early", "25.0.2")))
    with pytest.raises(JavaError, match=r"corrupts data before 25\.0\.3; update it"):
        find()


def test_such_a_java_25_in_path_is_passed_over(fake, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(fake("early", "25") / "bin"))
    assert find().origin is Origin.PIP


def test_without_any_the_text_says_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda _name: None)
    with pytest.raises(JavaError, match=r"pip install 'penstock\[spark\]'"):
        find()


def test_the_java_that_pip_installed_starts_though_spark_asks_for_a_module_that_it_lacks() -> None:
    home = Path(find().home)
    arguments = ["--add-modules=jdk.incubator.vector", "-Dsaid=two words", "-XshowSettings:properties", "-version"]
    answer = subprocess.run(
        [home / "bin" / "java", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "said = two words" in answer.stderr


def test_processes_that_race_for_the_wrapper_all_get_one_that_starts() -> None:
    program = "from penstock.spark.java import find; print(find().home)"
    racers = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    homes = {racer.communicate()[0].strip() for racer in racers}
    assert len(homes) == 1
    folder = Path(homes.pop()) / "bin"
    assert [path.name for path in folder.iterdir()] == ["java"]


def test_a_wrapper_that_was_tampered_with_is_made_again() -> None:
    program = Path(find().home) / "bin" / "java"
    program.write_text("#!/bin/sh\nexit 1\n")
    assert find().origin is Origin.PIP
    assert subprocess.run([program, "-version"], capture_output=True, check=False).returncode == 0


def test_the_module_prints_a_java_home_for_a_shell(fake, monkeypatch) -> None:
    home = fake("home", "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    answer = subprocess.run(
        [sys.executable, "-m", "penstock.spark.java"], capture_output=True, text=True, check=True, env=os.environ
    )
    assert answer.stdout == f"{home}\n"
