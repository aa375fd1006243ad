"""The sockets that a service listens on."""

import errno
import socket


def listeners(hosts: str, port: int) -> list[socket.socket]:
    """A bound socket for each address of `hosts`, which are separated by commas.

    Of the addresses of a name those count that this machine has: in Compose a service has a name on one of its
    networks, which all of its containers share.

    Raises:
        OSError: an address cannot be used, or a name has none of this machine.
    """
    found: list[socket.socket] = []
    try:
        for host in map(str.strip, hosts.split(",")):
            before = len(found)
            for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                listener = socket.socket(family, kind, protocol)
                found.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    listener.bind(address)
                except OSError as error:
                    if error.errno != errno.EADDRNOTAVAIL:
                        raise
                    found.pop().close()
            if len(found) == before:
                raise OSError(errno.EADDRNOTAVAIL, f"{host} is no address of this machine")
    except OSError:
        for listener in found:
            listener.close()
        raise
    return found
