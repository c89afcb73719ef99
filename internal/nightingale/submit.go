package nightingale

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
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

// submit publishes a decoded request, in the background if deduplication is on, and waits for the
// outcome. It takes over the claim and the memory of the request.
func (v *receiver) submit(ctx context.Context, claim *publish.Claim, space *requestSpace, contents batch.Contents, held *admission.Hold, watch *stopwatch) (batch.Contents, error) {
	if d := v.deliveries; d.Entries > 0 {
		own, kept := *claim, held.Transfer(held.Bytes())
		claim.Owned = false
		space.Batch.Elements.Held = kept // encoding takes memory, too
		d.running.Go(func() {
			defer kept.Release()
			defer own.Abort(errUnfinished)
			err := app.Protect(func() error {
				v.runAttempt(d.background, &own, space, contents, kept, watch)
				return nil
			})
			if err != nil {
				v.log.Error("cannot publish a request", zap.Error(err), app.Stack(err))
			}
		})
	} else {
		v.runAttempt(ctx, claim, space, contents, held, watch)
	}
	return v.await(ctx, claim.Attempt, contents)
}

// runAttempt publishes a decoded request, completes its attempt, and counts it. It charges the tenant
// only if the sender will not repeat the request, so that each body is charged once.
func (v *receiver) runAttempt(ctx context.Context, claim *publish.Claim, space *requestSpace, contents batch.Contents, held *admission.Hold, watch *stopwatch) {
	tenant, out := claim.Key.Tenant, v.newOutgoing()
	out.Properties, space.Packing.Limit = propertiesOf(tenant), v.messageBytes
	d := v.topics.Publish(ctx, publish.Request{
		Claim: claim, Format: v.format, Contents: &contents, Space: &space.Workspace, Size: space.size, Out: out, Held: held,
		Encoded: func() {
			watch.lap("encode")
			v.release(space)
			held.Shrink(held.Bytes() - int64(out.Size())) // only the messages stay in memory
		},
	})
	watch.lap("publish")
	held.Release()
	v.metrics.bodyBytes.WithLabelValues("published").Add(float64(out.Total))
	if d.Free {
		v.releaseOutgoing(out)
	}
	if d.Err == nil {
		v.settings.Load().quotas.charge(tenant, contents.Cost)
	}
	v.count(contents, d.Err)
	claim.Owned = false
	v.deliveries.Complete(claim.Attempt, contents, d)
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
