// Package ingest takes events by HTTP and publishes them to the topics of buses. A 202 says
// that the broker has stored every event of the request.
//
// handler.go has the path of a request from top to bottom. The sender is authenticated by the
// headers, so that unknown senders cost nothing more (senders.go). The body is read within the
// sender's share of the memory, then the events (mode.go, events.go). The sender's quota is charged
// (tenant.go). The events are published (bustopic.go, flight.go). The request is answered
// (answer.go).
package ingest
