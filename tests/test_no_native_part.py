"""Where the native part is not (other platforms, a broken installation), and where /proc is not: errors of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xpushare as xs
from sampling import sampled

PACKAGE = Path(xs.__file__).parent
# What Python on Windows lacks.
UNIX = ("fcntl", "resource", "pwd", "grp", "termios")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package without its native part."""
    root = tmp_path_factory.mktemp("bare")
    shutil.copytree(PACKAGE, root / "xpushare", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return root


def run(bare: Path, platform: str, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    before = f"import sys; sys.path.insert(0, {str(bare)!r}); sys.platform = {platform!r}\n"
    if platform == "win32":
        before += f"for name in {UNIX}: sys.modules[name] = None\n"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", before + source, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def command(bare: Path, platform: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(bare, platform, "import xpushare.cli; sys.exit(xpushare.cli.main(sys.argv[1:]))", *arguments)


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_every_name_loads_or_says_why(bare: Path, platform: str) -> None:
    source = """
import xpushare as xs
there = []
for name in xs.__all__:
    try:
        getattr(xs, name)
        there.append(name)
    except xs.FeatureNotSupportedError as error:
        assert "native part" in str(error), error
print(*there)
"""
    done = run(bare, platform, source)
    assert done.stderr == ""
    assert {"Device", "devices", "Aspect", "XpuShareError", "InvalidArgumentError"} <= set(done.stdout.split())
    assert not {"empty", "attach", "ipc", "ur", "Event"} & set(done.stdout.split())


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_there_are_no_devices(bare: Path, platform: str) -> None:
    done = run(bare, platform, "import xpushare as xs; print(xs.devices(), xs.devices('cuda:*')); xs.Device('cpu')")
    assert done.stdout == "[] []\n"
    assert "FeatureNotSupportedError" in done.stderr


@pytest.mark.parametrize("platform", sampled(["linux", "darwin"], ["linux"]))
@pytest.mark.parametrize("name", ["demo", "doctor", "ls", "bench", "trace", "conformance"])
def test_commands_say_it(bare: Path, platform: str, name: str) -> None:
    done = command(bare, platform, name, *(["true"] if name == "trace" else []))
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("xpushare: ")
    assert "native part" in done.stderr
    assert "Traceback" not in done.stderr
    assert command(bare, platform, name, "--help").returncode == 0


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_what_can_work_does(bare: Path, platform: str) -> None:
    done = command(bare, platform, "--help")
    assert done.returncode == 0, done.stderr
    assert "list what the processes" in done.stdout.lower()
    done = command(bare, platform, "info")
    assert done.returncode == 1
    assert done.stderr == ""
    assert "no native part" in done.stdout


WITHOUT_PROC = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]


@pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run([*WITHOUT_PROC, "true"], capture_output=True).returncode != 0,
    reason="needs the right to make a mount namespace",
)
def test_without_proc() -> None:
    with xs.share(xs.array([1, 2, 3])) as handle:
        source = f"""
import xpushare as xs
for call in (lambda: xs.attach({str(handle)!r}), xs.shares, lambda: xs.share(xs.empty(1))):
    try:
        call()
    except xs.FeatureNotSupportedError as error:
        assert "mount -t proc" in str(error), error
        print("told")
"""
        done = subprocess.run([*WITHOUT_PROC, sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
        assert done.stdout == "told\n" * 3, done.stderr
    done = subprocess.run(
        [*WITHOUT_PROC, sys.executable, "-m", "xpushare", "ls"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "mount -t proc" in done.stderr
    assert "nothing is shared" not in done.stdout
