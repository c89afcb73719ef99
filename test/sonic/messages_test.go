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

	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// other is the test in the place of another zone.
type other struct {
	t         testing.TB
	publisher *messaging.Publisher
	prev      message.ID
}

// withOther runs the zone "a", which another one writes to: the test. Both are on one cluster.
func withOther(t testing.TB) (zone, *other) {
	t.Helper()
	pulsar := stack.Pulsar(t)
	topic := "persistent://" + pulsar.Namespace(t) + "/sonic"
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	client, err := messaging.Dial(ctx, messaging.Config{URL: pulsar.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	publisher, err := client.Publisher(ctx, topic+"-b-0", messaging.Durable())
	require.NoError(t, err)
	r := durable(t)
	z := zone{run(t, "SONIC_ZONE=a", "SONIC_ZONES=[a, b]", "SONIC_TOPIC="+topic, "SONIC_PULSAR_URL="+pulsar.URL(), "SONIC_REDIS_URL="+r.URL()), r}
	z.awaitWritable()
	return z, &other{t: t, publisher: publisher}
}

// header is that of a message with one effect.
func (o *other) header() *message.Header {
	h := &message.Header{Origin: "b", Prev: o.prev, First: message.ID{Ms: o.prev.Ms + 1}, Last: message.ID{Ms: o.prev.Ms + 1}, Part: 1, Parts: 1}
	o.prev = h.Last
	return h
}

func (o *other) send(h *message.Header, payload []byte, change ...func(map[string]string)) {
	o.t.Helper()
	properties := h.Properties()
	for _, c := range change {
		c(properties)
	}
	require.NoError(o.t, o.publisher.Publish(o.t.Context(), &messaging.Record{Payload: payload, Properties: properties}))
}

// set is a payload: key is value since the effect h.
func set(h *message.Header, key, value string) []byte {
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
	time.Sleep(200 * time.Millisecond) // several tries
	assert.InDelta(t, 1, a.metric(`sonic_gaps_total{origin="b"}`), 0, "a gap counts once, however often it is tried")
	assert.Equal(t, 1, strings.Count(a.Log(), "effects are missing, reading them again"))
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
	send := func(change func(*message.Header)) {
		h := b.header()
		change(h)
		b.send(h, set(h, "k", "1"))
		systems.Await(t, await.Patience, "it is applied", func() bool { return a.zones().Origins[0].Cursor == h.Last.String() })
	}
	equal := message.Config(map[string][]string{"zones": {"a", "b"}, "conflicts": {"lww "}})
	send(func(h *message.Header) { h.Config = equal })
	assert.Zero(t, a.metric(`sonic_configuration_differs{origin="b"}`), "both are what the binary tells of itself")
	other := message.Config(map[string][]string{"zones": {"a", "b"}, "conflicts": {"none "}})
	for range 3 {
		send(func(h *message.Header) { h.Config = other })
	}
	send(func(*message.Header) {}) // an older version says nothing
	assert.InDelta(t, 1, a.metric(`sonic_configuration_differs{origin="b"}`), 0)
	assert.Equal(t, []string{"conflicts"}, a.zones().Origins[0].Differs)
	assert.Equal(t, 1, strings.Count(a.Log(), "the configuration of the other zone differs"))
	send(func(h *message.Header) { h.Config = equal })
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

func TestMessagesThatStopTheProcess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send func(*other)
		want string
	}{
		"of a newer version": {func(b *other) {
			b.send(b.header(), []byte{0x90}, func(p map[string]string) { p["sonic_format"] = strconv.Itoa(message.Format + 1) })
		}, "run the newer version in this zone, too"},
		"of nobody knows whom":               {func(b *other) { b.send(b.header(), nil, func(p map[string]string) { clear(p) }) }, "no message of a Sonic"},
		"with a payload that cannot be read": {func(b *other) { b.send(b.header(), []byte("garbage")) }, "SONICPAYLOAD"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := withOther(t)
			c.send(b)
			assert.Error(t, a.Ended(await.Patience))
			assert.Contains(t, a.Log(), c.want)
		})
	}
}
