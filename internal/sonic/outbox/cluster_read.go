package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

const (
	// minTakePause is the pause after entries came. While none come it becomes longer by a part of
	// takePauseGrowth each time, up to maxTakePause: so entries wait for a small part of the time for
	// which none have come. Redis is asked again and again because XREAD cannot block on streams of
	// several slots.
	minTakePause    = time.Millisecond
	maxTakePause    = 20 * time.Millisecond
	takePauseGrowth = 8
	// confirmEvery is how often Hold is called again for slots that the primary does not have yet, or
	// of which the stream is still at another one.
	confirmEvery = 100 * time.Millisecond
	// markerInterval is how often a primary gets the marker of its own zone.
	markerInterval = time.Second
)

// primaryReader reads the streams of a primary.
type primaryReader struct {
	*clusterOwner
	primary cluster.Primary
	stop    context.CancelFunc
	opened  bool // by a session

	// The rest is of one session.
	library   *redislib.Primary
	known     *cluster.Map // slots are by this map
	slots     []int        // in order
	confirmed map[int]bool // slots that the primary has confirmed, see [redislib.Primary.Hold]; nil: Hold was not called
	confirmAt time.Time    // when to call Hold again for the others
	streams   map[int]*slotStream
	marked    time.Time
}

// errReaderEnded says that there is nothing to read: readAll ends the reader, unless the primary gets
// slots.
var errReaderEnded = errors.New("the primary has no slots any more")

// run reads until ctx ends. After a failure it begins another session.
func (r *primaryReader) run(ctx context.Context) error {
	return retry(ctx, r.session, func(err error) bool {
		return final(err) && !errors.Is(err, errLost) // then the other primaries go on
	}, func(err error) {
		if !errors.Is(err, errReaderEnded) {
			r.setPrimary(r.primary, fmt.Errorf("primary %s: %w", r.primary.Address, err))
			r.cluster.Refresh()
		}
	})
}

// session opens the primary and reads it until an error. It uses one connection: the primary
// has been the same process as long as it lasts.
func (r *primaryReader) session(ctx context.Context) error {
	m := r.cluster.Map()
	if m.Count(r.primary.Address) == 0 {
		return errReaderEnded
	}
	conn := r.cluster.At(r.primary.Address).Conn()
	defer func() { _ = conn.Close() }()
	cfg := r.cfg.Library
	cfg.Bound.Bytes /= int64(max(len(m.Primaries()), 1))
	r.library = redislib.NewPrimary(conn, cfg)
	before := r.slots
	r.known, r.slots = m, primaries.SlotsOf(m, r.primary.Address)
	r.confirmed, r.confirmAt, r.marked, r.streams = nil, time.Time{}, time.Time{}, map[int]*slotStream{}
	r.queue.remove(r) // they are taken again
	if err := r.open(ctx, before); err != nil {
		return err
	}
	r.opened = true
	return r.read(ctx)
}

// open opens the primary if no Sonic has, or with the configuration of this process. before are the
// slots that it had in the session before.
func (r *primaryReader) open(ctx context.Context, before []int) error {
	state, err := r.library.Look(ctx)
	if err != nil {
		return fmt.Errorf("cannot read its state: %w", err)
	}
	if state.Opened && r.opened && !slices.Contains(state.Recovering, r.cfg.Zone) {
		return nil
	}
	// A message with a later watermark than the last stored one may be on its way. The primary's
	// watermark of before may be by the clock of another machine.
	r.storing.Lock()
	floor := r.packer.Tail.Watermark
	delete(r.watermarks, r)
	r.storing.Unlock()
	if err := r.library.Open(ctx, state, state.Ready, floor); err != nil {
		if redislib.Fatal(err) {
			err = fmt.Errorf("%w: %w", ErrState, err)
		}
		return fmt.Errorf("cannot open it: %w", err)
	}
	if state.Ready {
		return nil
	}
	if err := r.markMissing(ctx, before); err != nil {
		if redislib.Unfilled(err) {
			err = fmt.Errorf("%w: %w", ErrState, err)
		}
		return fmt.Errorf("cannot mark the slots that may lack effects: %w", err)
	}
	return r.recover(ctx)
}

// read passes the entries of the streams to the queue.
func (r *primaryReader) read(ctx context.Context) error {
	all, pause := true, minTakePause // all: also what an earlier session has taken
	for {
		if err := r.follow(ctx); err != nil {
			return err
		}
		list, state, more, err := r.library.Take(ctx, all)
		if err != nil {
			return fmt.Errorf("cannot read its outbox: %w", err)
		}
		all = false
		if slices.Contains(state.Recovering, r.cfg.Zone) {
			return errRecovers
		}
		r.setPrimary(r.primary, nil)
		// The marker comes before any effect of this primary is stored: if a topic has effects, its
		// cluster has a marker.
		if state.Ready {
			r.writeMarker(ctx)
		}
		items, err := r.items(list, !more)
		if err != nil {
			return err
		}
		if !more && len(r.confirmed) == len(r.slots) {
			items = append(items, clusterItem{reader: r, watermark: primaryWatermark{state.Clock, r.known}})
		}
		if err := r.queue.put(ctx, items); err != nil {
			return err
		}
		switch {
		case len(list) == 0:
			pause = min(pause+pause/takePauseGrowth, maxTakePause)
		case more:
			continue
		default:
			pause = minTakePause
		}
		if !backoff.Sleep(ctx, pause) {
			return nil
		}
	}
}

// follow tells the primary which slots it has by the latest map.
func (r *primaryReader) follow(ctx context.Context) error {
	if m := r.cluster.Map(); m != r.known || r.confirmed == nil {
		r.known, r.slots, r.confirmAt = m, primaries.SlotsOf(m, r.primary.Address), time.Time{}
		if len(r.slots) == 0 {
			return errReaderEnded
		}
		confirmed := map[int]bool{}
		var lost []int
		for slot := range cluster.Slots {
			switch own := m.Owner(slot) == r.primary.Address; {
			case own && r.confirmed[slot]:
				confirmed[slot] = true
			case !own && (r.confirmed == nil || r.confirmed[slot]): // it may know slots that it has lost while no session told it
				lost = append(lost, slot)
				delete(r.streams, slot)
			}
		}
		r.confirmed = confirmed
		if _, err := r.library.Hold(ctx, lost); err != nil { // it forgets them
			return fmt.Errorf("cannot remove the slots that it no longer has: %w", err)
		}
	}
	if len(r.confirmed) == len(r.slots) || time.Now().Before(r.confirmAt) {
		return nil
	}
	var gained []int
	for _, slot := range r.slots {
		if !r.confirmed[slot] {
			gained = append(gained, slot)
		}
	}
	missing, err := r.library.Hold(ctx, gained)
	if err != nil {
		return fmt.Errorf("cannot set its slots: %w", err)
	}
	for _, slot := range gained {
		r.confirmed[slot] = true
	}
	for _, slot := range missing {
		delete(r.confirmed, slot)
	}
	if r.confirmAt = time.Now().Add(confirmEvery); len(missing) > 0 {
		r.cluster.Refresh()
	}
	return nil
}

// writeMarker writes the marker of this zone once a second. This primary has the effects of its slots
// in all stored messages: they come from it, or from a former primary whose data it has.
func (r *primaryReader) writeMarker(ctx context.Context) {
	if time.Since(r.marked) < markerInterval {
		return
	}
	if err := primaries.WriteMarker(ctx, r.library.Conn(), r.slots, r.cfg.Zone, r.marker()); err != nil && !primaries.Moving(err) {
		r.log.Warn("cannot write the marker of this zone", zap.String("primary", r.primary.Address), zap.Error(err))
	}
	r.marked = time.Now()
}

// slotStream is what was taken of the stream of a slot and not passed to the queue.
type slotStream struct {
	joiner  wire.Joiner
	taken   wire.ID // the last stream entry
	passed  wire.ID // the last entry that was passed to the queue
	entries []wire.Entry
}

// items returns what was taken as groups. Those of transactions without an end, and their pieces,
// wait for the rest, unless all is taken: no transaction goes on between two calls.
func (r *primaryReader) items(list []redislib.Taken, all bool) (items []clusterItem, err error) {
	for _, t := range list {
		s := r.streams[t.Slot]
		if s == nil || s.taken != t.Prev {
			s = &slotStream{passed: t.Prev}
			r.streams[t.Slot] = s
		}
		entries, err := entriesOf(&s.joiner, t.Entries)
		if err != nil {
			return nil, err
		}
		if s.taken, err = wire.ParseID(t.Entries[len(t.Entries)-1].ID); err != nil {
			return nil, err
		}
		s.entries = append(s.entries, entries...)
		for len(s.entries) > 0 {
			n := wire.Cut(s.entries, false)
			if n == 0 {
				break
			}
			items = append(items, r.cut(t.Slot, s, n))
		}
	}
	for slot, s := range r.streams {
		if all && len(s.entries) > 0 {
			items = append(items, r.cut(slot, s, len(s.entries)))
		}
		if len(s.entries) == 0 && s.taken == s.passed {
			delete(r.streams, slot)
		}
	}
	return items, nil
}

// cut removes the first n entries of a stream.
func (r *primaryReader) cut(slot int, s *slotStream, n int) clusterItem {
	entries := s.entries[:n:n]
	g := wire.Group{Slot: slot, Prev: s.passed, Last: entries[n-1].ID, Entries: entries}
	s.entries, s.passed = s.entries[n:], g.Last
	return clusterItem{reader: r, group: g, bytes: sizeOf(entries)}
}
