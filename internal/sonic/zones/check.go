package zones

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Check compares two zones. A difference counts only if it lasts: several times, Check waits until
// both zones have all effects that either of them had before, and in none of these waits does the
// key change in either zone.
type Check struct {
	Local, Peer *Zone
	// Zones are the names of all zones.
	Zones []string
	// Progress is called about once a second with the progress of the comparison. It may be nil.
	Progress func(Progress)
	// ProgressTimeout is how long a zone that has not applied all effects of the others may make no
	// progress. Default 30s.
	ProgressTimeout time.Duration
}

// Progress is the progress of a comparison or a copy.
type Progress struct {
	// Zone is the zone whose keys are being read. Empty: keys that differed are compared again, for
	// the time Round.
	Zone  string
	Round int
	// Done is how many of about Keys keys are done. Suspects is how many keys differed so far.
	Done, Keys, Suspects int64
}

func (p Progress) String() string {
	if p.Zone == "" {
		return fmt.Sprintf("round %d: %d keys differ", p.Round, p.Suspects)
	}
	return fmt.Sprintf("zone %s: %d of about %d keys, %d differ", p.Zone, p.Done, p.Keys, p.Suspects)
}

// Difference is a key whose values differ between two zones.
type Difference struct {
	Key
	// Values of the key by zone.
	Values map[string]Value
	// Changing says that the key kept changing during the comparison: it may not differ at all.
	Changing bool
	// Why says why [Repair] has not repaired it.
	Why string
}

func (d Difference) String() string {
	var parts []string
	for _, zone := range slices.Sorted(maps.Keys(d.Values)) {
		parts = append(parts, fmt.Sprintf("zone %s has %s", zone, d.Values[zone]))
	}
	text := fmt.Sprintf("%s: %s", d.Key, strings.Join(parts, ", "))
	if d.Changing {
		text += "; it changes all the time"
	}
	if d.Why != "" {
		text += ": " + d.Why
	}
	return text
}

const (
	// batch is how many keys one request asks for.
	batch = 256
	// rounds is in how many rounds a key must differ. maxRounds is how many rounds there are at
	// most, for keys that keep changing.
	rounds, maxRounds = 3, 10
	// shortTTL is the time to expiry below which keys are not compared, for each zone removes them
	// at another moment.
	shortTTL = 10 * time.Second
	// expiryTolerance is how much the expiry of a key may differ between zones.
	expiryTolerance = 50 // ms
	// progressInterval is how often progress is reported, pollInterval how often the state of a
	// zone is polled.
	progressInterval, pollInterval = time.Second, 50 * time.Millisecond
)

// both returns what ask returns of each zone.
func both[T any](c *Check, ask func(z *Zone) (T, error)) (local, peer T, err error) {
	if local, err = ask(c.Local); err == nil {
		peer, err = ask(c.Peer)
	}
	return local, peer, err
}

// Run returns the differences, ordered by database and name.
func (c *Check) Run(ctx context.Context) ([]Difference, error) {
	for _, z := range []*Zone{c.Local, c.Peer} {
		if err := z.check(ctx); err != nil {
			return nil, err
		}
	}
	suspects := map[Key]struct{}{}
	if err := c.compare(ctx, c.Local, c.Peer, suspects); err != nil {
		return nil, err
	}
	if err := c.compare(ctx, c.Peer, c.Local, suspects); err != nil {
		return nil, err
	}
	return c.confirm(ctx, slices.Collect(maps.Keys(suspects)))
}

// compare reads all keys of the zone from, and adds those whose value differs in the zone to.
func (c *Check) compare(ctx context.Context, from, to *Zone, suspects map[Key]struct{}) error {
	return from.walkAll(ctx, batch, c.Progress, func(db int, names []string) (int, error) {
		found, err := from.digests(ctx, db, names)
		if err != nil {
			return 0, err
		}
		others, err := to.digests(ctx, db, names)
		if err != nil {
			return 0, err
		}
		for i, e := range found {
			if differ(e.value, others[i].value, time.Now()) {
				suspects[Key{db, e.name}] = struct{}{}
			}
		}
		return len(suspects), nil
	})
}

// differ reports whether two values differ, except for values that expire soon.
func differ(a, b Value, now time.Time) bool {
	if a.Type == b.Type && a.Digest == b.Digest && max(a.Expires-b.Expires, b.Expires-a.Expires) <= expiryTolerance {
		return false
	}
	soon := now.Add(shortTTL).UnixMilli()
	return (a.Expires < 0 || a.Expires > soon) && (b.Expires < 0 || b.Expires > soon)
}

// pair holds the values of a key in both zones.
type pair struct{ local, peer Value }

// confirm compares keys again until it is clear which of them differ.
func (c *Check) confirm(ctx context.Context, keys []Key) ([]Difference, error) {
	lasted := map[Key]int{}
	last := map[Key]pair{}
	for round := 1; len(keys) > 0 && round <= maxRounds; round++ {
		if c.Progress != nil {
			c.Progress(Progress{Round: round, Suspects: int64(len(keys))})
		}
		before, err := c.sample(ctx, keys)
		if err != nil {
			return nil, err
		}
		if err := c.awaitEffects(ctx, slices.Collect(maps.Keys(before))); err != nil {
			return nil, err
		}
		after, err := c.sample(ctx, slices.Collect(maps.Keys(before)))
		if err != nil {
			return nil, err
		}
		keys = keys[:0]
		certain := true
		for key, values := range after {
			last[key] = values
			if values == before[key] {
				lasted[key]++
			}
			certain = certain && lasted[key] >= rounds
			keys = append(keys, key)
		}
		if certain {
			break
		}
	}
	var found []Difference
	for _, key := range keys {
		found = append(found, Difference{
			Key: key, Values: map[string]Value{c.Local.name: last[key].local, c.Peer.name: last[key].peer}, Changing: lasted[key] < rounds,
		})
	}
	slices.SortFunc(found, func(a, b Difference) int {
		if a.DB != b.DB {
			return a.DB - b.DB
		}
		return strings.Compare(a.Name, b.Name)
	})
	return found, nil
}

// sample returns the values of those keys that differ now.
func (c *Check) sample(ctx context.Context, keys []Key) (map[Key]pair, error) {
	names := map[int][]string{}
	for _, key := range keys {
		names[key.DB] = append(names[key.DB], key.Name)
	}
	found := map[Key]pair{}
	for db, all := range names {
		for some := range slices.Chunk(all, batch) {
			local, peer, err := both(c, func(z *Zone) ([]entry, error) { return z.digests(ctx, db, some) })
			if err != nil {
				return nil, err
			}
			for i, name := range some {
				if differ(local[i].value, peer[i].value, time.Now()) {
					found[Key{db, name}] = pair{local[i].value, peer[i].value}
				}
			}
		}
	}
	return found, nil
}

// awaitEffects waits until both zones have applied all effects on keys that either of them has now.
func (c *Check) awaitEffects(ctx context.Context, keys []Key) error {
	local, peer, err := both(c, func(z *Zone) (Reached, error) { return z.holds(ctx, keys, c.Zones) })
	if err != nil {
		return err
	}
	timeout := cmp.Or(c.ProgressTimeout, 30*time.Second)
	var atLocal, atPeer Reached
	for moved := time.Now(); ; {
		nowLocal, nowPeer, err := both(c, func(z *Zone) (Reached, error) { return z.reached(ctx) })
		if err != nil {
			return err
		}
		// Only effects that a zone waits for count as progress: heartbeats of other zones arrive all
		// the time.
		if atLocal.changed(nowLocal, atLocal.behind(peer, c.Zones)) || atPeer.changed(nowPeer, atPeer.behind(local, c.Zones)) {
			moved = time.Now()
		}
		atLocal, atPeer = nowLocal, nowPeer
		localWaits, peerWaits := atLocal.behind(peer, c.Zones), atPeer.behind(local, c.Zones)
		if len(localWaits) == 0 && len(peerWaits) == 0 {
			return nil
		}
		if time.Since(moved) > timeout {
			return fmt.Errorf("zones %s and %s still have different effects: %s waits for effects of zones %q, %s for effects of %q: see /zones of their Sonics",
				c.Local.name, c.Peer.name, c.Local.name, localWaits, c.Peer.name, peerWaits)
		}
		if !backoff.Sleep(ctx, pollInterval) {
			return ctx.Err()
		}
	}
}
