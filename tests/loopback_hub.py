"""A stand-in for the Hugging Face hub on loopback: the routes that `huggingface_hub` asks to download a model."""

import contextlib
import dataclasses
import hashlib
import http.server
import json
import re
import threading
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
API = re.compile(r"/api/models/(?P<name>[^/]+/[^/]+)/(?P<what>revision|tree)/(?P<revision>\w+)")
RESOLVE = re.compile(r"/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>\w+)/(?P<file>.+)")
STORE = re.compile(r"/store/(?P<name>[^/]+/[^/]+)/(?P<file>.+)")
"""Where large files are: the hub redirects to such a place, on another host."""


@dataclasses.dataclass
class LoopbackHub:
    """What the stand-in holds, how it misbehaves, and what it was asked."""

    models: dict[str, Path] = dataclasses.field(default_factory=dict)
    refusal: tuple[int, str] | None = None
    """Status and error code of every request for a file."""
    cuts: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    """For some files, how many bytes the next answers send before the connection is closed; then all of it."""
    lost: tuple[str, ...] = ()
    """Files that are listed and not there."""
    requests: list[tuple[str, str, bool]] = dataclasses.field(default_factory=list)
    """Method, path, and whether only the rest of a file was asked for."""
    url: str = ""

    def files(self, name):
        directory = self.models[name]
        return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())

    def downloaded(self):
        """The files that were asked for, not only about."""
        found = [RESOLVE.fullmatch(path) or STORE.fullmatch(path) for path in self.asked("GET")]
        return sorted({match["file"] for match in found if match})

    def asked(self, method):
        return [path for one, path, _ in self.requests if one == method]

    def resumed(self):
        """Paths of requests for the rest of a file."""
        return [path for _, path, rest in self.requests if rest]


@contextlib.contextmanager
def serving(hub):
    """The hub at a free port of 127.0.0.1."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LoopbackHub

    def do_GET(self):
        path = urlsplit(self.path).path
        self.hub.requests.append((self.command, path, "Range" in self.headers))
        if found := API.fullmatch(path):
            return self.describe(**found.groupdict())
        if found := RESOLVE.fullmatch(path):
            return self.resolve(**found.groupdict())
        if found := STORE.fullmatch(path):
            return self.send(self.hub.models[found["name"]] / found["file"])
        return self.refuse(404, "NotFound")

    do_HEAD = do_GET

    def log_message(self, *_):
        """Nothing on the screen."""

    def describe(self, name, what, revision):
        if name not in self.hub.models:
            return self.refuse(*(self.hub.refusal or (401, "RepoNotFound")))
        files = self.hub.files(name)
        if what == "revision":
            found = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
        else:
            found = [self.entry(self.hub.models[name], file) for file in files]
        return self.answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def entry(self, directory, file):
        content = (directory / file).read_bytes()
        found = {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
        if _large(file):
            found["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return found

    def resolve(self, name, revision, file):
        if self.hub.refusal:
            return self.refuse(*self.hub.refusal)
        if file in self.hub.lost:
            return self.refuse(404, "EntryNotFound")
        path = self.hub.models[name] / file
        if not _large(file):
            return self.send(path)
        content = path.read_bytes()
        linked = {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        where = {"Location": f"http://localhost:{self.server.server_port}/store/{name}/{file}", "X-Repo-Commit": COMMIT}
        return self.answer(302, b"", linked | where)

    def send(self, path):
        content = path.read_bytes()
        tag = hashlib.sha1(content).hexdigest()
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if start is None:
            return self.answer(200, content, headers, name=path.name)
        first = int(start[1])
        headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        return self.answer(206, content[first:], headers, name=path.name)

    def refuse(self, status, code):
        messages = {"GatedRepo": "Access to this model is restricted.", "RepoNotFound": "Repository not found"}
        self.answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": messages.get(code, code)})

    def answer(self, status, content, headers, name=""):
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        cuts = self.hub.cuts.get(name, [])
        if cuts:
            content = content[: cuts.pop(0)]
            self.close_connection = True
        self.wfile.write(content)


def _large(file):
    return file.endswith((".safetensors", ".bin"))
