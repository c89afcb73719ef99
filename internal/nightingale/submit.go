package nightingale

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/aviaryhq/aviary/internal/door"
)

// errUnfinished settles attempts of requests that ended in a panic.
var errUnfinished = &door.Refusal{Status: http.StatusInternalServerError, Reason: "internal", Text: "the request could not be handled"}

// deliveries are the attempts under way. An attempt outlives its request: what has
// begun to be published is published whole, and the sender, who comes again when the
// request was not acknowledged in time, finds it under way.
type deliveries struct {
	*ledger
	background context.Context // ends with the service
	cancel     context.CancelFunc
	running    sync.WaitGroup
}

func newDeliveries(cfg Dedup) *deliveries {
	d := &deliveries{ledger: newLedger(cfg)}
	d.background, d.cancel = context.WithCancel(context.Background())
	return d
}

// close ends what is still under way and returns when all of it has. The publisher
// must be closed before: it settles what it was given.
func (d *deliveries) close(ctx context.Context) error {
	d.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.running.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// submit publishes a request's messages and waits for the outcome, or joins the
// attempt that another request with the same body has begun. It returns what the
// request carries.
func (v *receiver) submit(ctx context.Context, c *claim, carried contents, out *outgoing, held *door.Hold) (contents, error) {
	d := v.deliveries
	if !c.mine {
		v.releaseOutgoing(out)
		v.metrics.repeated.WithLabelValues(c.state()).Inc()
		return v.await(ctx, c.attempt, contents{})
	}
	c.mine = false // settle ends it, here or in the background
	if d.entries == 0 {
		d := v.deliver(ctx, c, out, held)
		v.settle(c, carried, out, d)
		return carried, d.err
	}
	// The body is done with: what stays in memory are the messages.
	kept := held.HandOver(int64(out.size()))
	d.running.Go(func() {
		outcome := v.deliver(d.background, c, out, kept)
		kept.Release()
		v.settle(c, carried, out, outcome)
	})
	return v.await(ctx, c.attempt, carried)
}

// settle ends an attempt that was published, and counts it. Only an attempt whose
// sender does not come again is charged to the tenant, and so each body once.
func (v *receiver) settle(c *claim, carried contents, out *outgoing, d delivered) {
	if d.free {
		v.releaseOutgoing(out)
	}
	if final(d.err) {
		v.settings.Load().quotas.charge(c.key.tenant, carried.valid.entries())
	}
	v.count(carried, d.err)
	v.deliveries.settle(c.attempt, carried, d)
}

// await waits for an attempt within the request's time.
func (v *receiver) await(ctx context.Context, a *attempt, carried contents) (contents, error) {
	c, err, settled := a.wait(ctx)
	if settled {
		return c, err
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		return carried, door.ErrDisconnected
	}
	v.metrics.count(carried.valid, "unwritten")
	return carried, door.Unavailable("timeout", door.RetryAway, "Pulsar did not acknowledge in time")
}

// state says what a request that repeats another one's body meets, for the metrics.
func (a *attempt) state() string {
	select {
	case <-a.settled:
		return "answered"
	default:
		return "joined"
	}
}
