package sonic

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/systems"

	"github.com/aviaryhq/aviary/test/systems/pulsar"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// A stored is an effect in a topic.
type stored struct {
	origin string
	id     wire.ID
	effect []string
}

// about reports whether the effect is of a key: others are of Sonic itself.
func (s stored) about() bool {
	return s.effect[0] != "_" && s.effect[0] != "N" && s.effect[0] != "O"
}

// read calls h for each message since a time, zero for all, of a zone's topic in one of the
// clusters, with the effects that it completes.
func (w *randomRun) read(cluster, of *site, since time.Time, h func(*wire.Header, []stored)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*await.Patience)
	defer cancel()
	cfg := messaging.ReaderConfig{Topic: w.topicOf(of), Name: "random"}
	if !since.IsZero() {
		position := messaging.AtTime(since)
		cfg.From = &position
	}
	var parts []byte
	err := pulsar.ReadStored(ctx, w.pulsars.Clusters[cluster.pulsar].URL(), cfg, func(d *messaging.Delivery) error {
		header, err := wire.ParseHeader(d.Properties)
		if err != nil {
			return err
		}
		if header.Part == 1 {
			parts = nil
		}
		parts = append(parts, d.Payload...)
		if header.Part < header.Parts {
			h(header, nil)
			return nil
		}
		entries, err := entriesOf(header, parts)
		if err != nil {
			return err
		}
		var all []stored
		for _, e := range entries {
			effects, err := wire.Effects(e.Effects)
			if err != nil {
				return err
			}
			for _, effect := range effects {
				all = append(all, stored{of.name, e.ID, effect.Values})
			}
		}
		h(header, all)
		return nil
	})
	require.NoError(w.t, err)
}

// effectsOf returns the last effects on a key, of all zones, by their ids.
func (w *randomRun) effectsOf(db int, key string) []string {
	w.t.Helper()
	var found []stored
	for _, s := range w.sites {
		w.read(s, s, time.Time{}, func(_ *wire.Header, effects []stored) {
			for _, e := range effects {
				if e.effect[2] == strconv.Itoa(db) && e.effect[3] == key {
					found = append(found, e)
				}
			}
		})
	}
	slices.SortStableFunc(found, func(a, b stored) int { return cmp.Or(a.id.Compare(b.id), strings.Compare(a.origin, b.origin)) })
	var lines []string
	for _, e := range found[max(0, len(found)-30):] {
		lines = append(lines, fmt.Sprintf("%s@%s %.300q", e.id, e.origin, e.effect))
	}
	return lines
}

// topics looks at what the clusters have stored: the messages of each zone follow one another, in
// all clusters, and what was written once is stored once.
func (w *randomRun) topics() {
	w.t.Helper()
	times := map[string]int{}
	for _, of := range w.sites {
		for _, cluster := range w.sites {
			var last wire.ID
			messages, repeated := 0, 0
			w.read(cluster, of, time.Time{}, func(h *wire.Header, effects []stored) {
				messages++
				assert.Equal(w.t, of.name, h.Origin)
				switch {
				case h.Last.Compare(last) <= 0: // replication stores at least once
					repeated++
					assert.NotEqual(w.t, of, cluster, "message %s of zone %s is stored twice", h.Last, of.name)
					return
				case h.Prev.Compare(last) != 0:
					w.t.Errorf("cluster %s: in the topic of zone %s a message that follows %s is behind %s", cluster.name, of.name, h.Prev, last)
				}
				if h.Part == h.Parts {
					last = h.Last
				}
				if cluster != of {
					return
				}
				for _, e := range effects {
					switch key := e.effect[3]; {
					case e.effect[0] == "S" && strings.HasPrefix(key, "once:"):
						times["SET "+key]++
					case e.effect[0] == "H" && key == "once:h":
						times["HSET once:h "+e.effect[5]]++
					case e.effect[0] == "A" && key == "once:s":
						times["SADD once:s "+e.effect[5]]++
					}
				}
			})
			w.event("cluster %s: %d messages of zone %s, %d of them repeated", cluster.name, messages, of.name, repeated)
		}
	}
	wrong := 0
	for _, what := range slices.Sorted(maps.Keys(w.ledger.own)) {
		n, o := times[what], w.ledger.own[what]
		if n == 1 && o != refused || n == 0 && o != acknowledged {
			continue
		}
		if wrong++; wrong <= shown {
			w.t.Errorf("%s is %s, and stored %d times", what, o, n)
		}
	}
	assert.Zero(w.t, wrong, "writes that are not stored once")
}

// outcomes adds up what became of the effects of a zone in another one, and messages that were
// dropped.
func (w *randomRun) outcomes(at, of *site) (effects, duplicates float64) {
	w.t.Helper()
	for _, e := range at.sonics {
		for _, o := range []string{"applied", "lost", "dead", "diverged"} {
			effects += e.metric(fmt.Sprintf(`sonic_applied_effects_total{origin=%q,outcome=%q}`, of.name, o))
		}
		duplicates += e.metric(fmt.Sprintf(`sonic_duplicate_messages_total{origin=%q}`, of.name))
	}
	return effects, duplicates
}

// end is the last effect of a zone.
func (w *randomRun) end(s *site) wire.ID {
	w.t.Helper()
	info, err := s.redis.Client(w.t).XInfoStream(context.Background(), script.KeysOf(0).Outbox).Result()
	require.NoError(w.t, err)
	id, err := wire.ParseID(info.LastGeneratedID)
	require.NoError(w.t, err)
	return id
}

// passed waits until a zone's Sonic has counted all that another zone has done.
func (w *randomRun) passed(at, of *site) {
	w.t.Helper()
	if at == of {
		return
	}
	end := w.end(of)
	systems.Await(w.t, await.Patience, fmt.Sprintf("a Sonic of zone %s has applied all of zone %s", at.name, of.name), func() bool {
		return slices.ContainsFunc(at.sonics, func(e *service) bool {
			return slices.ContainsFunc(e.zones().Origins, func(o sonic.OriginStatus) bool {
				id, err := wire.ParseID(o.Cursor)
				return err == nil && o.Zone == of.name && id.Compare(end) >= 0
			})
		})
	})
}

// appliedOnce has all zones write while nothing fails, and counts: each effect is applied once in
// each other zone, and nowhere else.
func (w *randomRun) appliedOnce() {
	w.t.Helper()
	type way struct{ at, of *site }
	before := map[way]float64{}
	dropped := map[way]float64{}
	from := map[*site]wire.ID{}
	w.awaitAll()
	for _, at := range w.sites {
		from[at] = w.end(at)
		for _, of := range w.sites {
			w.passed(at, of)
			before[way{at, of}], dropped[way{at, of}] = w.outcomes(at, of)
		}
	}
	began := time.Now()
	w.write()
	w.run(w.span(2 * time.Second))
	w.stopWriters()
	w.awaitAll()
	for _, of := range w.sites {
		effects, answers := 0, 0 // a state that a zone asked for is for that zone only, and only while it waits
		w.read(of, of, began.Add(-time.Minute), func(_ *wire.Header, all []stored) {
			var answer wire.ID
			for _, e := range all {
				switch {
				case e.id.Compare(from[of]) <= 0:
				case e.effect[0] == "O":
					answer = e.id
				case e.about() && e.id == answer:
					answers++
				case e.about():
					effects++
				}
			}
		})
		for _, at := range w.sites {
			w.passed(at, of)
			n, duplicates := w.outcomes(at, of)
			n, duplicates = n-before[way{at, of}], duplicates-dropped[way{at, of}]
			w.event("zone %s: %v effects of zone %s, which stored %d and %d as answers; %v messages were dropped", at.name, n, of.name, effects, answers, duplicates)
			if at == of {
				assert.Zero(w.t, n, "zone %s has applied its own effects", at.name)
				continue
			}
			assert.GreaterOrEqual(w.t, int(n), effects, "effects of zone %s that zone %s has applied", of.name, at.name)
			assert.LessOrEqual(w.t, int(n), effects+answers, "effects of zone %s that zone %s has applied", of.name, at.name)
			assert.Zero(w.t, duplicates, "messages of zone %s that zone %s has dropped", of.name, at.name)
		}
	}
	w.compare()
}

// quiet makes sure that zones that nobody writes to store nothing but that they are there: effects
// do not go round in circles.
func (w *randomRun) quiet() {
	w.t.Helper()
	from, began := map[*site]wire.ID{}, time.Now()
	for _, s := range w.sites {
		from[s] = w.end(s)
	}
	for _, s := range w.sites {
		beats := 0
		systems.Await(w.t, await.Patience, "two more beats of zone "+s.name, func() bool {
			beats = 0
			var others []stored
			w.read(s, s, began.Add(-time.Minute), func(_ *wire.Header, all []stored) {
				for _, e := range all {
					if e.id.Compare(from[s]) <= 0 {
						continue
					}
					if e.effect[0] == "_" {
						beats++
					} else {
						others = append(others, e)
					}
				}
			})
			assert.Empty(w.t, others, "zone %s goes on", s.name)
			return beats >= 2
		})
	}
}

// duplicates adds up the messages that were dropped, as far as the processes that run have seen
// them.
func (w *randomRun) duplicates() (sum float64) {
	w.t.Helper()
	for _, at := range w.sites {
		for _, of := range w.sites {
			_, n := w.outcomes(at, of)
			sum += n
		}
	}
	return sum
}
