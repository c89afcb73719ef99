// Package preprocessor takes events by HTTP and publishes them to the topics of buses. A 202 says
// that the broker has stored every event of the request.
//
// The path of a request: the sender is authenticated before the request is read (senders.go); its
// body is read within the bounds of memory (body.go), then its events (events.go); the sender's
// quota is charged; the events are published (bustopic.go, flight.go); the request is answered
// (answer.go).
package preprocessor
