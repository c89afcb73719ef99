// Package target delivers events to webhooks, Pulsar, Kafka, RabbitMQ and the log.
//
// [Factory.New] makes the [Target] of a subscriber. [Target.Deliver] makes one attempt and returns
// the results; the caller decides about the next attempt. Webhooks (webhook.go) share one pool of
// connections (client.go), whose dialer checks each address with the [Guard]. The other systems
// use the sinks of internal/connector (sinks.go), which subscribers of one destination share. Of
// Eventbridge, the package imports event, registry/model and webhooksig.
package target

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
)

// Target is one subscriber's destination. Its methods are safe for concurrent use.
type Target interface {
	// Deliver makes one attempt for each delivery of batch, which must not be empty, and returns
	// their results in the same order. The destination has acknowledged each delivery whose result
	// is Delivered. Deliver returns when all deliveries have a result: at the latest when the
	// subscriber's timeout has passed, or ctx has ended.
	//
	// Except: a webhook of mode batch may make several requests, less than two for each event, and
	// each has the subscriber's timeout. It makes none after a request that is not answered in
	// time.
	//
	// The events of a batch are in flight together. One may be stored although one before it is
	// not. To keep an order, deliver one event at a time.
	Deliver(ctx context.Context, batch []Delivery) []Result
	// Close releases what the target holds. Deliver must not be called any more. Close may be
	// called again.
	Close(ctx context.Context) error
}

// Delivery is an event for a subscriber.
type Delivery struct {
	Event event.Event
	// Body and ContentType are the result of a transformation. A nil Body: the event itself is
	// delivered.
	Body        []byte
	ContentType string
	// Hops is how many buses the event has passed before this one.
	Hops int
	// Retried says that an attempt for this event has failed before.
	Retried bool
}

// Verdict says what an attempt means for the event. The zero value is Retry.
type Verdict uint8

// The verdicts.
const (
	// Retry: the event is not known to be delivered. Another attempt may help.
	Retry Verdict = iota
	// Delivered: the destination has acknowledged the event.
	Delivered
	// Refused: the destination does not take this event. Another attempt would not help.
	Refused
	// Gone: the destination takes no events any more (410). The caller disables the subscriber.
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

// Result is the outcome of one attempt.
type Result struct {
	Verdict Verdict
	// Reason is a short word for metrics and dead letters: see the constants. Empty when delivered.
	Reason string
	// Err says what went wrong, for people. It holds no secrets. Nil when delivered.
	Err error
	// Unavailable says of a Retry that the destination takes no event at present: there is no
	// connection, no token or no answer in time, or the answer says so (429, 502, 503, 504). It is
	// false if a webhook breaks the connection before it answers: the event may be the cause.
	Unavailable bool
	// RetryAfter is how long an unavailable destination asks to wait before the next attempt for
	// any event (header Retry-After), at most an hour; 0 if it does not ask.
	RetryAfter time.Duration
	// Status is the status of the HTTP answer, 0 if there is no answer.
	Status int
	// Response is the beginning of the HTTP answer's body as text, at most 1 KiB, without the
	// subscriber's secrets. Empty when delivered.
	Response string
	// Latency is how long the attempt took.
	Latency time.Duration
}

// unavailable returns the result of an attempt that failed because of the destination, or because
// the caller has stopped.
func unavailable(reason string, err error) Result {
	return Result{Reason: reason, Err: err, Unavailable: reason != ReasonStopped}
}

// These are the reasons of results, in addition to those of the connectors' sinks.
const (
	ReasonTimeout    = "timeout"    // no answer in time
	ReasonStopped    = "stopped"    // the caller's context has ended
	ReasonAddress    = "address"    // the guard refused the address
	ReasonConnection = "connection" // no connection, or it broke
	ReasonTLS        = "tls"        // the destination's certificate is not valid, or TLS failed otherwise
	ReasonToken      = "token"      // no OAuth2 token
	ReasonRedirect   = "redirect"   // 3xx: redirects are not followed
	ReasonStatus     = "status"     // any other status that is not 2xx
	ReasonBusy       = "busy"       // too many events are in flight
	ReasonEvent      = "event"      // the event cannot be put into the form that the destination takes
)
