package apply

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// MarkOf returns the name of the marker that says up to when, as its watermark, a zone has told that
// it has applied the effects of another one.
func MarkOf(zone, other string) string { return zone + " " + other }

// Told returns, by zone, the time in milliseconds up to which the origin has told that it has applied
// all effects of that zone. It is some seconds old if another process applies the effects.
func (a *ClusterApplier) Told() map[string]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	told := map[string]uint64{}
	for zone, id := range a.told {
		told[zone] = id.Ms
	}
	return told
}

// updateTold reads from the primaries what the origin has told: another process may apply the
// effects. What cannot be read is left out.
func (a *ClusterApplier) updateTold(ctx context.Context) {
	m := a.primaries.Map()
	if m == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, untilRead)
	defer cancel()
	for _, p := range m.Primaries() {
		marks, err := primaries.ReadMarkers(ctx, a.primaries.At(p.Address), primaries.SlotsOf(m, p.Address)[0])
		if err != nil {
			a.log.Debug("cannot read the markers of a primary", zap.String("address", p.Address), zap.Error(err))
			continue
		}
		a.mu.Lock()
		for name, mark := range marks {
			if zone, ok := strings.CutPrefix(name, MarkOf(a.cfg.Origin, "")); ok {
				a.told[zone] = message.Max(a.told[zone], message.ID{Ms: mark.Watermark})
			}
		}
		a.mu.Unlock()
	}
}

// recordMark notes that everything up to a message is applied at all primaries. The markers are
// written once a second.
func (a *ClusterApplier) recordMark(d *messaging.Delivery, h *message.Header, told map[string]message.ID) {
	a.mu.Lock()
	maps.Copy(a.told, told)
	a.marks = map[string]primaries.Marker{h.Origin: {Message: d.ID, Watermark: reachedBy(h).Ms}}
	for zone, id := range a.told {
		a.marks[MarkOf(h.Origin, zone)] = primaries.Marker{Message: d.ID, Watermark: id.Ms}
	}
	a.mu.Unlock()
}

// writeMarks writes the markers to all primaries, if there are new ones. Where that fails, the
// markers that follow serve as well.
func (a *ClusterApplier) writeMarks(ctx context.Context) {
	a.mu.Lock()
	marks := a.marks
	a.marks = nil
	a.mu.Unlock()
	m := a.primaries.Map()
	if m == nil || len(marks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reachEvery)
	defer cancel()
	a.eachPrimary(m, func(db primaries.Pipeliner, slots []int) {
		for zone, marker := range marks {
			if err := primaries.WriteMarker(ctx, db, slots, zone, marker); err != nil {
				a.log.Debug("cannot write a marker", zap.Error(err))
				if !primaries.Moving(err) {
					return
				}
			}
		}
	})
}

// eachPrimary calls f for each primary, one after the other.
func (a *ClusterApplier) eachPrimary(m *cluster.Map, f func(db primaries.Pipeliner, slots []int)) {
	for _, p := range m.Primaries() {
		f(a.primaries.At(p.Address), primaries.SlotsOf(m, p.Address))
	}
}

// latestMarker returns the latest marker of the origin that a primary has. Each primary was sent all
// markers, so those that can be reached are enough, if one of them has any.
func (a *ClusterApplier) latestMarker(ctx context.Context) (latest primaries.Marker, err error) {
	m := a.primaries.Map()
	if m == nil {
		return latest, errors.New("the slots of the Redis Cluster are not known yet")
	}
	// Each marker is written to the lowest slot, too. After slots have moved, it may be elsewhere.
	for _, lowest := range []bool{true, false} {
		var errs []error
		for _, p := range m.Primaries() {
			slots := primaries.SlotsOf(m, p.Address)
			if lowest {
				slots = slots[:1]
			}
			marker, err := primaries.ReadMarker(ctx, a.primaries.At(p.Address), slots, a.cfg.Origin)
			if errs = append(errs, err); !marker.IsZero() && (latest.IsZero() || marker.Message.Compare(latest.Message) > 0) {
				latest = marker
			}
		}
		if err = errors.Join(errs...); !latest.IsZero() {
			return latest, nil
		}
	}
	return latest, err
}

// untilRead is how long a primary may take to answer.
const untilRead = 2 * time.Second
