package zones

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
)

// sonicEvery is the time between two writes of a client. There are two for each zone.
const sonicEvery = 40 * time.Millisecond

// counters are how many counters all zones increment.
const counters = 3

const sonicFlow = "Sonic"

// A sonicLedger is what clients of Sonic were told. It is safe for concurrent use.
type sonicLedger struct {
	mu sync.Mutex
	// once are keys that were written once, and the zone that has acknowledged it.
	once map[string]string
	// acknowledged and unknown are what was added to counters, and what may have been, in all.
	acknowledged, unknown int64
	generation            int
	writes                map[string]int   // that each zone has acknowledged
	added                 map[string]int64 // what each zone has acknowledged for counters
	// mayBeLost are acknowledged keys that only a lost zone had, mayLack what counters may lack of it.
	mayBeLost map[string]bool
	mayLack   int64
}

func newSonicLedger() *sonicLedger {
	return &sonicLedger{once: map[string]string{}, writes: map[string]int{}, added: map[string]int64{}, mayBeLost: map[string]bool{}}
}

// client is one of a zone's Sonic, wherever that listens now. It sends nothing twice.
func (z *zone) client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, z.sonic.AddressNow("redis"))
		},
		PoolSize: 1, MaxRetries: -1, DialerRetries: 1, ReadTimeout: await.Patience, WriteTimeout: await.Patience,
	})
}

// write is one client of a zone.
func (l *sonicLedger) write(w *fixture, z *zone, client int) {
	c := z.client()
	defer c.Close()
	l.mu.Lock()
	l.generation++
	generation := l.generation
	l.mu.Unlock()
	ctx := context.Background()
	w.tick(sonicEvery, func(n int) bool {
		z.writing.RLock()
		defer z.writing.RUnlock()
		if z.down.Load() {
			return true
		}
		value := fmt.Sprintf("%s-%d-%d-%d", z.name, client, generation, n)
		var err error
		key, by := "", int64(0)
		switch n % 5 {
		case 0, 1:
			key = "once:" + value
			err = c.Set(ctx, key, value, 0).Err()
		case 2:
			by = int64(n%7 + 1)
			err = c.IncrBy(ctx, "count:"+strconv.Itoa(n%counters), by).Err()
		case 3:
			err = c.Set(ctx, "shared:"+strconv.Itoa(n%50), value, 0).Err()
		default:
			err = c.HSet(ctx, "shared:hash", strconv.Itoa(n%20), value).Err()
		}
		l.note(z, key, by, err)
		return true
	})
}

func (l *sonicLedger) note(z *zone, key string, by int64, err error) {
	var said redis.Error
	refused := errors.As(err, &said) && !strings.Contains(err.Error(), "is unknown")
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.acknowledged += by
		l.added[z.name] += by
		l.writes[z.name]++
		if key != "" {
			l.once[key] = z.name
		}
	case !refused:
		l.unknown += by
	}
}

// A shipment is what a zone had acknowledged before other zones had all of that.
type shipment struct {
	keys  map[string]bool
	added int64
}

// acknowledgedBy is what a zone has acknowledged so far.
func (l *sonicLedger) acknowledgedBy(z *zone) shipment {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := shipment{map[string]bool{}, l.added[z.name]}
	for key, zone := range l.once {
		if zone == z.name {
			s.keys[key] = true
		}
	}
	return s
}

// zoneIsLost is called when a zone is lost. What may be lost with it is what it has acknowledged since
// the others have what was shipped, and none of rest holds.
func (l *sonicLedger) zoneIsLost(w *fixture, z *zone, shipped shipment, rest []*zone) {
	w.t.Helper()
	z.writing.Lock() // until the last answer is there
	defer z.writing.Unlock()
	held := map[string]string{}
	for _, other := range rest {
		maps.Copy(held, w.held(other))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, zone := range l.once {
		if zone == z.name && !shipped.keys[key] && held[key] == "" {
			l.mayBeLost[key] = true
		}
	}
	l.mayLack = l.added[z.name] - shipped.added
	w.say("zone %s: at most %d keys are lost", z.name, len(l.mayBeLost))
}

// settle waits until each of the zones has all that the others wrote.
func (w *fixture) settle(zones ...*zone) {
	w.t.Helper()
	w.settleFrom(zones, zones)
}

// settleFrom waits until each of the zones to has all that those of from wrote.
func (w *fixture) settleFrom(from, to []*zone) {
	w.t.Helper()
	for range 2 { // an effect may have a zone ask another one
		mark := strconv.FormatInt(time.Now().UnixNano(), 10)
		for _, z := range from {
			c := z.client()
			var err error
			w.await("zone "+z.name+" takes writes", func() bool {
				err = c.Set(context.Background(), "mark:"+z.name, mark, 0).Err()
				return err == nil
			})
			_ = c.Close()
		}
		for _, at := range to {
			for _, of := range from {
				w.await(fmt.Sprintf("zone %s has what zone %s wrote", at.name, of.name), func() bool {
					return at.direct.Get(context.Background(), "mark:"+of.name).Val() == mark
				})
			}
		}
	}
}

// held reads what a zone holds, but for Sonic's own keys.
func (w *fixture) held(z *zone) map[string]string {
	w.t.Helper()
	ctx, c, all := context.Background(), z.direct, map[string]string{}
	keys := c.Scan(ctx, 0, "*", 1000).Iterator()
	for keys.Next(ctx) {
		switch key := keys.Val(); {
		case key == "shared:hash":
			fields, err := c.HGetAll(ctx, key).Result()
			require.NoError(w.t, err)
			for field, value := range fields {
				all[key+"/"+field] = value
			}
		case strings.HasPrefix(key, "once:"), strings.HasPrefix(key, "shared:"), strings.HasPrefix(key, "count:"):
			value, err := c.Get(ctx, key).Result()
			require.NoError(w.t, err)
			all[key] = value
		}
	}
	require.NoError(w.t, keys.Err())
	return all
}

// countSonic makes a line for each zone: the keys that were written once, in all zones, those that the
// zone has, whether sums are too small or too large, and how it differs from the first of zones.
func (w *fixture) countSonic(zones []*zone) (lines []line) {
	w.t.Helper()
	reference := w.held(zones[0])
	l := w.sonics
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, z := range zones {
		mine := w.held(z)
		n := line{flow: sonicFlow, zone: z.name, acknowledged: len(l.once)}
		for key := range l.once {
			switch {
			case mine[key] != "":
				n.received++
			case l.mayBeLost[key]:
				n.lost++
			default:
				n.missing++
			}
		}
		var sum int64
		for i := range counters {
			value, _ := strconv.ParseInt(mine["count:"+strconv.Itoa(i)], 10, 64)
			sum += value
		}
		if sum < l.acknowledged-l.mayLack {
			n.missing++
		}
		if sum > l.acknowledged+l.unknown {
			n.doubled++
		}
		for _, key := range slices.Sorted(maps.Keys(reference)) {
			if mine[key] != reference[key] {
				n.differences++
			}
		}
		for key := range mine {
			if _, in := reference[key]; !in {
				n.differences++
			}
		}
		lines = append(lines, n)
	}
	return lines
}
