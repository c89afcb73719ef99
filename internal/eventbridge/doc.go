// Package eventbridge takes events by HTTP, matches them against the rules of subscribers, and
// delivers them.
//
// The path of an event:
//
//	role          package   work
//	preprocessor  ingest    HTTP request -> CloudEvent -> topic of the bus -> 202
//	engine        engine    topic of the bus -> rules -> send topic of each matching subscriber
//	processor     delivery  send topic -> template -> target; retry, dead letter
//
// A process has one, two or all three of these roles. The registry is a compacted topic with all
// buses and subscribers: every process reads it, and every process may change it. Package api is
// the REST interface to the registry, package console the web pages.
package eventbridge
