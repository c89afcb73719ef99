package apply

import (
	"context"
	"errors"
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

	// Only the consumer's handler uses these.
	parts wire.PartJoiner
	chain chain

	// The lock of progress is held for these.
	markers        map[string]primaries.Marker // by name: those to write; nil: none is new
	otherReached   map[string]wire.ID          // by zone, how far the origin says it has applied its effects
	otherDatabases map[string]bool             // databases of effects that were not applied, once logged
}

// chain says up to which effect the messages of an origin with one Redis are applied without a gap.
type chain struct {
	known bool
	last  wire.ID
}

// follows reports whether nothing is missing between the chain and a message.
func (c *chain) follows(h *wire.Header) bool {
	return h.Slots || c.known && h.Prev.Compare(c.last) <= 0
}

func (c *chain) add(h *wire.Header) { *c = chain{true, wire.Max(c.last, h.Last)} }

// NewCluster makes an applier.
func NewCluster(cfg Config, p *primaries.Primaries, client *messaging.Client, log *zap.Logger, m *Metrics) *ClusterApplier {
	return &ClusterApplier{progress: newProgress(cfg, client, log, m), primaries: p, otherReached: map[string]wire.ID{}, otherDatabases: map[string]bool{}}
}

// Run applies effects until ctx ends, see [Applier.Run].
func (a *ClusterApplier) Run(ctx context.Context) error { return a.run(ctx, a.apply, a.watch) }

// apply tries to apply a message once.
func (a *ClusterApplier) apply(ctx context.Context, d *messaging.Delivery) error {
	h, err := a.readHeader(ctx, d)
	if h == nil {
		return err
	}
	err = a.applyNext(ctx, d, h, &a.parts, &a.chain)
	gap := (*slotGap)(nil)
	if !errors.Is(err, wire.ErrPartsMissing) && !errors.As(err, &gap) {
		return err
	}
	if gap != nil && a.chain.known {
		a.logGap(h, gap.at)
	}
	if err := a.catchUp(ctx, d); err != nil {
		return err
	}
	return a.finalError(d, h, a.applyNext(ctx, d, h, &a.parts, &a.chain))
}

// finalError returns the error of a message that still failed after the topic was read again.
func (a *ClusterApplier) finalError(d *messaging.Delivery, h *wire.Header, err error) error {
	if gap := (*slotGap)(nil); errors.As(err, &gap) {
		return a.reportGap(h, gap.at)
	}
	if errors.Is(err, wire.ErrPartsMissing) {
		return cannotApply(d, h, err)
	}
	return err
}

// applyNext applies a message. Its error is [wire.ErrPartsMissing] or a slotGap if something
// before it is missing.
func (a *ClusterApplier) applyNext(ctx context.Context, d *messaging.Delivery, h *wire.Header, parts *wire.PartJoiner, c *chain) error {
	payload, whole, err := nextPayload(d, h, parts, c)
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

// nextPayload joins the parts of the message that comes next. whole is false for a part with others
// behind it. The error is [wire.ErrPartsMissing] or a slotGap if something before the message is
// missing.
func nextPayload(d *messaging.Delivery, h *wire.Header, parts *wire.PartJoiner, c *chain) (payload []byte, whole bool, err error) {
	payload, whole, err = parts.Add(h, d.Payload)
	switch {
	case err != nil && !errors.Is(err, wire.ErrPartsMissing):
		return nil, false, cannotApply(d, h, err)
	case whole && !c.follows(h):
		return nil, false, &slotGap{c.last}
	default:
		return payload, whole, err
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
			a.log.Error("the other zone writes to a database that a Redis Cluster does not have: this zone applies none of these effects, sonic_applied_effects_total counts them as diverged",
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
func (a *ClusterApplier) catchUp(ctx context.Context, d *messaging.Delivery) error {
	marker, err := a.latestMarker(ctx)
	if err != nil {
		return err
	}
	parts, c := wire.PartJoiner{}, chainFrom(marker)
	if err := a.readAgain(ctx, d, string(marker.Message.Bytes()), func(ctx context.Context, missing *messaging.Delivery) error {
		h, err := a.readHeader(ctx, missing)
		if h == nil {
			return err
		}
		return a.finalError(missing, h, a.applyNext(ctx, missing, h, &parts, &c))
	}); err != nil {
		return err
	}
	a.parts, a.chain = parts, c
	return nil
}

// chainFrom returns the chain up to a marker. The marker does not have the last effect of its
// message, but its time.
func chainFrom(m primaries.Marker) chain {
	if m.IsZero() {
		return chain{known: true}
	}
	return chain{true, wire.ID{Ms: m.Watermark, Seq: math.MaxUint64}}
}

// readHeader is header. A message is passed if it is not behind the latest marker.
func (a *ClusterApplier) readHeader(ctx context.Context, d *messaging.Delivery) (*wire.Header, error) {
	return a.header(d, func(*wire.Header) (bool, error) {
		marker, err := a.latestMarker(ctx)
		return !marker.IsZero() && d.ID.Compare(marker.Message) <= 0, err
	})
}

// watch writes markers, has primaries recover, and finds out how far the zone is.
func (a *ClusterApplier) watch(ctx context.Context, subscribing func() error) {
	var recovering sync.WaitGroup
	defer recovering.Wait()
	recovering.Go(func() { // this can take long
		for backoff.Sleep(ctx, reachEvery) {
			a.recover(ctx)
		}
	})
	ticker := time.NewTicker(reachEvery)
	defer ticker.Stop()
	var looked time.Time
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		a.writeMarkers(ctx)
		if time.Since(looked) < watchEvery || ctx.Err() != nil {
			continue
		}
		looked = time.Now()
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
