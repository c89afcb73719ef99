package nightingale

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/publish"
)

// errUnfinished is the result of attempts whose request ended in a panic.
var errUnfinished = &refusal.Error{Status: http.StatusInternalServerError, Reason: "internal", Text: "the request could not be handled"}

// deliveries holds the attempts in flight. An attempt continues after its request has timed out,
// until all messages are published. If the sender repeats the request, the repeated request joins
// the attempt.
type deliveries struct {
	*publish.DedupCache
	background context.Context // ends with the service
	cancel     context.CancelFunc
	running    sync.WaitGroup
}

func newDeliveries(cfg publish.DedupConfig) *deliveries {
	d := &deliveries{DedupCache: publish.NewDedupCache(cfg)}
	d.background, d.cancel = context.WithCancel(context.Background())
	return d
}

// close cancels the attempts in flight and waits until they have ended. The publisher must be
// closed before, so that it completes its records.
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

// submit publishes a request's messages and waits for the outcome, or joins the attempt of another
// request with the same body. It returns the contents of the request.
func (v *receiver) submit(ctx context.Context, tenant string, c *publish.Claim, contents batch.Contents, out *publish.Outgoing, held *admission.Hold) (batch.Contents, error) {
	d := v.deliveries
	if !c.Owned {
		v.releaseOutgoing(out)
		v.metrics.repeated.WithLabelValues(c.State()).Inc()
		return v.await(ctx, c.Attempt, batch.Contents{})
	}
	c.Owned = false // complete ends the attempt, here or in the background
	if d.Entries == 0 {
		d := v.topics.Publish(ctx, c, out, held)
		v.complete(tenant, c, contents, out, d)
		return contents, d.Err
	}
	// The body is not needed any more: only the messages stay in memory.
	kept := held.Transfer(int64(out.Size()))
	d.running.Go(func() {
		outcome := v.topics.Publish(d.background, c, out, kept)
		kept.Release()
		v.complete(tenant, c, contents, out, outcome)
	})
	return v.await(ctx, c.Attempt, contents)
}

// complete ends an attempt after publishing, and counts it. It charges the tenant only if the
// sender will not repeat the request, so that each body is charged once.
func (v *receiver) complete(tenant string, c *publish.Claim, contents batch.Contents, out *publish.Outgoing, d publish.Delivered) {
	if d.Free {
		v.releaseOutgoing(out)
	}
	if publish.Final(d.Err) {
		v.settings.Load().quotas.charge(tenant, contents.Valid.Entries())
	}
	v.count(contents, d.Err)
	v.deliveries.Complete(c.Attempt, contents, d)
}

// await waits for the result of an attempt until the request times out.
func (v *receiver) await(ctx context.Context, a *publish.Attempt, contents batch.Contents) (batch.Contents, error) {
	c, err, complete := a.Wait(ctx)
	if complete {
		return c, err
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		return contents, refusal.ErrDisconnected
	}
	v.metrics.count(contents.Valid, "unwritten")
	return contents, refusal.Unavailable("timeout", refusal.RetryUnavailable, "Pulsar did not acknowledge in time")
}
