package apply

import (
	"context"
	"math"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// applyTimeout bounds one attempt to apply a message: a primary that cannot be reached becomes an
// error of the applier then.
const applyTimeout = 10 * time.Second

// ClusterApplier is the [Applier] of a zone that has a Redis Cluster. It also applies again what a
// primary has lost that was restarted or has taken over: that primary is not ready until the appliers
// of all zones have done so. All methods are safe for concurrent use.
type ClusterApplier struct {
	*progress
	primaries *primaries.Primaries

	chain chain // only the consumer's handler uses it

	// The lock of progress is held for these.
	markers        map[string]primaries.Marker // by name: those to write; nil: none is new
	otherReached   map[string]uint64           // by zone, see OtherReached
	otherDatabases map[string]bool             // databases of effects that were not applied, once logged
}

// chain joins messages in parts, and says up to which effect the messages of an origin with one Redis
// are applied without a gap.
type chain struct {
	parts wire.PartJoiner
	known bool
	last  wire.ID
}

// next returns the payload of the message that comes next. whole is false for a part with others behind
// it. The error is [wire.ErrPartsMissing] or a gapError if something before the message is missing, and
// errUnknown if that is not known.
func (c *chain) next(d *messaging.Delivery, h *wire.Header) (payload []byte, whole bool, err error) {
	payload, whole, err = c.parts.Add(h, d.Payload)
	switch {
	case err != nil || !whole || h.Slots:
		return payload, whole, partsError(d, h, err)
	case !c.known:
		return nil, false, errUnknown
	case h.Prev.Compare(c.last) > 0:
		return nil, false, &gapError{c.last}
	default:
		return payload, whole, nil
	}
}

func (c *chain) add(h *wire.Header) { c.known, c.last = true, wire.Max(c.last, h.Last) }

// NewCluster makes an applier.
func NewCluster(cfg Config, p *primaries.Primaries, client *messaging.Client, log *zap.Logger, m *Metrics) *ClusterApplier {
	a := &ClusterApplier{primaries: p, otherReached: map[string]uint64{}, otherDatabases: map[string]bool{}}
	a.progress = newProgress(cfg, client, log, m, func(ctx context.Context, d *messaging.Delivery, _ *wire.Header) (bool, error) {
		marker, err := a.latestMarker(ctx)
		return !marker.IsZero() && d.ID.Compare(marker.Message) <= 0, err
	})
	return a
}

// Run applies effects until ctx ends, see [Applier.Run].
func (a *ClusterApplier) Run(ctx context.Context) error { return a.run(ctx, a.apply, a.watch) }

// apply tries to apply a message once.
func (a *ClusterApplier) apply(ctx context.Context, d *messaging.Delivery, h *wire.Header) error {
	return a.applyInOrder(ctx, d, h, a.handler(&a.chain), a.catchUp)
}

// handler returns a handler that applies the next message of a chain.
func (a *ClusterApplier) handler(c *chain) handler {
	return func(ctx context.Context, d *messaging.Delivery, h *wire.Header) error {
		payload, whole, err := c.next(d, h)
		if err != nil || !whole {
			return err
		}
		calls, split, err := slotCalls(h, payload, string(d.ID.Bytes()), false)
		if err != nil {
			return cannotApply(d, h, err)
		}
		calling, cancel := context.WithTimeout(ctx, applyTimeout)
		defer cancel()
		replies, err := a.primaries.Do(calling, calls)
		if err != nil {
			return err
		}
		results := make([]redislib.Result, len(replies))
		for i, r := range replies {
			if results[i], err = redislib.ApplyResult(r.Value, r.Err); redislib.Rejected(err) {
				return cannotApply(d, h, err)
			}
			if err != nil {
				return err
			}
		}
		if err := a.countSlots(results); err != nil {
			return err
		}
		c.add(h)
		a.recordOtherDatabases(d, split.OtherDatabases)
		a.recordApplied(d, h)
		a.recordMarkers(d, h, split.Reached)
		return nil
	}
}

// recordOtherDatabases counts and logs effects that a Redis Cluster cannot apply, by database.
func (a *ClusterApplier) recordOtherDatabases(d *messaging.Delivery, counts map[string]int64) {
	for db, n := range counts {
		a.metrics.effects.WithLabelValues(a.cfg.Origin, "diverged").Add(float64(n))
		a.mu.Lock()
		again := a.otherDatabases[db]
		a.otherDatabases[db] = true
		a.mu.Unlock()
		if !again {
			a.log.Error("the other zone writes to a database other than 0: this zone has a Redis Cluster and does not apply these effects, sonic_applied_effects_total counts them as diverged",
				zap.String("database", db), zap.Stringer("message", d.ID))
		}
	}
}

// slotCalls returns the calls that apply a whole message, and what else is in it: split has no slots.
// recovers says that a primary that is not ready may have lost the effects.
func slotCalls(h *wire.Header, payload []byte, id string, recovers bool) (calls []primaries.Call, split wire.Split, err error) {
	var groups []wire.PackedGroup
	if h.Slots {
		if groups, err = wire.Groups(payload); err != nil {
			return nil, split, err
		}
		split.Reached = h.ReachedIDs()
	} else {
		if split, err = wire.SplitBySlot(payload); err != nil {
			return nil, split, err
		}
		for _, s := range split.Slots { // the chain of messages shows what is missing, not that of slots
			groups = append(groups, wire.PackedGroup{Slot: s.Slot, Last: s.Last, Entries: s.Payload})
		}
	}
	for _, g := range groups {
		calls = append(calls, primaries.Call{Slot: g.Slot, Function: redislib.ApplyFunction, Args: redislib.ApplyArgs(h.Origin, h.Epoch, recovers, g, id)})
	}
	split.Slots = nil
	return calls, split, nil
}

// catchUp applies the messages between the latest marker and d. All up to the marker are applied: it
// is written when that is so at all primaries, and a primary that has lost something since is not
// ready until it has it again.
func (a *ClusterApplier) catchUp(ctx context.Context, d *messaging.Delivery, _ *wire.Header) error {
	marker, err := a.latestMarker(ctx)
	if err != nil {
		return err
	}
	c := chainFrom(marker)
	if err := a.readAgain(ctx, string(marker.Message.Bytes()), d, a.inOrder(a.handler(&c))); err != nil {
		return err
	}
	a.chain = c
	return nil
}

// chainFrom returns the chain up to a marker. The marker does not have the last effect of its
// message, but its time.
func chainFrom(m primaries.Marker) chain {
	if m.IsZero() {
		return chain{known: true}
	}
	return chain{known: true, last: wire.ID{Ms: m.Watermark, Seq: math.MaxUint64}}
}

// watch writes markers, has primaries recover, and finds out how far the zone is.
func (a *ClusterApplier) watch(ctx context.Context, subscribing func() error) {
	var others sync.WaitGroup
	defer others.Wait()
	for _, f := range []func(context.Context){a.recover, a.writeMarkers} {
		others.Go(func() {
			for backoff.Sleep(ctx, reachEvery) {
				f(ctx)
			}
		})
	}
	for pause := reachEvery; backoff.Sleep(ctx, pause); pause = watchEvery {
		_, err := a.readEnd(ctx)
		if ctx.Err() != nil {
			return
		}
		a.recordTopicError(subscribing(), err)
		if marker, err := a.latestMarker(ctx); err == nil { // the consumer logs the error
			a.updateCursor(wire.ID{Ms: marker.Watermark})
		}
		a.updateOtherReached(ctx)
	}
}
