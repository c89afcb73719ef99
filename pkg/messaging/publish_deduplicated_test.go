package messaging_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
	"github.com/aviaryhq/aviary/test/proxy"
)

// publishUntilStored publishes each record until it is acknowledged, as callers do, and returns how
// often the broker took one for a duplicate.
func publishUntilStored(ctx context.Context, t *testing.T, p *messaging.Publisher, rs ...*messaging.Record) (duplicates int) {
	t.Helper()
	for _, r := range rs {
		for {
			err := p.Publish(ctx, r)
			if err == nil {
				break
			}
			require.ErrorIs(t, err, messaging.ErrDeduplicated)
			duplicates++
		}
	}
	return duplicates
}

func records(from, to int) (rs []*messaging.Record) {
	for i := from; i < to; i++ {
		rs = append(rs, record(i))
	}
	return rs
}

// Two processes use one producer name on a topic with deduplication. While the first is cut off,
// the second takes the name and publishes more. What is acknowledged to either is in the topic.
func TestNothingAcknowledgedIsDroppedAsADuplicate(t *testing.T) {
	t.Parallel()
	url, srv, line := faultyPulsar(t) // other tests may have it for long
	ctx := testContext(t)
	far, err := messaging.Dial(ctx, messaging.Config{URL: url, ListenerName: proxy.Listener})
	require.NoError(t, err)
	defer func() { require.NoError(t, far.Close(ctx)) }()
	ns := srv.Namespace(t)
	require.NoError(t, srv.Admin(ctx, "POST", "/admin/v2/namespaces/"+ns+"/deduplication", true, nil))
	topic := srv.Topic(t, ns, 0)
	named := func(p *messaging.Profile) { p.ProducerName = "app" }

	first := open(t, far, topic, named)
	require.Zero(t, publishUntilStored(ctx, t, first, records(0, 10)...))
	line.Cut()
	near := dial(t, srv.URL())
	second := open(t, near, topic, named)
	require.Zero(t, publishUntilStored(ctx, t, second, records(10, 60)...))
	require.NoError(t, second.Close(ctx))
	require.NoError(t, line.Restore())
	require.LessOrEqual(t, publishUntilStored(ctx, t, first, records(60, 80)...), 1, "the next producer counts from what the broker has")
	require.NoError(t, first.Close(ctx))

	require.NoError(t, srv.Kill())
	require.NoError(t, srv.Start(ctx))
	third := open(t, near, topic, named)
	require.Zero(t, publishUntilStored(ctx, t, third, records(80, 100)...))
	var want []string
	for i := range 100 {
		want = append(want, strconv.Itoa(i))
	}
	require.Equal(t, want, readTopic(t, srv.URL(), topic))
}

// A broker also drops what the client sends a second time because the first receipt was lost. With
// a name that others may use nobody can tell that from a loss.
func TestDeduplicatedOutcome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		name    string
		id      *int64
		outcome error
	}{
		"a name of its own":     {"app", nil, messaging.ErrDeduplicated},
		"the broker's name":     {"", nil, nil},
		"the caller's sequence": {"app", new(int64), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t) // not before: it would end while other tests run
			s := fakebroker.Start(t, fakebroker.WithDeduplication())
			p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) { p.ProducerName = c.name })
			drop := s.DropReceipts(topic, 1)
			type outcome struct {
				id  messaging.MessageID
				err error
			}
			got := make(chan outcome, 1)
			p.PublishAsync(ctx, &messaging.Record{Payload: []byte("a"), SequenceID: c.id}, func(id messaging.MessageID, err error) {
				got <- outcome{id, err}
			})
			require.NoError(t, drop.Wait(ctx, 1))
			s.CutConnections()
			o := <-got
			require.ErrorIs(t, o.err, c.outcome)
			require.True(t, o.id.Deduplicated())
			publishUntilStored(ctx, t, p, &messaging.Record{Payload: []byte("b")})
			require.Equal(t, 2, s.Count(topic))
		})
	}
}
