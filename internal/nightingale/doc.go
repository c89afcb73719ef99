// Package nightingale receives Prometheus remote write and publishes the samples
// to Apache Pulsar.
//
// A request passes through these stages, which write.go contains from top to bottom:
//
//	admit -> read -> decompress -> decode -> validate -> choose -> encode -> publish -> answer
//
// Package remotewrite decodes a body into the neutral series of package batch and validates them.
// Package relabel drops and changes them, and package format encodes them into messages. To add a
// protocol or a format, add a file and a line in its list. Package publish publishes to Pulsar, and
// package tail reads messages from there. Package batch imports none of the other packages, and none
// of them imports this one.
//
// With ack broker the answer is 204 only after the broker has acknowledged every message of the
// request. Strings of a batch alias the request's body, which is reused as soon as the messages are
// encoded: later stages must not keep such strings.
package nightingale
