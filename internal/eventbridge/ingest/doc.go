// Package ingest is the role preprocessor: it receives events over HTTP and publishes them to the
// topics of buses. 202 says that the broker has stored every event of the request.
//
// handler.go has the path of a request: authenticate the sender by the headers (senders.go), read
// the body within the sender's share of memory, parse the events (mode.go, events.go), charge the
// quota (tenant.go), publish (bustopic.go, flight.go) and answer (answer.go). Of Eventbridge, the
// package imports event, registry, schema and webhooksig.
package ingest
