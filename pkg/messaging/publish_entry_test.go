package messaging_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	inside "github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/test/fakebroker"
	"github.com/aviaryhq/aviary/test/stack"
)

// entries is a profile for StoreEntry.
func entries(p *messaging.Profile) {
	p.GroupCommit, p.Linger = true, time.Hour
	p.ProducerName, p.Ownership = "one", messaging.ExclusiveOwnership
}

func numbers(from, to int64) []*messaging.Record {
	var rs []*messaging.Record
	for i := from; i <= to; i++ {
		rs = append(rs, &messaging.Record{Payload: []byte(strconv.FormatInt(i, 10)), SequenceID: &i})
	}
	rs[0].SequenceID = &to
	return rs
}

func TestStoreEntryIsOneEntry(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	ns := srv.Namespace(t)
	require.NoError(t, srv.Admin(testContext(t), "POST", "/admin/v2/namespaces/"+ns+"/deduplication", true, nil))
	topic := srv.Topic(t, ns, 0)
	p := open(t, dial(t, srv.URL()), topic, entries)
	var last messaging.MessageID
	for i := range int64(5) {
		id, err := inside.StoreEntry(testContext(t), p, nil, numbers(100*i, 100*i+99)...)
		require.NoError(t, err)
		require.Positive(t, id.Compare(last))
		require.False(t, id.Deduplicated())
		last = id
	}
	require.NoError(t, p.Close(context.Background()))

	// Whoever has the name next begins where he likes: the broker knows the ids.
	p = open(t, dial(t, srv.URL()), topic, entries)
	id, err := inside.StoreEntry(testContext(t), p, nil, numbers(450, 499)...)
	require.NoError(t, err)
	require.True(t, id.Deduplicated())
	id, err = inside.StoreEntry(testContext(t), p, nil, numbers(500, 500)...)
	require.NoError(t, err)
	require.False(t, id.Deduplicated())
	all := readTopic(t, srv.URL(), topic)
	require.Len(t, all, 501)
	for i, payload := range all {
		require.Equal(t, strconv.Itoa(i), payload)
	}
}

func TestStoreEntryKnowsWhenItIsNotOne(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithMaxMessageSize(1000))
	client := dial(t, s.URL())
	sized := func(sizes ...int) (rs []*messaging.Record) {
		for _, size := range sizes {
			rs = append(rs, &messaging.Record{Payload: make([]byte, size)})
		}
		return rs
	}
	for name, rs := range map[string][]*messaging.Record{
		"one of two is too large": sized(1, 5000),
		"two entries":             sized(600, 600),
	} {
		p := open(t, client, topic, entries)
		_, err := inside.StoreEntry(testContext(t), p, nil, rs...)
		require.ErrorIs(t, err, messaging.ErrInDoubt, name)
		_, err = inside.StoreEntry(testContext(t), p, nil, record(0))
		require.ErrorIs(t, err, messaging.ErrProducerLost, name)
		require.NoError(t, p.Close(testContext(t)))
	}
	p := open(t, client, topic, entries)
	for _, rs := range [][]*messaging.Record{sized(5000), sized(5000, 1), sized(5000, 5000)} {
		_, err := inside.StoreEntry(testContext(t), p, nil, rs...)
		require.ErrorIs(t, err, messaging.ErrTooLarge)
		require.NotErrorIs(t, err, messaging.ErrInDoubt, "nothing was sent")
	}
	_, err := inside.StoreEntry(testContext(t), p, nil)
	require.NoError(t, err)
	_, err = inside.StoreEntry(testContext(t), p, nil, record(1), record(2))
	require.NoError(t, err)

	s.DropReceipts(topic, 1)
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = inside.StoreEntry(short, p, nil, record(3))
	require.ErrorIs(t, err, messaging.ErrInDoubt)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, p.Close(canceledContext()), messaging.ErrUnacknowledged)
}
