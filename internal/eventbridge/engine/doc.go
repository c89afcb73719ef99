// Package engine matches the events of buses against the rules of their subscribers and stores a copy for each
// subscriber that one of its rules matches.
//
// The way of an event: the bus' topic is consumed by one engine for each partition (bus.go). An event that came before
// is left out (window.go). The rest is matched by an index of all rules of the bus (rules.go). Each matching subscriber
// has a lane (lane.go), which stores its copies in the subscriber's send topic, in groups: ordered subscribers' under
// the position that the event has in the bus' topic (writer.go), those of others without (publisher.go). Once all
// copies of an event are stored, its message is acknowledged.
//
// A lane whose topic takes nothing for long gives its copies to the subscriber's dead-letter topic (bury.go), so that
// the other subscribers go on.
package engine
