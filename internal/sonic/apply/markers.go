package apply

import (
	"context"
	"errors"
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// OtherReached returns, by zone, the time in milliseconds up to which the origin says that it has
// applied all effects of that zone. It is some seconds old if another process applies the effects.
func (a *ClusterApplier) OtherReached() map[string]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.otherReached)
}

// updateOtherReached reads OtherReached from the markers of the primaries: another process may apply
// the effects. It passes over primaries that cannot be read.
func (a *ClusterApplier) updateOtherReached(ctx context.Context) {
	m := a.primaries.Map()
	if m == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, p := range m.Primaries() {
		found, err := primaries.ReadMarkers(ctx, a.primaries.At(p.Address), primaries.SlotsOf(m, p.Address)[0])
		if err != nil {
			a.log.Debug("cannot read the markers of a primary", zap.String("address", p.Address), zap.Error(err))
			continue
		}
		a.mu.Lock()
		for name, marker := range found {
			if origin, zone, ok := primaries.CutReachedMarker(name); ok && origin == a.cfg.Origin {
				a.otherReached[zone] = max(a.otherReached[zone], marker.Watermark)
			}
		}
		a.mu.Unlock()
	}
}

// recordMarkers notes that everything up to a message is applied at all primaries. The markers are
// written once a second.
func (a *ClusterApplier) recordMarkers(d *messaging.Delivery, h *wire.Header, reached map[string]wire.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for zone, id := range reached {
		a.otherReached[zone] = id.Ms
	}
	a.markers = map[string]primaries.Marker{h.Origin: {Message: d.ID, Watermark: reachedBy(h).Ms}}
	for zone, ms := range a.otherReached {
		a.markers[primaries.ReachedMarker(h.Origin, zone)] = primaries.Marker{Message: d.ID, Watermark: ms}
	}
}

// writeMarkers writes the markers to all primaries, if there are new ones. Where that fails, the
// markers that follow serve as well.
func (a *ClusterApplier) writeMarkers(ctx context.Context) {
	a.mu.Lock()
	markers := a.markers
	a.markers = nil
	a.mu.Unlock()
	m := a.primaries.Map()
	if m == nil || len(markers) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reachEvery)
	defer cancel()
	for _, p := range m.Primaries() {
		db, slots := a.primaries.At(p.Address), primaries.SlotsOf(m, p.Address)
		for name, marker := range markers {
			if err := primaries.WriteMarker(ctx, db, slots, name, marker); err != nil {
				a.log.Debug("cannot write a marker", zap.Error(err))
				if !primaries.Moving(err) {
					break
				}
			}
		}
	}
}

// latestMarker returns the latest marker of the origin that a primary has. Each primary gets all
// markers, so it is enough if one primary with a marker can be reached.
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

// readTimeout is how long a primary may take to answer.
const readTimeout = 2 * time.Second
