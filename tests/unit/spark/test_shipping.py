"""What is sent to executors works in a Python that has nothing but the standard library (and, for the source, Spark's own)."""

import os
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from penstock.spark import shipped, shipping
from penstock.spark.shipping import ShippingError, package

CLUSTER_HAS = {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "dateutil", "pytz", "tzdata", "six"}
DRIVER_ONLY = ("penstock.spark.lake", "penstock.spark.pipelines")
"""What commits to a lake, and what reads a pipeline's file, needs libraries that only the driver has."""


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock"


def python(archive, program):
    """Run a program with the archive and the standard library alone."""
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(archive)!r})\n{program}"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )


def test_a_bare_python_imports_the_client_and_its_compiled_libraries(cache) -> None:
    archive = package()
    answer = python(
        archive, "import penstock.client, cramjam, crc32c, msgspec; print(penstock.client.__file__, cramjam.__file__)"
    )
    assert answer.returncode == 0, answer.stderr
    folder = cache / archive.stem
    assert answer.stdout.split() == [str(folder / "penstock/client/__init__.py"), str(folder / "cramjam/__init__.py")]


def test_workers_that_race_to_unpack_leave_one_whole_folder(cache) -> None:
    archive = package()
    program = f"import sys; sys.path.append({str(archive)!r})\nimport penstock.client"
    racers = [subprocess.Popen([sys.executable, "-I", "-S", "-c", program], env=os.environ) for _ in range(4)]
    assert [racer.wait() for racer in racers] == [0, 0, 0, 0]
    assert sorted(path.name for path in cache.iterdir()) == [archive.stem, archive.name]


def test_the_same_files_make_the_same_archive(cache) -> None:
    first = package()
    content = first.read_bytes()
    first.unlink()
    assert package() == first
    assert first.read_bytes() == content


def test_a_users_module_goes_with_it(monkeypatch, tmp_path) -> None:
    (tmp_path / "users_steps.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = python(package(["users_steps"]), "import users_steps; print(users_steps.double(21))")
    assert answer.stdout == "42\n"


def test_a_users_package_goes_with_its_modules(monkeypatch, tmp_path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").touch()
    (tmp_path / "jobs" / "one.py").write_text("NAME = 'one'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert python(package(["jobs"]), "import jobs.one; print(jobs.one.NAME)").stdout == "one\n"


def test_a_compiled_module_of_the_users_is_refused_with_what_to_do() -> None:
    with pytest.raises(ShippingError, match=r"spark\.archives"):
        package(["msgspec"])


@pytest.mark.parametrize("name", ["no_such_module_here", "os.path", "sys"])
def test_names_that_are_not_modules_are_refused(name) -> None:
    with pytest.raises(ShippingError, match="specify a top-level module"):
        package([name])


def test_the_error_on_another_platform_says_to_install_it(tmp_path) -> None:
    archive = tmp_path / "penstock-0.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr(shipped.PLATFORM, "cpython-39 on linux-m68k")
    with pytest.raises(ImportError, match=r"sent by cpython-39 on linux-m68k.*pip install"):
        shipped.unpack(archive)


def test_the_broker_is_not_sent() -> None:
    with zipfile.ZipFile(package()) as zipped:
        folders = {name.split("/")[2] for name in zipped.namelist() if name.startswith("_packed/penstock/")}
    assert not folders & {"core", "log", "gateways", "cli", "server.py", "__main__.py"}
    assert set(shipping.FOLDERS) <= folders


def test_the_module_prints_the_archive_for_spark_submit() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "penstock.spark.shipping"], capture_output=True, text=True, check=True, env=os.environ
    )
    assert answer.stdout == f"{package()}\n"


def test_every_module_of_the_source_imports_with_what_is_sent_and_spark_alone(tmp_path) -> None:
    # Folders of links: what a cluster's Python has of its own, and nothing beside it.
    site = tmp_path / "site"
    site.mkdir()
    installed = sysconfig.get_path("purelib")
    for name in os.listdir(installed):
        if name.split(".")[0] in CLUSTER_HAS:
            (site / name).symlink_to(os.path.join(installed, name))
    program = f"""
sys.path.insert(0, {str(site)!r})
import importlib, pkgutil, penstock.spark
for module in pkgutil.walk_packages(penstock.spark.__path__, "penstock.spark."):
    if not module.name.startswith({DRIVER_ONLY!r}):
        importlib.import_module(module.name)
print("all")
"""
    answer = python(package(), program)
    assert answer.stdout == "all\n", answer.stderr


def test_workers_of_the_driver_find_its_libraries_behind_all_others(monkeypatch, tmp_path) -> None:
    """The libraries that commit to a lake are not sent: they are used from the driver's Python."""
    (tmp_path / "only_the_driver.py").write_text("NAME = 'found'\n")
    (tmp_path / "msgspec.py").write_text("raise AssertionError('the one that was sent comes first')\n")
    program = "import penstock.client, msgspec, only_the_driver; print(only_the_driver.NAME)"
    archive = package()
    assert "only_the_driver" in python(archive, program).stderr
    monkeypatch.setenv(shipped.DRIVERS_LIBRARIES, str(tmp_path))
    answer = python(archive, program)
    assert (answer.stdout, answer.stderr) == ("found\n", "")
