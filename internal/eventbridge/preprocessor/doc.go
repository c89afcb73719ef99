// Package preprocessor takes events by HTTP and publishes them to the topics of buses. A 202 says
// that the broker has stored every event of the request.
//
// The path of a request: the sender is authenticated by the headers (senders.go), so that a request
// of an unknown sender costs no more than them; its body is read within the sender's share of the
// memory (body.go), then its events (events.go); the sender's quota is charged; the events are
// published (bustopic.go, flight.go); the request is answered (answer.go).
package preprocessor
