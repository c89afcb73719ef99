package messaging

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/redrive"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/retry"
)

// Retry says what happens to a message whose handler returned an error.
type Retry = retry.Retry

// RetryAfter makes a handler's error ask for another attempt no sooner than d from now, in place
// of the consumer's own backoff.
func RetryAfter(err error, d time.Duration) error { return retry.RetryAfter(err, d) }

// Reject makes a handler's error final: the message goes to the dead-letter topic with err as its
// reason and is then acknowledged.
func Reject(err error) error { return retry.Reject(err) }

// Redrive publishes dead letters to the topic that they came from, as they were: with their key,
// ordering key, payload, event time and own properties, and without what this library added.
// Attempts begin with 1 again. Every subscription of that topic receives them, not only the one
// that gave them up.
//
// Only what the dead-letter topic holds at the beginning goes back; later ones, also those that
// failed again, wait for the next call. A dead letter is acknowledged once its copy is stored; a
// crash, an error or a lost connection in between can send it back twice. Dead letters of one
// partition go back in their order, except for one that is sent again because brokers took its copy
// for a duplicate.
//
// The result counts the messages, also with an error. Errors end the call: the other dead letters
// stay on the subscription, and another call continues with them. It returns ErrSubscriptionBusy,
// also while another call for the subscription runs, [ErrTopicNotFound] when the dead-letter topic
// or To does not exist, [ErrTopicTerminated], [ErrClosed] when the client closes, and ctx's error.
// It waits for brokers that are unavailable, until ctx ends. It does not use the admin API.
func (c *Client) Redrive(ctx context.Context, cfg RedriveConfig) (RedriveResult, error) {
	return redrive.Redrive(ctx, c.publishers, cfg, c.redriveIdle)
}

// RedriveConfig says which dead letters go back, and where to.
type RedriveConfig = redrive.RedriveConfig

// RedriveResult counts messages of the dead-letter topic.
type RedriveResult = redrive.RedriveResult
