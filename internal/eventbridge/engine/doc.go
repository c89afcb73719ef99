// Package engine matches the events of buses against the rules of their subscribers and stores a
// copy for each subscriber that one of its rules matches.
//
// The path of an event: one engine consumes each partition of the bus' topic (bus.go). It leaves
// out an event that came before (window.go), and matches the others by an index of all rules of the
// bus (rules.go). Each matching subscriber has a send queue (sendqueue.go), which stores its copies
// in the subscriber's send topic, in groups (sendtopic.go): for ordered subscribers under the
// event's position in the bus' topic, for others without. Once all copies of an event are stored,
// the engine acknowledges the event's message.
//
// If a send topic accepts nothing, its send queue fills, and the bus waits: the metric, the log and
// readiness say for which subscriber.
package engine
