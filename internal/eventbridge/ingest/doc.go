// Package ingest takes events by HTTP and publishes them to the topics of buses. A 202 says
// that the broker has stored every event of the request.
//
// The path of a request: the sender is authenticated by the headers, so that unknown senders cost
// nothing more (senders.go); the body is read within the sender's share of the memory (body.go),
// then the events (events.go); the sender's quota is charged; the events are published
// (bustopic.go, flight.go); the request is answered (answer.go).
package ingest
