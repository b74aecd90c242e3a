"""A schema registry for tests: as much of the HTTP interface as clients need to register and to ask."""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Registry:
    """Schemas by number and by subject. ``down``: answers 503 to everything."""

    def __init__(self):
        self.schemas, self.subjects = [], {}
        self.asked, self.down = [], False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def register(self, subject, schema):
        """The number of this schema (a dict as registries take it), new or not."""
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method, path, body):
        """Status and content."""
        self.asked.append(path)
        if self.down:
            return 503, {"error_code": 50301, "message": "down"}
        if method == "POST" and (found := re.fullmatch(r"/subjects/([^/]+)/versions", path)):
            schema = {key: body[key] for key in ("schema", "schemaType", "references") if key in body}
            return 200, {"id": self.register(found[1], schema)}
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            number = int(found[1])
            if not 1 <= number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self.schemas[number - 1]
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", path):
            number = self.subjects[found[1]][int(found[2]) - 1]
            facts = {"subject": found[1], "version": int(found[2]), "id": number}
            return 200, {**self.schemas[number - 1], **facts}
        return 404, {"error_code": 404, "message": f"{method} {path}"}

    def _handler(self):
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def _do(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, content = registry.answer(self.command, self.path.split("?")[0], json.loads(body or "{}"))
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _do

            def log_message(self, *_):
                pass

        return Handler

    @contextmanager
    def running(self):
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()
