"""Sends and receives events with sdk-python. See doc.go for the arguments, the input and the output."""

import base64
import json
import sys
import threading
import urllib.error
import urllib.request
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cloudevents.core.bindings import http
from cloudevents.core.v1.event import CloudEvent

lock = threading.Lock()


def say(**line):
    with lock:
        print(json.dumps(line), flush=True)


def is_json(content_type):
    return content_type is None or content_type.startswith("application/json")


def build(event):
    attributes = dict(event["attributes"])
    if "time" in attributes:
        attributes["time"] = datetime.fromisoformat(attributes["time"])
    if event["data"] is None:
        return CloudEvent(attributes)
    data = base64.b64decode(event["data"])
    content_type = attributes["datacontenttype"]
    if is_json(content_type):
        data = json.loads(data)
    elif content_type.startswith("text/"):
        data = data.decode()
    return CloudEvent(attributes, data)


def describe(event):
    attributes = dict(event.get_attributes())
    if "time" in attributes:
        attributes["time"] = attributes["time"].isoformat()
    data = event.get_data()
    if isinstance(data, str) and not is_json(attributes.get("datacontenttype")):
        data = data.encode()
    elif data is not None and not isinstance(data, bytes):
        data = json.dumps(data).encode()
    return {"attributes": attributes, "data": None if data is None else base64.b64encode(data).decode()}


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            event = http.from_http_event(http.HTTPMessage(headers=dict(self.headers), body=body))
            say(path=self.path, events=[describe(event)])
        except Exception as e:
            say(path=self.path, events=[], error=repr(e))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def send(url, mode, events):
    ids = [e["attributes"]["id"] for e in events]
    try:
        event = build(events[0])
        message = http.to_structured_event(event) if mode == "structured" else http.to_binary_event(event)
        request = urllib.request.Request(url, data=message.body or None, headers=message.headers, method="POST")
        with urllib.request.urlopen(request) as answer:
            say(sent=ids, status=answer.status, answer=answer.read().decode())
    except urllib.error.HTTPError as e:
        say(sent=ids, status=e.code, answer=e.read().decode())
    except Exception as e:
        say(sent=ids, status=0, answer=repr(e))


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()
say(listening="127.0.0.1:%d" % server.server_port)
for line in sys.stdin:
    send(sys.argv[1], **json.loads(line))
