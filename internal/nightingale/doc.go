// Package nightingale receives Prometheus remote write and publishes the samples
// to Apache Pulsar.
//
// A request's way is one chain, read top to bottom in write.go:
//
//	admit -> read -> decompress -> decode -> validate -> choose -> encode -> publish -> answer
//
// A protocol (protocol.go) turns a body into the neutral batch of batch.go; a
// format (format.go) turns the batch into messages. A further protocol or format
// is a file and a line in its list. Rules (rules.go) choose and change series
// between the two. Only the publishing stage (topics.go: the topics that a template
// makes, one without placeholders; room.go: what they share; sink.go: one of them) knows Pulsar.
//
// The answer is 204 only after the broker has acknowledged every message of the
// request. Strings of a batch alias the request's body, which is reused as soon as
// the messages are encoded: nothing after that stage may hold one.
package nightingale
