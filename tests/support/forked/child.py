"""The command of a forked MCP server: see the package. It imports little, because its start is what tests wait for."""

import json
import os
import socket
import sys

host = socket.socket(socket.AF_UNIX)
host.connect(sys.argv[1])
about = {"argv": sys.argv[2:], "env": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109 - slow to import
socket.send_fds(host, [json.dumps(about).encode() + b"\n"], [0, 1, 2])
for stream in (0, 1, 2):
    os.close(stream)
answers = host.makefile("r").read().split()  # the process id and the exit code; less when the host has ended
os._exit(int(answers[1]) % 256 if len(answers) == 2 else 1)
