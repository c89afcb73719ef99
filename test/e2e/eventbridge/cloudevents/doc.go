// Package cloudevents tests Eventbridge with the CloudEvents SDKs for Go, Java, JavaScript and
// Python. Each SDK has a program below this folder. Its argument is the URL to send to. It reads
// requests as lines of JSON until its input ends, and prints a line for its address, each answer
// and each webhook; data is base64:
//
//	{"mode": "binary", "events": [{"attributes": {"id": "1"}, "data": "e30="}]}  input; or structured, batch
//	{"listening": "127.0.0.1:12345"}
//	{"sent": ["1"], "status": 202, "answer": "text of a refusal"}
//	{"path": "/binary", "events": [EVENT, ...], "error": "text of the SDK's error"}
package cloudevents
