// Package preprocessor is Eventbridge's way in: it takes events by HTTP and puts them on the topics of buses. A 202 says that the broker has stored every
// event of the request.
//
// The way of a request: who sends it, before anything of it is read ([Preprocessor.admit]); its body, within what may be held in memory (body.go); its
// events (events.go); the sender's quota; the topic (outlet.go, flight.go); the answer (answer.go).
package preprocessor
