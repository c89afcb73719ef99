// Package api is Eventbridge's management API: buses, subscribers and their rules by REST, and what
// is known of deliveries.
//
// A request passes access (who may), read (bounded, strict JSON) and one handler. Every refusal is
// a problem document (RFC 9457). openapi.yaml describes all of it and is served as
// /v1/openapi.json. Tests check every answer against it.
package api
