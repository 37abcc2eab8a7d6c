"""The bootstrap script: one real set-up, and everything that can go wrong against a stand-in for Python."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernels.paths import CHECKOUT

MILL = CHECKOUT.root / "mill"

# Answers what mill asks of Python, logs what it would install, and runs nothing.
STAND_IN = r"""#!/bin/sh
log() { printf '%s\n' "$*" >>"$MILL_TEST_LOG"; }
case "$*" in
*version_info*) [ -z "$MILL_TEST_OLD" ] && printf '%s\n' "$MILL_TEST_PYTHON" || echo 'old 3.9.1' ;;
*ensurepip*) [ -z "$MILL_TEST_NO_VENV" ] ;;
*fcntl*) exec REAL "$@" ;;
'-m venv '*) log venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
*' install '*)
    log "pip $*"
    [ -z "$MILL_TEST_SLEEP" ] || sleep "$MILL_TEST_SLEEP"
    [ -z "$MILL_TEST_NO_PIP" ] ;;
*) printf 'ran in %s from %s:' "$PWD" "$MILL_CWD"; printf ' <%s>' "$@"; echo ;;
esac
"""


class Checkout:
    """A checkout that holds what mill looks at, with a stand-in for Python."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tools = root.parent / "tools"
        self.log = root.parent / "log"
        self.python = self.tools / "python3"
        (root / "examples").mkdir(parents=True)
        self.tools.mkdir()
        shutil.copy(MILL, root / "mill")
        (root / "pyproject.toml").write_text("[project]\n")
        (root / "examples" / "weights.txt").write_text("weights\n")
        self.python.write_text(STAND_IN.replace("REAL", shlex.quote(sys.executable)))
        self.python.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        ours = {"MILL_TEST_LOG": str(self.log), "MILL_TEST_PYTHON": str(self.python)}
        return {"PATH": f"{self.tools}:/usr/bin:/bin", **ours, **more}

    def run(self, *args: str, cwd: Path | None = None, script: str = "", **env: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [script or str(self.root / "mill"), *args],
            cwd=cwd or self.root,
            env=self.environment(**env),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def installs(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path / "ä b" / "gem mill")


def test_first_start_makes_the_venv_and_installs_the_factory(checkout):
    ran = checkout.run("list", "a b")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"ran in {checkout.root} from {checkout.root}: <-m> <kernels> <list> <a b>\n"
    venv, pip = checkout.installs()
    assert venv == "venv"
    assert pip.endswith("-e .[factory]") or pip.endswith("-e .[factory,zig]")


def test_second_start_does_nothing_but_run(checkout):
    checkout.run()
    before = checkout.installs()
    ran = checkout.run("x")
    assert ran.stderr == ""
    assert checkout.installs() == before


def test_test_installs_its_extra_and_the_weights_once(checkout):
    for _ in range(2):
        ran = checkout.run("test", "-k", "a b")
        assert ran.stdout.endswith(": <-m> <pytest> <-k> <a b>\n")
    installs = checkout.installs()
    assert len(installs) == 3
    assert "-e .[test" in installs[1]
    assert "--no-deps -r examples/weights.txt" in installs[2]
    # What the tests need includes what the factory needs.
    checkout.run()
    assert len(checkout.installs()) == 3


@pytest.mark.parametrize("changed", ["pyproject.toml", "examples/weights.txt"])
def test_changed_requirements_are_installed_into_the_same_venv(checkout, changed):
    checkout.run("test")
    (checkout.root / changed).write_text("changed\n")
    checkout.run("test")
    checkout.run("test")
    assert checkout.installs().count("venv") == 1
    assert len(checkout.installs()) == 5


def test_touched_requirements_are_not_installed_again(checkout):
    checkout.run()
    before = checkout.installs()
    os.utime(checkout.root / "pyproject.toml", (0, 0))
    checkout.run()
    assert checkout.installs() == before


def test_from_another_directory_and_through_relative_links(checkout, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "one").symlink_to("../ä b/gem mill/mill")
    (tmp_path / "two").symlink_to("bin/one")
    for script in (str(checkout.root / "mill"), "../bin/one", "../two", str(tmp_path / "two")):
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        ran = checkout.run("x", cwd=tmp_path / "elsewhere", script=script)
        assert ran.stdout == f"ran in {checkout.root} from {tmp_path / 'elsewhere'}: <-m> <kernels> <x>\n", ran.stderr


def test_moved_checkout_is_noticed(checkout, tmp_path):
    checkout.run()
    checkout.root = checkout.root.rename(tmp_path / "moved")
    assert checkout.run("x").stdout.startswith(f"ran in {tmp_path / 'moved'}")
    assert checkout.installs().count("venv") == 2
    checkout.run("x")
    assert checkout.installs().count("venv") == 2


def test_vanished_interpreter_is_noticed(checkout):
    checkout.run()
    newer = checkout.python.with_name("python3.14")
    checkout.python.rename(newer)
    ran = checkout.run("x", MILL_TEST_PYTHON=str(newer), PYTHON=str(newer))
    assert ran.returncode == 0, ran.stderr
    assert checkout.installs().count("venv") == 2


def test_killed_set_up_is_done_again(checkout):
    process = subprocess.Popen(
        [str(checkout.root / "mill")], env=checkout.environment(MILL_TEST_SLEEP="30"), start_new_session=True
    )
    while len(checkout.installs()) < 2:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (checkout.root / ".venv" / "half-made").touch()
    assert checkout.run("x").returncode == 0
    assert not (checkout.root / ".venv" / "half-made").exists()
    assert checkout.installs().count("venv") == 2


def test_failed_install_is_tried_again(checkout):
    ran = checkout.run("x", MILL_TEST_NO_PIP="1")
    assert ran.returncode == 1
    assert "pip could not install" in ran.stderr
    assert "ran in" not in ran.stdout
    assert checkout.run("x").returncode == 0


def test_a_venv_made_by_hand_is_added_to_and_not_removed(checkout):
    (checkout.root / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(checkout.python, checkout.root / ".venv" / "bin" / "python")
    (checkout.root / ".venv" / "mine").touch()
    assert checkout.run("x").returncode == 0
    assert (checkout.root / ".venv" / "mine").exists()
    assert "venv" not in checkout.installs()


def test_first_starts_at_once_set_up_once(checkout):
    started = [
        subprocess.Popen(
            [str(checkout.root / "mill"), "x"],
            env=checkout.environment(MILL_TEST_SLEEP="0.5"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0] * 4, outputs
    assert len(checkout.installs()) == 2
    assert sum("waiting for another set-up" in err for _, err in outputs) >= 1


def test_old_python_is_named(checkout):
    ran = checkout.run(MILL_TEST_OLD="1", PATH=f"{checkout.tools}:{_only('sh', 'mkdir', 'date', checkout=checkout)}")
    assert ran.returncode == 1
    assert "Python >= 3.10 is needed" in ran.stderr
    assert "python3 is 3.9.1" in ran.stderr
    assert "apt install python3" in ran.stderr


def test_no_python_says_what_to_install(checkout):
    checkout.python.unlink()
    ran = checkout.run(PATH=_only("sh", "mkdir", "date", checkout=checkout))
    assert ran.returncode == 1
    assert "Python >= 3.10 is needed and none was found" in ran.stderr


@pytest.mark.parametrize("named", ["/nonexistent/python", "OLD"])
def test_python_that_was_named_is_the_only_one_tried(checkout, named):
    old = {"MILL_TEST_OLD": "1"} if named == "OLD" else {}
    python = str(checkout.python) if named == "OLD" else named
    ran = checkout.run(PYTHON=python, **old)
    assert ran.returncode == 1
    why = f" ({python} is 3.9.1)" if named == "OLD" else ""
    assert ran.stderr == f"mill: PYTHON={python} is no Python >= 3.10{why}\n"


def test_missing_venv_module_says_what_to_install(checkout):
    ran = checkout.run(MILL_TEST_NO_VENV="1")
    assert ran.returncode == 1
    assert "apt install python3-venv" in ran.stderr


def test_without_a_compiler_zig_is_installed(checkout):
    tools = _only("sh", "mkdir", "date", "cmp", "cp", "rm", "cat", checkout=checkout)
    ran = checkout.run("x", PATH=f"{checkout.tools}:{tools}")
    assert ran.returncode == 0, ran.stderr
    assert "no C++ compiler is installed" in ran.stderr
    assert "-e .[factory,zig]" in checkout.installs()[1]


def test_settings_that_would_lead_python_and_pip_astray_are_dropped(checkout):
    checkout.python.write_text(f"#!/bin/sh\nenv >>'{checkout.log}.env'\n" + checkout.python.read_text())
    astray = dict.fromkeys(("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX"), "/astray")
    assert checkout.run("x", PIP_USER="1", **astray).returncode == 0
    seen = Path(f"{checkout.log}.env").read_text()
    assert "/astray" not in seen
    assert "PIP_USER=0" in seen


def _only(*names: str, checkout: Checkout) -> str:
    """Return a directory that has these programs and no others."""
    folder = checkout.tools.parent / "only"
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).symlink_to(shutil.which(name))
    return str(folder)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Return a checkout that has only what git would have, in a place with spaces and non-ASCII letters."""
    root = tmp_path_factory.mktemp("ü x") / "gem mill"
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("kernels", "runtime", "native", "templates", "examples"):
        shutil.copytree(CHECKOUT.root / name, root / name, ignore=unwanted)
    for name in ("mill", "dodo.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT.root / name, root)
    return root


def test_real_set_up(fresh, tmp_path):
    """Two first starts at once, through a link, with a real Python and pip."""
    (tmp_path / "mill").symlink_to(fresh / "mill")
    started = [
        subprocess.Popen(["./mill", "list"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=600) for process in started]
    for process, (out, err) in zip(started, outputs, strict=True):
        assert process.returncode == 0, err
        assert out.count("missing") == 42
    assert sum("set up in" in err for _, err in outputs) == 1
    again = subprocess.run(["./mill", "list", "arch=generic"], cwd=tmp_path, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (0, "")
    # Kernels are listed where nothing can build them; the reason then goes to stderr, once.
    other = subprocess.run(["./mill", "list", "arch=gfx942"], cwd=tmp_path, capture_output=True, text=True)
    assert other.returncode == 0
    assert other.stderr == "" or re.fullmatch("mill: no compiler for AMD GPUs.*\n", other.stderr)
    assert "gfx942/gemm_aquant_fp8_rcr_mem_cshuffle_interwave_16x64x256_1x4x1_16x16x32_qg1x1x128" in other.stdout
    doit = subprocess.run([".venv/bin/doit", "list"], cwd=fresh, capture_output=True, text=True)
    assert doit.returncode == 0, doit.stderr
    assert doit.stdout.splitlines()[0].startswith("codegen")
