// Package model defines buses, subscribers and rules: their JSON, defaults, validation and topic
// names. Of Eventbridge, it imports only event.
package model

import (
	"encoding/json"
	"time"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
)

// Bus is where events come in. Each bus has its own topic.
type Bus struct {
	// Name is 1 to 63 of a-z, 0-9 and -, and neither begins nor ends with -.
	Name string `json:"name"`
	// Revision is that of the last change. Revisions ascend over the whole registry. Set by the
	// store.
	Revision int64 `json:"revision"`
	// Created and Changed are the times of the first and the last change. Set by the store.
	Created time.Time `json:"created"`
	Changed time.Time `json:"changed"`

	// Description is for people. Optional.
	Description string `json:"description,omitempty"`
	// Partitions is the number of partitions of the bus' topic, 1 to 128. Events of one
	// partitionkey are in one partition, in their order. It cannot be changed; 0 keeps the stored
	// number. Default 4, or 1 without pulsar.admin_url, where more are not possible.
	Partitions int `json:"partitions"`
	// DedupWindow is how long after an event another one of its tenant, source and id is left
	// out, at most 24h. 0: never. Default 10m.
	DedupWindow Duration `json:"dedup_window"`
	// MaxEventBytes bounds an event as JSON, 1 KiB to 1 MiB. Default 256 KiB.
	MaxEventBytes int `json:"max_event_bytes"`
	// Schemas are JSON Schemas of the data of events by type, at most 100. An event of one of these
	// types must be valid. Optional.
	Schemas map[string]json.RawMessage `json:"schemas,omitempty"`
	// Mapping makes CloudEvents from plain JSON. Without it plain JSON is refused. Optional.
	Mapping *Mapping `json:"mapping,omitempty"`
}

// Mapping says how the attributes of an event are made from a plain JSON object, which becomes its
// data. Each is a JSON Pointer (RFC 6901) into the object or, if it begins with "=", a fixed text.
// By default, ID is random, and Time is the present.
type Mapping struct {
	ID           string `json:"id,omitempty"`
	Source       string `json:"source"`
	Type         string `json:"type"`
	Subject      string `json:"subject,omitempty"`
	Time         string `json:"time,omitempty"`
	PartitionKey string `json:"partitionkey,omitempty"`
}

// Order is the guarantee that a subscriber has. Each order has its type of Pulsar subscription.
type Order string

// The orders.
const (
	OrderNone  Order = "none"  // each event at least once, in no order; Shared
	OrderGroup Order = "group" // events of one partitionkey in their order; Failover
	OrderTotal Order = "total" // all events of the bus in their order; Failover; the bus has one partition
)

// Ordered reports whether events are delivered in an order. The engine then stores each copy under
// the event's position in the bus' topic.
func (o Order) Ordered() bool { return o == OrderGroup || o == OrderTotal }

// State is what a subscriber does.
type State string

// The states.
const (
	Active   State = "active"
	Paused   State = "paused"   // copies are stored, nothing is delivered
	Disabled State = "disabled" // nothing is matched or delivered; stored copies stay
)

// Subscriber gets the events of a bus that one of its rules matches.
type Subscriber struct {
	Bus string `json:"bus"`
	// Name, Revision, Created and Changed are as in Bus.
	Name     string    `json:"name"`
	Revision int64     `json:"revision"`
	Created  time.Time `json:"created"`
	Changed  time.Time `json:"changed"`
	// UID distinguishes the subscriber from earlier ones of its name. Set by the store.
	UID string `json:"uid"`

	Description string `json:"description,omitempty"`
	// State is what the subscriber does. Empty keeps the stored state, so that a file does not undo
	// a pause. Default active.
	State State `json:"state"`
	// Reason says why Eventbridge itself changed the state, such as "410 Gone". Set by the store.
	Reason string `json:"reason,omitempty"`
	// Rules are patterns of which one has to match. At least one, at most 1,000; their names are as
	// that of a bus.
	Rules []Rule `json:"rules"`
	// Order cannot be changed; empty keeps the stored order. Default none.
	Order Order `json:"order"`
	// Start is where a new subscriber begins: latest, earliest, or a time (RFC 3339) in the bus'
	// retention. It cannot be changed; empty keeps the stored start. Default latest.
	Start string `json:"start,omitempty"`
	// Transform changes what is delivered. Optional.
	Transform *Transform `json:"transform,omitempty"`
	Target    Target     `json:"target"`
	Delivery  Delivery   `json:"delivery"`
}

// Rule is one pattern, in the language of package eventpattern.
type Rule struct {
	Name    string          `json:"name"`
	Pattern json.RawMessage `json:"pattern"`

	compiled *eventpattern.Pattern
}

// Compiled returns the parsed pattern. It is set in each rule of a snapshot and of what the store
// returns, nil in others.
func (r Rule) Compiled() *eventpattern.Pattern { return r.compiled }

// Transform makes the body of a delivery.
type Transform struct {
	// Paths are names and JSON Pointers into the event, for Template.
	Paths map[string]string `json:"paths,omitempty"`
	// Template is a text in which {name} stands for the value at that path, {{name}} for the text
	// {name}, and every other brace for itself. Inside a JSON string of the template a value is
	// inserted as text, elsewhere as JSON.
	Template string `json:"template,omitempty"`
	// ContentType is that of the result. Default application/json.
	ContentType string `json:"content_type,omitempty"`
}

// Delivery says how a subscriber's events are delivered.
type Delivery struct {
	// Concurrency bounds deliveries in flight in one instance, 1 to 1,000. Default 16; always 1 for
	// OrderTotal.
	Concurrency int `json:"concurrency,omitempty"`
	// Rate bounds deliveries per second of one instance, including repeated attempts. 0: no bound.
	Rate float64 `json:"rate,omitempty"`
	// Timeout bounds one attempt. Default 10s, at most 5m.
	Timeout Duration `json:"timeout,omitempty"`
	Retry   Retry    `json:"retry"`
	Breaker Breaker  `json:"breaker"`
}

// Retry says when and how often a failed delivery is tried again.
type Retry struct {
	// MaxAttempts bounds the attempts, including the first one. 0: only MaxAge bounds them. Default
	// 16.
	MaxAttempts int `json:"max_attempts"`
	// MaxAge is how long after the first failure there are attempts. 0: no bound. Default 24h.
	MaxAge Duration `json:"max_age"`
	// Schedule holds the 1 to 100 delays after the first, second, ... failure; the last one
	// repeats. Default 1s, 5s, 30s, 2m, 10m, 1h.
	Schedule []Duration `json:"schedule,omitempty"`
	// Jitter spreads each delay by up to this part of it, 0 to 1. Default 0.2.
	Jitter float64 `json:"jitter"`
}

// Breaker stops deliveries to a target that is unavailable.
type Breaker struct {
	// Failures is how many attempts in a row that find the target unavailable open the breaker. 0:
	// it opens only while the target asks to wait (Retry-After). Default 10.
	Failures int `json:"failures"`
	// Probe is how long the breaker is open before deliveries are tried. If all of them find
	// the target unavailable, it is open again for as long. Default 30s.
	Probe Duration `json:"probe,omitempty"`
}
