"""TLS in front of an endpoint that speaks none. usage: tls_endpoint.py CERTIFICATES KEY PORT

Each connection gets the certificate that is in the file when it is made. Its port is told."""

import select
import socket
import ssl
import sys
import threading

from report import say

CERTIFICATES, KEY, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])


def pass_on(encrypted, plain):
    other = {encrypted: plain, plain: encrypted}
    while True:
        for source in select.select(list(other), [], [])[0]:
            data = source.recv(65536)
            if not data:
                return
            other[source].sendall(data)


def converse(stream):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES, KEY)
    try:
        with socket.create_connection(("127.0.0.1", PORT)) as plain:
            with context.wrap_socket(stream, server_side=True) as encrypted:
                pass_on(encrypted, plain)
    except OSError:
        stream.close()


with socket.create_server(("127.0.0.1", 0)) as server:
    say(port=server.getsockname()[1])
    while True:
        threading.Thread(target=converse, args=(server.accept()[0],), daemon=True).start()
