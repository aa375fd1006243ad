"""A real nginx with the configuration that operators are given, in front of engines of a test."""

import re
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.local.ports import free_port
from tests.support.processes import ROOT, Process
from tests.support.waiting import wait_until_blocking

CONFIG = ROOT / "deploy" / "nginx" / "callstream.conf"
_MAIN = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {http}
    include {folder}/callstream.conf;
}}
"""


def missing() -> str | None:
    return None if _binary() else "no nginx on the path"


@contextmanager
def running_nginx(
    folder: Path, engine_ports: Sequence[int], *, http: str = "", config: str = CONFIG.read_text()
) -> Generator[str]:
    """The URL of an nginx in front of the engines, by that `config`; `http` is put into its `http` block. It must write
    no answer to its disk."""
    port = free_port()
    folder.mkdir(exist_ok=True)
    (folder / "callstream.conf").write_text(_for_test(config, port, engine_ports))
    (folder / "nginx.conf").write_text(_MAIN.format(folder=folder, http=http))
    nginx = Process([_binary() or "nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", "stderr"])
    try:
        wait_until_blocking(lambda: nginx.ready((folder / "nginx.pid").exists), what="nginx to start")
        yield f"http://127.0.0.1:{port}"
        assert "temporary file" not in nginx.output()
    finally:
        nginx.close()


def _for_test(config: str, port: int, engine_ports: Sequence[int]) -> str:
    config, listens = re.subn(r"listen \d+;", f"listen 127.0.0.1:{port};", config)
    engines = "\n    ".join(f"server 127.0.0.1:{each};" for each in engine_ports)
    config, upstreams = re.subn(r"server 127\.0\.0\.1:8000;", engines, config)
    if (listens, upstreams) != (1, 1):
        raise ValueError("the configuration does not have the places that a test fills in")
    return config


def _binary() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
