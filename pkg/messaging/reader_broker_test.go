package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	inside "github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/proxy"
)

// What readers and entry writers do on the real broker.

func TestReaderOfACompactedTopic(t *testing.T) {
	t.Parallel()
	m := newManaged(t, 0)
	client, topic := m.client, m.Name()
	// Together in batches, so that compaction leaves parts of them.
	p := open(t, client, topic, entries)
	put := func(pairs ...string) {
		t.Helper()
		var rs []*messaging.Record
		for _, pair := range pairs {
			key, value, ok := strings.Cut(pair, "=")
			r := &messaging.Record{Key: key}
			if ok {
				r.Payload = []byte(value)
			}
			rs = append(rs, r)
		}
		_, err := inside.StoreEntry(testContext(t), p, nil, rs...)
		require.NoError(t, err)
	}
	compacted := func(c *messaging.ReaderConfig) { c.Topic, c.ReadCompacted = topic, true }
	state := func(r *messaging.Reader) map[string]string {
		t.Helper()
		state := make(map[string]string)
		for _, d := range toEnd(t, r) {
			require.NotEmpty(t, d.Key, "what compaction leaves of a removed message")
			if state[d.Key] = string(d.Payload); d.Payload == nil {
				delete(state, d.Key)
			}
		}
		require.True(t, caughtUp(r))
		return state
	}
	put("a=1", "b=1", "c=1")
	put("a=2", "d=1")
	want := map[string]string{"a": "2", "b": "1", "c": "1", "d": "1"}
	following := openReader(t, client, compacted)
	require.Equal(t, want, state(following))
	m.compact(t)
	require.Equal(t, want, state(openReader(t, client, compacted)))

	// The last messages are removed altogether.
	put("c", "d", "e=1", "e")
	want = map[string]string{"a": "2", "b": "1"}
	require.Equal(t, want, state(openReader(t, client, compacted)), "before the compaction")
	m.compact(t)
	require.Equal(t, want, state(openReader(t, client, compacted)), "after it")
	// A reader whose end was removed before it came there.
	require.Len(t, toEnd(t, following), 4)
	put("a", "b")
	late := openReader(t, client, compacted)
	m.compact(t)
	state(late)
	require.Empty(t, state(openReader(t, client, compacted)), "nothing is left")
	put("f=1")
	require.Equal(t, map[string]string{"f": "1"}, state(openReader(t, client, compacted)))
	require.NoError(t, p.Close(testContext(t)))
}

// TestReaderSurvivesBrokerFaults breaks the broker, or the way to it, while a reader reads.
func TestReaderSurvivesBrokerFaults(t *testing.T) {
	t.Parallel()
	url, srv, line := faultyPulsar(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client, err := messaging.Dial(ctx, messaging.Config{URL: url, ListenerName: proxy.Listener})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close(ctx)) }()
	const partitions = 2
	topic := srv.Topic(t, srv.Namespace(t), partitions)
	p, err := client.Publisher(ctx, topic, messaging.Ops())
	require.NoError(t, err)
	began := time.Now()
	const before = 5000
	for i := range before {
		p.PublishAsync(ctx, record(i), func(messaging.MessageID, error) {})
	}
	require.NoError(t, p.Flush(ctx))

	// Publishers repeat what was not acknowledged, so here they rest while something breaks.
	r, err := client.Reader(ctx, messaging.ReaderConfig{Topic: topic, PrefetchBytes: 1 << 20, MaxMessageBytes: 50 << 10})
	require.NoError(t, err)
	seen := make(map[messaging.MessageID]bool)
	next := [7]int{0, 1, 2, 3, 4, 5, 6}
	read := func(r *messaging.Reader) {
		t.Helper()
		d, err := r.Next(ctx)
		require.NoError(t, err)
		require.False(t, seen[d.ID], "%s twice", d.ID)
		seen[d.ID] = true
		i, err := strconv.Atoi(string(d.Payload))
		require.NoError(t, err)
		require.Equal(t, next[i%7], i, "of its key")
		next[i%7] += 7
	}
	for fault, strike := range []func(){
		func() { line.Cut(); require.NoError(t, line.Restore()) },
		func() { srv.Unload(t, topic) },
		func() { line.Cut(); require.NoError(t, line.Restore()) },
		func() {
			require.NoError(t, srv.Kill())
			require.NoError(t, srv.Start(ctx))
		},
		func() { srv.Unload(t, topic) },
	} {
		for range 500 + fault {
			read(r)
		}
		strike()
	}
	for len(seen) < before-100 {
		read(r)
	}
	require.NoError(t, r.Close(ctx))

	// Another one goes on, in the middle of a batch.
	second, err := client.Reader(ctx, messaging.ReaderConfig{Topic: topic, After: r.Positions()})
	require.NoError(t, err)
	for len(seen) < before {
		read(second)
	}
	require.Empty(t, toEnd(t, second))
	require.True(t, caughtUp(second))
	require.NoError(t, second.Close(ctx))

	// From a time, and from the end.
	for at, want := range map[time.Time]int{began.Add(-time.Minute): before, time.Now().Add(time.Hour): 0} {
		from := messaging.AtTime(at)
		timed, err := client.Reader(ctx, messaging.ReaderConfig{Topic: topic, From: &from})
		require.NoError(t, err)
		require.Len(t, toEnd(t, timed), want, "%s", at)
		require.NoError(t, timed.Close(ctx))
	}
	half := messaging.AtTime(time.Now())
	require.NoError(t, p.Publish(ctx, record(before)))
	timed, err := client.Reader(ctx, messaging.ReaderConfig{Topic: topic, From: &half})
	require.NoError(t, err)
	require.Equal(t, []string{strconv.Itoa(before)}, texts(toEnd(t, timed)))
	require.NoError(t, timed.Close(ctx))
	end := messaging.Latest()
	latest, err := client.Reader(ctx, messaging.ReaderConfig{Topic: topic, From: &end})
	require.NoError(t, err)
	require.True(t, caughtUp(latest))
	line.Cut()
	require.NoError(t, line.Restore())
	require.NoError(t, p.Publish(ctx, record(before+1)))
	d, err := latest.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(before+1), string(d.Payload))
	require.NoError(t, latest.Close(ctx))
	require.NoError(t, p.Close(ctx))
}

// TestEntryWriterTakesOver: the writer's connections break in the middle of its entries, a
// successor takes the topic, and the first one comes back.
func TestEntryWriterTakesOver(t *testing.T) {
	t.Parallel()
	url, srv, line := faultyPulsar(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ns := srv.Namespace(t)
	require.NoError(t, srv.Admin(ctx, "POST", "/admin/v2/namespaces/"+ns+"/deduplication", true, nil))
	require.NoError(t, srv.Admin(ctx, "POST", "/admin/v2/namespaces/"+ns+"/retention",
		map[string]int{"retentionTimeInMinutes": 60, "retentionSizeInMB": 1024}, nil))
	topic := srv.Topic(t, ns, 0)
	near := dial(t, srv.URL())
	far, err := messaging.Dial(ctx, messaging.Config{URL: url, ListenerName: proxy.Listener, OperationTimeout: time.Second})
	require.NoError(t, err)
	defer func() { require.NoError(t, far.Close(ctx)) }()

	cfg := messaging.EntryWriterConfig{Name: "source", Position: position}
	stored := int64(-1)
	for round := range 3 {
		first, err := far.EntryWriter(ctx, topic, cfg)
		require.NoError(t, err, "round %d", round)
		require.Equal(t, stored, first.Stored(), "round %d", round)
		var progress atomic.Int64
		ended := make(chan error, 1)
		go func() {
			for next := first.Stored() + 1; ; next = first.Stored() + 1 {
				if err := first.Store(ctx, positioned(next, next+9)...); err != nil {
					ended <- err
					return
				}
				progress.Add(1)
			}
		}()
		require.Eventually(t, func() bool { return progress.Load() > 20 }, await.Patience, 5*time.Millisecond)
		line.Cut()
		second, err := near.EntryWriter(ctx, topic, cfg)
		require.NoError(t, err)
		found := second.Stored()
		require.GreaterOrEqual(t, found, first.Stored())
		require.NoError(t, second.Store(ctx, positioned(first.Stored(), found+100)...))
		require.NoError(t, line.Restore())
		err = <-ended
		require.ErrorIs(t, err, messaging.ErrProducerLost)
		if !errors.Is(err, messaging.ErrInDoubt) { // the connection broke between two entries
			require.Equal(t, first.Stored(), found, "%v", err)
		}
		require.Error(t, first.Context().Err())
		require.NoError(t, second.Store(ctx, positioned(second.Stored()+1, second.Stored()+100)...))
		stored = second.Stored()
		require.NoError(t, first.Close(ctx))
		require.NoError(t, second.Close(ctx))
	}
	r, err := near.Reader(ctx, messaging.ReaderConfig{Topic: topic})
	require.NoError(t, err)
	next := int64(0)
	_, err = r.ReadToEnd(ctx, func(_ context.Context, d *messaging.Delivery) error {
		at, err := position(d)
		if err != nil || at != next {
			return fmt.Errorf("%d in place of %d: %w", at, next, err)
		}
		next++
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, stored+1, next)
	require.NoError(t, r.Close(ctx))
}
