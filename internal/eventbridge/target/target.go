// Package target delivers events to subscribers' destinations: webhooks, topics of Pulsar and Kafka, exchanges of
// RabbitMQ, streams of Redis, and the log.
//
// A delivery's way: [Factory.New] makes the [Target] of a subscriber; [Target.Deliver] makes one attempt and says what
// became of it. Whether and when there is another attempt is the caller's to decide. Webhooks (webhook.go) go through one
// pool of connections (client.go) whose dialer asks the [Guard] about each address. Kafka, RabbitMQ and Pulsar go through
// the sinks of internal/connector (sinks.go), which subscribers of one destination share.
package target

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
)

// Target is one subscriber's destination. Its methods are safe for concurrent use.
type Target interface {
	// Deliver makes one attempt for each delivery of batch, one at least, and returns a result for each, in their order.
	// A delivery whose result is Delivered is acknowledged by the destination. It returns when all have a result: at the
	// latest when the subscriber's timeout has passed, or ctx has ended.
	//
	// Events of a batch are on their way together. One may be stored though one before it is not, so deliveries whose
	// order is to be kept go one at a time.
	Deliver(ctx context.Context, batch []Delivery) []Result
	// Close gives back what the target holds. Nobody calls Deliver any more. It may be called again.
	Close(ctx context.Context) error
}

// Delivery is an event for a subscriber.
type Delivery struct {
	Event event.Event
	// Body and ContentType are what a transformation has made of the event. A nil Body: the event itself.
	Body        []byte
	ContentType string
	// Hops is how often the event has passed a bus before this one.
	Hops int
}

// Verdict says what an attempt means for the event. The zero value is Retry.
type Verdict uint8

// The verdicts.
const (
	// Retry: it is not known to be delivered. Another attempt may help.
	Retry Verdict = iota
	// Delivered: the destination has acknowledged it.
	Delivered
	// Refused: the destination does not take this event, and another attempt does not help.
	Refused
	// Gone: the destination takes no events any more (410). The subscriber is to be disabled.
	Gone
)

// String is the verdict's word in metrics and the API.
func (v Verdict) String() string {
	switch v {
	case Delivered:
		return "delivered"
	case Refused:
		return "refused"
	case Gone:
		return "gone"
	default:
		return "retry"
	}
}

// Result is what became of one attempt.
type Result struct {
	Verdict Verdict
	// Reason is a short word for metrics and dead letters: see the constants. Empty when delivered.
	Reason string
	// Err says what went wrong, for people, without secrets. Nil when delivered.
	Err error
	// RetryAfter is what the destination asks to wait before the next attempt, at most an hour; 0 when it does not.
	RetryAfter time.Duration
	// Status is that of the HTTP answer, 0 without one.
	Status int
	// Response is the beginning of the HTTP answer's body as text, without the subscriber's secrets.
	Response string
	// Latency is how long the attempt took.
	Latency time.Duration
}

// Reasons of results, beside those of the connectors' sinks.
const (
	ReasonTimeout    = "timeout"    // no answer in time
	ReasonStopped    = "stopped"    // the caller's context has ended
	ReasonAddress    = "address"    // the guard refused the address
	ReasonConnection = "connection" // no connection, or it broke
	ReasonTLS        = "tls"        // the destination's certificate is not valid, or TLS failed otherwise
	ReasonToken      = "token"      // no OAuth2 token
	ReasonRedirect   = "redirect"   // 3xx: redirects are not followed
	ReasonStatus     = "status"     // any other status that is not 2xx
	ReasonBusy       = "busy"       // too much is on its way without an answer
	ReasonEvent      = "event"      // the event cannot be put into the form that the destination takes
	ReasonStore      = "store"      // Redis answered with an error
)
