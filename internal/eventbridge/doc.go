// Package eventbridge wires the service Eventbridge. Each role has a package:
//
//	preprocessor  ingest    HTTP request -> CloudEvent -> topic of the bus -> 202
//	engine        engine    topic of the bus -> rules -> send topic of each matching subscriber
//	processor     delivery  send topic -> template -> target; retry, dead letter
//
// Packages api and console serve the management API and the web pages, packages registry/... the
// buses and subscribers. Neither this package nor one below it imports another service.
package eventbridge
