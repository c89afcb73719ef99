// Package engine is the role engine: it matches events against rules, and stores a copy for each
// subscriber that has a matching rule.
//
// For each partition of a bus (bus.go) it drops duplicates (window.go) and matches events with an
// index of all rules of the bus (rules.go). A send queue (sendqueue.go) for each subscriber stores
// copies in groups in the send topic (sendtopic.go). Copies for ordered subscribers have positions
// (position.go). The engine acknowledges an event once all its copies are stored. Of Eventbridge,
// the package imports event and registry.
package engine
