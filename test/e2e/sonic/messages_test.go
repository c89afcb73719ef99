package sonic

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/systems"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// other is the test in the place of another zone.
type other struct {
	t         testing.TB
	name      string
	publisher *messaging.Publisher
	prev      wire.ID
}

// withOther runs the zone "a", which another one writes to: the test. Both are on one cluster.
func withOther(t testing.TB) (zone, *other) {
	t.Helper()
	a, others := withOthers(t, "b")
	return a, others[0]
}

// withOthers is withOther for several other zones.
func withOthers(t testing.TB, names ...string) (zone, []*other) {
	t.Helper()
	pulsar := stack.Pulsar(t)
	topic := "persistent://" + pulsar.Namespace(t) + "/sonic"
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	client, err := messaging.Dial(ctx, messaging.Config{URL: pulsar.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	var others []*other
	for _, name := range names {
		publisher, err := client.Publisher(ctx, topic+"-"+name+"-0", messaging.Business())
		require.NoError(t, err)
		others = append(others, &other{t: t, name: name, publisher: publisher})
	}
	r := durable(t)
	z := zone{run(t, "SONIC_ZONE=a", "SONIC_ZONES=[a, "+strings.Join(names, ", ")+"]", "SONIC_TOPIC="+topic, "SONIC_PULSAR_URL="+pulsar.URL(), "SONIC_REDIS_URL="+r.URL()), r}
	z.awaitWritable()
	return z, others
}

// header is that of a message with one effect.
func (o *other) header() *wire.Header {
	h := &wire.Header{Origin: o.name, Prev: o.prev, First: wire.ID{Ms: o.prev.Ms + 1}, Last: wire.ID{Ms: o.prev.Ms + 1}, Part: 1, Parts: 1}
	o.prev = h.Last
	return h
}

func (o *other) send(h *wire.Header, payload []byte, change ...func(map[string]string)) {
	o.t.Helper()
	properties := h.Properties()
	for _, c := range change {
		c(properties)
	}
	require.NoError(o.t, o.publisher.Publish(o.t.Context(), &messaging.Record{Payload: payload, Properties: properties}))
}

// set is a payload: key is value since the effect h.
func set(h *wire.Header, key, value string) []byte {
	text := func(s string) []byte { return append([]byte{0xa0 | byte(len(s))}, s...) }
	effect := []byte{0x96} // an array of six
	for _, s := range []string{"S", "l", "0", key, value, ""} {
		effect = append(effect, text(s)...)
	}
	payload := append([]byte{0x92}, text(h.Last.String())...)
	return append(append(payload, 0xda, 0, byte(len(effect))), effect...)
}

func TestMessagesOfAnotherZone(t *testing.T) {
	t.Parallel()
	a, b := withOther(t)
	c := a.redis.Client(t)
	ctx := t.Context()
	h := b.header()
	b.send(h, set(h, "k", "1"))
	systems.Await(t, await.Patience, "it is applied", func() bool { return c.Get(ctx, "k").Val() == "1" })

	// The same again changes nothing, and counts.
	require.NoError(t, c.Set(ctx, "k", "mine", 0).Err())
	b.send(h, set(h, "k", "1"))
	systems.Await(t, await.Patience, "it is dropped", func() bool { return a.metric(`sonic_duplicate_messages_total{origin="b"}`) == 1 })
	assert.Equal(t, "mine", c.Get(ctx, "k").Val())
	require.NoError(t, c.Del(ctx, "k").Err())

	// What does not follow waits, and is said.
	b.header() // is never sent
	after := b.header()
	b.send(after, set(after, "k2", "2"))
	systems.Await(t, await.Patience, "the gap is shown", func() bool { z := a.zones().Origins[0]; return z.Gap && z.Unhealthy != "" })
	assert.Empty(t, c.Get(ctx, "k2").Val())
	systems.Await(t, await.Patience, "it is tried again", func() bool { return strings.Count(a.Log(), "unhealthy, will keep trying") > 0 })
	reads := `aviary_messaging_reader_messages_total{reader="sonic"}` // each try reads the topic again
	tried := a.metric(reads)
	systems.Await(t, await.Patience, "it is tried several times", func() bool { return a.metric(reads) >= tried+3 })
	assert.InDelta(t, 1, a.metric(`sonic_gaps_total{origin="b"}`), 0, "a gap counts once, however often it is tried")
	assert.Equal(t, 1, strings.Count(a.Log(), "effects are missing: reading them again from the topic"))
	assert.Positive(t, a.metric(`sonic_gap{origin="b"}`))
	assert.NoError(t, a.client().Set(ctx, "own", "1", 0).Err(), "the zone itself goes on")

	// An operator goes on without what is missing.
	require.NoError(t, c.Do(ctx, "FCALL", "sonic_cursors", 1, "{sonic:0}out", "b", after.Prev.String(), "", "0").Err())
	systems.Await(t, await.Patience, "what follows is applied", func() bool { return c.Get(ctx, "k2").Val() == "2" })
	systems.Await(t, await.Patience, "the gap is over", func() bool { z := a.zones().Origins[0]; return !z.Gap && z.Unhealthy == "" })
}

// The other zone was given other policies. It says so with each message, and is equal again later.
func TestTheConfigurationOfAnotherZoneDiffers(t *testing.T) {
	t.Parallel()
	a, b := withOther(t)
	send := func(change func(*wire.Header)) {
		h := b.header()
		change(h)
		b.send(h, set(h, "k", "1"))
		systems.Await(t, await.Patience, "it is applied", func() bool { return a.zones().Origins[0].Cursor == h.Last.String() })
	}
	equal := wire.Config(map[string][]string{"zones": {"a", "b"}, "conflicts": {"lww "}})
	send(func(h *wire.Header) { h.Config = equal })
	assert.Zero(t, a.metric(`sonic_configuration_differs{origin="b"}`), "both are what the binary tells of itself")
	other := wire.Config(map[string][]string{"zones": {"a", "b"}, "conflicts": {"none "}})
	for range 3 {
		send(func(h *wire.Header) { h.Config = other })
	}
	send(func(*wire.Header) {}) // an older version says nothing
	assert.InDelta(t, 1, a.metric(`sonic_configuration_differs{origin="b"}`), 0)
	assert.Equal(t, []string{"conflicts"}, a.zones().Origins[0].Differs)
	assert.Equal(t, 1, strings.Count(a.Log(), "the configuration of the other zone differs"))
	send(func(h *wire.Header) { h.Config = equal })
	assert.Zero(t, a.metric(`sonic_configuration_differs{origin="b"}`))

	// The Redis of that zone has fewer databases than that of this one, which has 16.
	databases := func(n string) string {
		return wire.Config(map[string][]string{"zones": {"a", "b"}, "conflicts": {"lww "}, "databases": {n}})
	}
	send(func(h *wire.Header) { h.Config = databases("4") })
	assert.InDelta(t, 1, a.metric(`sonic_configuration_differs{origin="b"}`), 0)
	assert.Equal(t, []string{"databases"}, a.zones().Origins[0].Differs)
	send(func(h *wire.Header) { h.Config = databases("16") })
	assert.Zero(t, a.metric(`sonic_configuration_differs{origin="b"}`))
}

// The topic has lost its end, and the other zone counts its effects from the beginning.
func TestTheCountOfEffectsBeginsAnew(t *testing.T) {
	t.Parallel()
	a, b := withOther(t)
	for _, count := range []int64{1000, 1} {
		h := b.header()
		h.Count = count
		b.send(h, set(h, "k", "1"))
		systems.Await(t, await.Patience, "it is applied", func() bool { return a.zones().Origins[0].Cursor == h.Last.String() })
	}
	z := a.zones().Origins[0]
	assert.Zero(t, z.LagCommands)
	assert.Positive(t, z.LagP99Seconds)
	assert.GreaterOrEqual(t, z.LagP99Seconds, z.LagP50Seconds)
}

// The clock of the other zone's Redis is an hour ahead, and that of its Sonic is right.
func TestTheClockOfAnotherZoneIsAhead(t *testing.T) {
	t.Parallel()
	a, b := withOther(t)
	h := b.header()
	h.First.Ms = uint64(time.Now().Add(time.Hour).UnixMilli())
	h.Last = h.First
	payload := append([]byte{0x92, 0xaf}, h.Last.String()...)
	b.send(h, append(payload, 0xa0))
	systems.Await(t, await.Patience, "it is shown", func() bool {
		return a.metric(`sonic_clock_ahead_seconds{origin="b"}`) > 3000 && strings.Contains(a.Log(), "is ahead of this zone's by more than 500ms")
	})
}

// A Redis comes back older than it was, and the other zone says nothing any more: what it had
// applied comes from the topic, and it takes writes again.
func TestARedisThatComesBackOlderWhileTheOtherZoneIsUnavailable(t *testing.T) {
	t.Parallel()
	a, b := withOther(t)
	ctx := t.Context()
	applied := func(key string) func() bool {
		return func() bool {
			c := a.redis.Client(t)
			defer c.Close()
			return c.Get(ctx, key).Val() == "1"
		}
	}
	first, second := b.header(), b.header()
	b.send(first, set(first, "first", "1"))
	systems.Await(t, await.Patience, "it is applied", applied("first"))
	older := copyOf(t, a.redis)
	b.send(second, set(second, "second", "1"))
	systems.Await(t, await.Patience, "it is applied", applied("second"))
	shipped := a.zones().Outbox.Shipped
	systems.Await(t, await.Patience, "the zone has told how far it is", func() bool { return a.zones().Outbox.Shipped != shipped })
	shipped = a.zones().Outbox.Shipped
	systems.Await(t, await.Patience, "and stored it", func() bool { return a.zones().Outbox.Shipped != shipped })
	require.NoError(t, a.redis.Kill())
	older()
	require.NoError(t, a.redis.Start(ctx))
	systems.Await(t, await.Patience, "what was lost is applied again", applied("second"))
	a.awaitWritable()
}

// A message that this zone cannot apply stops what comes behind it of its zone, and nothing else. It
// is applied, or known to be passed, once an operator has moved the cursor.
func TestMessagesThatCannotBeApplied(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		payload []byte
		change  func(map[string]string)
		want    string
	}{
		"of a newer version": {
			[]byte{0x90}, func(p map[string]string) { p["sonic_format"] = strconv.Itoa(wire.Format + 1) }, "run the newer version in this zone, too",
		},
		"with an effect of a newer version": {
			append([]byte{0x92, 0xa3}, "2-0\xa6\x94\xa1?\xa1l\xa10\xa1k"...), func(map[string]string) {}, "which this Redis' library does not know",
		},
		"with a header that cannot be read":  {[]byte{0x90}, func(p map[string]string) { p["sonic_epoch"] = "x" }, "sonic_epoch is"},
		"with a payload that cannot be read": {[]byte("garbage"), func(map[string]string) {}, "SONICPAYLOAD"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, others := withOthers(t, "b", "c")
			b, fromC := others[0], others[1]
			ctx := t.Context()
			applied := func(o *other, key string) *wire.Header {
				t.Helper()
				h := o.header()
				o.send(h, set(h, key, "1"))
				systems.Await(t, await.Patience, key+" is applied", func() bool { return a.redis.Client(t).Get(ctx, key).Val() == "1" })
				return h
			}
			applied(b, "before")
			bad := b.header()
			b.send(bad, c.payload, c.change)
			behind := b.header()
			b.send(behind, set(behind, "behind", "1"))
			alarmed := func() {
				t.Helper()
				systems.Await(t, await.Patience, "the alarm", func() bool {
					z := a.zones().Origins[0]
					return strings.Contains(z.Unhealthy, c.want) && a.metric(`sonic_applier_up{origin="b"}`) == 0
				})
			}
			alarmed()
			unhealthy := a.zones().Origins[0].Unhealthy
			for _, part := range []string{"sonic-b-0", "zone b up to " + bad.Last.String(), "A message that cannot be applied"} {
				assert.Contains(t, unhealthy, part)
				assert.Contains(t, a.Log(), part)
			}
			applied(fromC, "of c")
			assert.NoError(t, a.client().Set(ctx, "own", "1", 0).Err())
			assert.Empty(t, a.redis.Client(t).Get(ctx, "behind").Val())
			assert.InDelta(t, 1, a.metric(`sonic_applier_up{origin="c"}`), 0)

			a.Stop() // in order
			a.Start()
			a.awaitWritable()
			alarmed()
			require.NoError(t, a.redis.Client(t).Do(ctx, "FCALL", "sonic_cursors", 1, "{sonic:0}out", "b", bad.Last.String(), "", "0").Err())
			systems.Await(t, await.Patience, "it goes on behind it", func() bool { return a.redis.Client(t).Get(ctx, "behind").Val() == "1" })
			systems.Await(t, await.Patience, "the alarm is over", func() bool {
				return a.zones().Origins[0].Unhealthy == "" && a.metric(`sonic_applier_up{origin="b"}`) == 1
			})
			applied(b, "after")
			for _, key := range []string{"before", "behind", "after", "of c", "own"} {
				assert.Equal(t, "1", a.redis.Client(t).Get(ctx, key).Val(), key)
			}
		})
	}
}

// Messages in the topic of a zone that its Sonic has not written are skipped, counted and logged.
func TestForeignMessagesAreSkipped(t *testing.T) {
	t.Parallel()
	a, b := withOther(t)
	ctx := t.Context()
	foreign := 0.
	for i, change := range []func(map[string]string){
		func(p map[string]string) { clear(p) },
		func(p map[string]string) { delete(p, "sonic_format") },
		func(p map[string]string) { p["sonic_origin"] = "c" },
	} {
		b.send(&wire.Header{Origin: "b", First: wire.ID{Ms: 1}, Last: wire.ID{Ms: 1}, Part: 1, Parts: 1}, []byte("who knows"), change)
		foreign++
		h := b.header()
		b.send(h, set(h, "k", strconv.Itoa(i)))
		systems.Await(t, await.Patience, "what is behind it is applied", func() bool { return a.redis.Client(t).Get(ctx, "k").Val() == strconv.Itoa(i) })
		assert.InDelta(t, foreign, a.metric(`sonic_foreign_messages_total{origin="b"}`), 0)
		assert.Empty(t, a.zones().Origins[0].Unhealthy)
	}
	assert.Contains(t, a.Log(), "skipped a foreign message")
}

// Somebody writes to a zone's own topic. The zone goes on behind that, also with another owner and
// with a Redis that comes back older.
func TestForeignMessagesInTheOwnTopic(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	ctx := t.Context()
	var topic, url string
	for _, v := range a.Env() {
		if text, found := strings.CutPrefix(v, "SONIC_TOPIC="); found {
			topic = text
		}
		if text, found := strings.CutPrefix(v, "SONIC_PULSAR_URL="); found {
			url = text
		}
	}
	client, err := messaging.Dial(ctx, messaging.Config{URL: url})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	publisher, err := client.Publisher(ctx, topic+"-a-0", messaging.Business())
	require.NoError(t, err)
	stray := func() {
		t.Helper()
		require.NoError(t, publisher.Publish(ctx, &messaging.Record{Payload: []byte("who knows")}))
	}
	crosses := func(key string) {
		t.Helper()
		require.NoError(t, a.client().Set(ctx, key, "1", 0).Err())
		systems.Await(t, await.Patience, key+" crosses", func() bool { return b.client().Get(ctx, key).Val() == "1" })
	}
	crosses("before")
	older := copyOf(t, a.redis)
	stray()
	crosses("behind one")

	a.Stop()
	stray() // is the last message, for a's Redis sends no beat
	a.Start()
	a.awaitWritable()
	crosses("after a restart")
	assert.Contains(t, a.Log(), "skipped a foreign message")

	a.Stop()
	require.NoError(t, a.redis.Kill())
	older()
	stray()
	require.NoError(t, a.redis.Start(ctx))
	a.Start()
	a.awaitWritable()
	crosses("after an older Redis")
	same(t, []string{"before", "behind one", "after a restart", "after an older Redis"}, a, b)
	assert.InDelta(t, 3, b.metric(`sonic_foreign_messages_total{origin="a"}`), 0)
	assert.Equal(t, "1", a.client().Get(ctx, "after a restart").Val())
}
