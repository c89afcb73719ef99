// Package cloudevents tests Eventbridge with the official SDKs of CloudEvents for Go, Java,
// JavaScript and Python, as senders and as receivers.
//
// Each has a program of its own below this folder, which takes the URL to send events to. It
// receives webhooks at any path. Its standard input has a line of JSON for each request that it is
// to make:
//
//	{"mode": "binary, structured or batch", "events": [EVENT, ...]}
//
// with an EVENT as in {"attributes": {"id": "1", ...}, "data": "base64 of the data, or null"}. It
// ends with its input. It prints a line of JSON when it listens, for each answer, and for each
// webhook:
//
//	{"listening": "127.0.0.1:12345"}
//	{"sent": ["1"], "status": 202, "answer": "what it did not like"}
//	{"path": "/binary", "events": [EVENT, ...]}
//	{"path": "/binary", "events": [], "error": "what the SDK did not like"}
package cloudevents
