package pigeonhole

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/pigeonhole"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// everyPair runs a test for each source and sink, on servers that others use, too.
func everyPair(t *testing.T, test func(t *testing.T, from, to system)) {
	t.Helper()
	t.Parallel()
	systems := []struct {
		name string
		system
	}{
		{"kafka", newKafka(stack.Kafka(t))}, {"rabbitmq", newRabbit(stack.RabbitMQ(t))}, {"pulsar", newPulsar(stack.Pulsar(t))},
	}
	for _, from := range systems {
		for _, to := range systems {
			t.Run(from.name+"_"+to.name, func(t *testing.T) {
				t.Parallel()
				test(t, from.system, to.system)
			})
		}
	}
}

// keyed gives messages of RabbitMQ, which have no key, the one in their text: without
// it they would be spread over the partitions of the destination.
func keyed(from system) string {
	if _, ok := from.(*rabbitSystem); ok {
		return "set: {key: \"text.split(':')[0]\"}"
	}
	return ""
}

// hop is what a message carries that was taken from place.
func hop(s system, place string) string {
	at, _ := message.ParseOrigin(s.origin(place) + ";")
	return message.PlaceName(at.System, at.Cluster, at.Topic)
}

// TestEveryPairMovesInOrder: headers too, and what was moved is not moved again after a
// restart.
func TestEveryPairMovesInOrder(t *testing.T) {
	everyPair(t, func(t *testing.T, from, to system) {
		t.Helper()
		source, target := from.place(t), to.place(t)
		from.put(t, source, 0, 500)
		s := run(t, one("pair", from.source(source), to.sink(), target, keyed(from)))
		got := arriving(t, to, target)
		got.all(500)
		assert.Equal(t, "grün", got.headers["colour"])
		assert.Contains(t, got.headers[message.EntryOrigin], from.origin(source))
		assert.Equal(t, hop(from, source), got.headers[message.EntryHops])
		s.await("pair", func(st pigeonhole.Status) bool { return st.InFlight == 0 })
		s.Stop()
		s.Start()
		from.put(t, source, 500, 520)
		got.all(520)
		assert.Zero(t, got.copies(), "an orderly stop commits all that is stored")
	})
}

// TestEveryPairSurvivesKills: nothing is lost by a process that ends at any moment.
func TestEveryPairSurvivesKills(t *testing.T) {
	everyPair(t, func(t *testing.T, from, to system) {
		t.Helper()
		const n = 3000
		source, target := from.place(t), to.place(t)
		s := run(t, one("pair", from.source(source), to.sink(), target, keyed(from)))
		got := arriving(t, to, target)
		put := make(chan struct{})
		go func() { defer close(put); from.put(t, source, 0, n) }()
		for step := range 3 {
			want := (step + 1) * n / 5
			require.Eventually(t, func() bool { return got.distinct() >= want }, await.Patience, time.Millisecond, "%d", want)
			s.Kill()
			s.Start()
		}
		<-put
		got.all(n)
		t.Logf("%d copies", got.copies())
	})
}

// TestEveryPairKeepsPoisonApart: what cannot be sent is a dead letter with its reason,
// and the rest goes on in order.
func TestEveryPairKeepsPoisonApart(t *testing.T) {
	everyPair(t, func(t *testing.T, from, to system) {
		t.Helper()
		source, target, dead := from.place(t), to.place(t), to.place(t)
		s := run(t, one("pair", from.source(source), to.sink(), target, "set: {key: \"text.split(':')[0]\", header.checked: \"string(100 / (int(text.split(':')[1]) - 3))\"}",
			fmt.Sprintf("dead_letter: {to: %q}", dead)))
		from.put(t, source, 0, 100)
		letters := arriving(t, to, dead)
		letters.some(keys)
		assert.Equal(t, 1, letters.counts["k2:3"])
		assert.Equal(t, "expression", letters.headers["dead-letter-reason"])
		assert.Equal(t, "pair", letters.headers["dead-letter-route"])
		assert.Contains(t, letters.headers["dead-letter-error"], "division by zero")
		got := arriving(t, to, target)
		got.some(100 - keys)
		st := s.await("pair", func(st pigeonhole.Status) bool { return st.InFlight == 0 })
		assert.EqualValues(t, keys, st.Refused)
	})
}

// TestProvenanceOfHops: a message carries no more of its way than stops loops, and a
// dead letter still says where it came from.
func TestProvenanceOfHops(t *testing.T) {
	everyPair(t, func(t *testing.T, from, to system) {
		t.Helper()
		source, target, dead := from.place(t), to.place(t), to.place(t)
		run(t, one("brief", from.source(source), to.sink(), target, "provenance: hops", "set: {header.checked: \"string(1 / (int(text.split(':')[1]) - 3))\"}",
			fmt.Sprintf("dead_letter: {to: %q}", dead)))
		from.put(t, source, 0, 10*keys)
		letters, got := arriving(t, to, dead), arriving(t, to, target)
		require.Eventually(t, func() bool { return letters.distinct() == keys && got.distinct() == 9*keys }, await.Patience, pollEvery)
		assert.Contains(t, letters.headers[message.EntryOrigin], from.origin(source))
		assert.NotContains(t, got.headers, message.EntryOrigin)
		assert.Equal(t, hop(from, source), got.headers[message.EntryHops])
	})
}

// TestEveryPairIsBounded: a paused route holds no more than it may, and takes nothing
// more from its source.
func TestEveryPairIsBounded(t *testing.T) {
	everyPair(t, func(t *testing.T, from, to system) {
		t.Helper()
		const n = 2000
		source, target := from.place(t), to.place(t)
		s := run(t, one("pair", from.source(source), to.sink(), target, "in_flight: {messages: 50}", keyed(from)))
		s.await("pair", func(st pigeonhole.Status) bool { return st.State == "running" })
		status, _ := s.Ask(http.MethodPost, "/routes/pair/pause")
		require.Equal(t, http.StatusOK, status)
		from.put(t, source, 0, n)
		st := s.route("pair")
		assert.Equal(t, "paused", st.State)
		assert.Zero(t, st.Stored)
		status, _ = s.Ask(http.MethodPost, "/routes/pair/resume")
		require.Equal(t, http.StatusOK, status)
		got := arriving(t, to, target)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for ; ctx.Err() == nil; time.Sleep(time.Millisecond) { // sampling
				if now := s.route("pair"); now.InFlight > 50+3 { // a pipeline that holds nothing may take one
					t.Errorf("%d in flight", now.InFlight)
					return
				}
			}
		}()
		got.all(n)
		cancel()
	})
}
