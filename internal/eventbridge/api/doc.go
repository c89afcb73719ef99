// Package api is Eventbridge's management API: buses, subscribers, deliveries and jobs over HTTP.
//
// A request passes the checks of access (access.go) and of its body (read.go), then one handler.
// Each error is a problem document (RFC 9457). GET /v1/openapi.json serves openapi.yaml; tests
// check every answer against it. Of Eventbridge, the package imports delivery, event and registry.
package api
