// Package nightingale receives Prometheus remote write and publishes the samples to Apache Pulsar.
// write.go has the stages of a request from top to bottom:
//
//	authenticate, read, decompress, decode, validate, relabel, encode, publish, answer
//
// Strings of a batch point into the decoded body. This memory is used again when the messages are
// encoded, so later stages must not keep such strings. This package imports the packages below it,
// and shared packages of internal and pkg. It must not import another service.
package nightingale
