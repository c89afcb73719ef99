// Package eventbridge takes events by HTTP, matches them against the rules of subscribers, and
// delivers them.
//
// The path of an event, each part a package of its own:
//
//	preprocessor  HTTP request -> CloudEvent -> topic of the bus -> 202
//	engine        topic of the bus -> rules -> send topic of each subscriber that matches
//	processor     send topic -> transformation -> target; retry, dead letter
//
// A process has one, two or all three of these roles. The registry says what they do: a compacted
// topic that every process reads and any may change. Package api is the REST interface to it,
// console its pages for a browser.
package eventbridge
