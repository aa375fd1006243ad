"""The process that forks programs: see the package.

    python -I host.py ROOT SOCKET MODULE…

It imports the modules when it is first asked for a program, and ends with its input.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

PROBE = Path("tests", "support", "loop_probe", "sitecustomize.py")


def serve(path: str, modules: list[str]) -> None:
    """Fork a keeper for each program that is asked for. Returns in the processes of programs only."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(100)
        os.write(1, b"ready\n")
        threading.Thread(target=_end_with_input, daemon=True).start()
        while True:
            connection, _ = listener.accept()
            if modules:
                _import(modules)
                modules = []
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _keep(connection)


def _import(modules: list[str]) -> None:
    for module in modules:
        import_module(module)
    import anyio  # noqa: PLC0415 - a host that nobody uses imports nothing
    import anyio.lowlevel  # noqa: PLC0415

    anyio.run(anyio.lowlevel.checkpoint)  # imports what it runs on
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _end_with_input() -> None:
    os.read(0, 1)
    os._exit(0)


def _keep(connection: socket.socket) -> None:
    """Fork one program, and end when it or whoever asked for it has ended. Returns in the program only.

    Whoever asked is sent a line with the process id, and one with the exit code.
    """
    text, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    if not text.endswith(b"\n"):
        os._exit(1)  # it has ended before it said anything
    about = json.loads(text)
    program = os.fork()
    if program == 0:
        connection.close()
        _become(about, streams)
        return
    for stream in (0, 1, 2, *streams):
        os.close(stream)
    connection.send(b"%d\n" % program)

    def end_with_connection() -> None:
        connection.recv(1)
        os.kill(program, signal.SIGKILL)

    threading.Thread(target=end_with_connection, daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    connection.send(b"%d\n" % code)
    os._exit(0)


def _become(about: dict[str, Any], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(about["env"])
    os.chdir(about["folder"])
    sys.argv = about["argv"]
    if "LOOP_PROBE" in os.environ:
        runpy.run_path(str(Path(sys.path[0], PROBE)))


def _run() -> None:
    module, _, function = sys.argv[0].partition(":")
    if function:
        sys.exit(getattr(import_module(module), function)())
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end(codes: list[object]) -> None:
    """End with the code of the last `SystemExit`, before Python clears all that was imported: that takes 0.2 s."""
    code = codes[-1]
    with suppress(OSError, ValueError):  # nobody reads them, or they are closed
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    root, path, *modules = sys.argv[1:]
    sys.path.insert(0, root)
    serve(path, modules)
    gc.unfreeze()
    codes: list[object] = [1]  # that of another exception
    atexit.register(_end, codes)  # what is registered first runs last, when the threads have ended
    try:
        _run()
        codes.append(0)
    except SystemExit as ended:
        codes.append(ended.code)
        raise
