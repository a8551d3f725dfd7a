"""Runs a server that ends with whoever started us: `python keeper.py UID:GID FOLDER COMMAND...`.

We are the server's parent, so its number is not given to another process before we know that it has ended. Our first
line says that number, and we end as the server does. When our standard input ends, the process that wanted the server
is gone, however it went: the server is ended at once, and FOLDER (none if empty) is removed.

UID and GID are who the server runs as; empty means: as we do. No import but the standard library: it runs by its path.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading

END_S = 10.0


def main(who: str, folder: str, *command: str) -> None:
    uid, _, gid = who.partition(":")
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        cwd="/",  # ours may be closed to the other user
        user=int(uid) if uid else None,
        group=int(gid) if gid else None,
        extra_groups=[] if uid else None,
    )
    print(server.pid, flush=True)
    # Main thread: the server ends. The other: our input ends, so the server shall.
    orphaned, cleaned_up = threading.Event(), threading.Event()

    def watch() -> None:
        while os.read(0, 1024):
            pass
        orphaned.set()
        _end(server)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        cleaned_up.set()

    threading.Thread(target=watch, daemon=True).start()
    code = server.wait()
    if orphaned.is_set():
        cleaned_up.wait()
    os._exit(code if code >= 0 else 128 - code)  # at once: the thread may be in the middle of a read


def _end(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGQUIT)  # PostgreSQL's "immediate": it ends its children, and syncs nothing
    try:
        server.wait(END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
