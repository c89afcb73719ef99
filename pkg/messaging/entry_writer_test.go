package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	inside "github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// position is where a record of positioned comes from.
func position(d *messaging.Delivery) (int64, error) {
	at, ok := d.Properties["at"]
	if !ok {
		return -1, nil
	}
	return strconv.ParseInt(at, 10, 64)
}

// positioned are records of the source positions from to to.
func positioned(from, to int64) []*messaging.Record {
	var rs []*messaging.Record
	for i := from; i <= to; i++ {
		at := strconv.FormatInt(i, 10)
		rs = append(rs, &messaging.Record{
			Payload: []byte(at), Properties: map[string]string{"at": at}, SequenceID: &i,
		})
	}
	return rs
}

func openEntryWriter(t *testing.T, client *messaging.Client, topic string) *messaging.EntryWriter {
	t.Helper()
	w, err := client.EntryWriter(testContext(t), topic, messaging.EntryWriterConfig{Name: "source", Position: position})
	require.NoError(t, err)
	return w
}

func TestEntryWriterGoesOnBehindWhatIsStored(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithDeduplication())
	s.CreateTopic(topic, 2)
	client := dial(t, s.URL())
	one := topic + "-partition-1"
	w := openEntryWriter(t, client, one)
	require.EqualValues(t, -1, w.Stored())
	require.Nil(t, w.Last())
	require.NoError(t, w.Store(testContext(t), positioned(0, 9)...))
	require.NoError(t, w.Store(testContext(t), positioned(5, 14)...), "half of it is there")
	require.NoError(t, w.Store(testContext(t), positioned(0, 14)...), "all of it is there")
	require.NoError(t, w.Store(testContext(t)))
	require.EqualValues(t, 14, w.Stored())
	require.NoError(t, w.Context().Err())
	require.NoError(t, w.Close(testContext(t)))
	require.ErrorIs(t, context.Cause(w.Context()), messaging.ErrClosed)
	require.ErrorIs(t, w.Store(testContext(t), positioned(15, 15)...), messaging.ErrClosed)

	w = openEntryWriter(t, client, one)
	require.EqualValues(t, 14, w.Stored())
	require.Equal(t, "14", string(w.Last().Payload))
	require.NoError(t, w.Store(testContext(t), positioned(10, 20)...))
	require.NoError(t, w.Close(testContext(t)))
	require.Equal(t, inOrder(0, 21), stored(s, one))

	// Of the first writer the first position went alone, of what it was given together the rest.
	entries := s.Entries(one)
	require.NotEqual(t, entries[0].Entry, entries[1].Entry)
	require.Equal(t, entries[1].Entry, entries[9].Entry)
}

func TestEntryWriterRefuses(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithMaxMessageSize(1000))
	s.CreateTopic(topic, 2)
	client := dial(t, s.URL())
	one := topic + "-partition-0"
	_, err := client.EntryWriter(testContext(t), topic, messaging.EntryWriterConfig{Name: "n", Position: position})
	require.ErrorContains(t, err, "2 partitions")
	_, err = client.EntryWriter(testContext(t), one, messaging.EntryWriterConfig{Position: position})
	require.ErrorContains(t, err, "Name")
	_, err = client.EntryWriter(testContext(t), "a/b", messaging.EntryWriterConfig{Name: "n", Position: position})
	require.ErrorIs(t, err, messaging.ErrInvalidTopic)
	s.Fail(fakebroker.OpPartitions, one, fakebroker.AuthorizationError, 1)
	_, err = client.EntryWriter(testContext(t), one, messaging.EntryWriterConfig{Name: "n", Position: position})
	require.ErrorIs(t, err, messaging.ErrAuthorization)
	foreign := errors.New("not ours")
	s.Publish(one, batch(0, 1)...)
	_, err = client.EntryWriter(testContext(t), one, messaging.EntryWriterConfig{
		Name: "n", Position: func(*messaging.Delivery) (int64, error) { return 0, foreign },
	})
	require.ErrorIs(t, err, foreign)
	require.NoError(t, s.WaitProducers(testContext(t), one, 0))

	w, err := client.EntryWriter(testContext(t), one, messaging.EntryWriterConfig{Name: "n", Position: position, MaxRecords: 10})
	require.NoError(t, err)
	rs := positioned(0, 10)
	rs[3], rs[4] = rs[4], rs[3]
	require.ErrorIs(t, w.Store(testContext(t), rs...), messaging.ErrNotOrdered)
	require.ErrorIs(t, w.Store(testContext(t), &messaging.Record{}), messaging.ErrNotOrdered)
	require.ErrorIs(t, w.Store(testContext(t), positioned(-1, 0)...), messaging.ErrNotOrdered)
	twice := append(positioned(0, 0), positioned(0, 0)...)
	require.ErrorIs(t, w.Store(testContext(t), twice...), messaging.ErrNotOrdered)
	require.NoError(t, w.Store(testContext(t), positioned(0, 0)...))
	err = w.Store(testContext(t), positioned(1, 11)...)
	require.ErrorIs(t, err, messaging.ErrTooLarge)
	require.NotErrorIs(t, err, messaging.ErrInDoubt)
	big := positioned(1, 1)
	big[0].Payload = make([]byte, 5000)
	err = w.Store(testContext(t), big...)
	require.ErrorIs(t, err, messaging.ErrTooLarge)
	require.NotErrorIs(t, err, messaging.ErrInDoubt)
	ended, end := context.WithCancel(context.Background())
	end()
	require.ErrorIs(t, w.Store(ended, positioned(1, 10)...), context.Canceled)
	require.NoError(t, w.Store(testContext(t), positioned(1, 10)...), "it goes on")

	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err = client.EntryWriter(short, one, messaging.EntryWriterConfig{Name: "n", Position: position})
	require.Error(t, err, "the topic has an owner")
	require.NoError(t, w.Close(testContext(t)))
	w = openEntryWriter(t, client, one)
	require.NoError(t, w.Close(testContext(t)))
}

// A receipt is lost: the next writer finds out.
func TestEntryWriterInDoubt(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithDeduplication())
	client := dial(t, s.URL())
	w := openEntryWriter(t, client, topic)
	require.NoError(t, w.Store(testContext(t), positioned(0, 4)...))
	s.DropReceipts(topic, 1)
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := w.Store(short, positioned(5, 9)...)
	require.ErrorIs(t, err, messaging.ErrInDoubt)
	require.ErrorIs(t, w.Store(testContext(t), positioned(10, 10)...), messaging.ErrInDoubt, "it is at its end")
	require.ErrorIs(t, context.Cause(w.Context()), messaging.ErrInDoubt)
	require.EqualValues(t, 4, w.Stored())
	require.NoError(t, w.Close(canceledContext()))

	w = openEntryWriter(t, client, topic)
	require.EqualValues(t, 9, w.Stored())
	require.NoError(t, w.Store(testContext(t), positioned(5, 12)...))
	require.NoError(t, w.Close(testContext(t)))
	require.Equal(t, inOrder(0, 13), stored(s, topic))
}

func canceledContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Whoever has lost the topic hears of it without storing anything, and never writes again.
func TestEntryWriterIsFenced(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithDeduplication())
	client := dial(t, s.URL())
	w := openEntryWriter(t, client, topic)
	require.NoError(t, w.Store(testContext(t), positioned(0, 4)...))
	s.FailProducerCreate(topic, fakebroker.ProducerFenced, 1) // as a broker answers that has a successor
	s.CutConnections()
	select {
	case <-w.Context().Done():
	case <-testContext(t).Done():
		t.Fatal("the loss is not noticed")
	}
	require.ErrorIs(t, context.Cause(w.Context()), messaging.ErrProducerLost)
	err := w.Store(testContext(t), positioned(5, 5)...)
	require.ErrorIs(t, err, messaging.ErrProducerLost)
	require.NotErrorIs(t, err, messaging.ErrInDoubt, "nothing was sent")

	// Fenced with an entry in flight.
	two := openEntryWriter(t, client, topic)
	hold := s.HoldEntries(topic)
	outcome := make(chan error, 1)
	go func() { outcome <- two.Store(testContext(t), positioned(5, 5)...) }()
	require.NoError(t, hold.Wait(testContext(t), 1))
	s.FailProducerCreate(topic, fakebroker.ProducerFenced, 1)
	s.CutConnections()
	hold.Remove()
	err = <-outcome
	require.ErrorIs(t, err, messaging.ErrInDoubt)
	require.ErrorIs(t, err, messaging.ErrProducerLost)
	require.NoError(t, w.Close(testContext(t)))
	require.NoError(t, two.Close(testContext(t)))
	require.Equal(t, inOrder(0, 5), stored(s, topic))
}

// A message behind ours hides what is stored. Deduplication tells, position by position.
func TestEntryWriterIsToldOfDuplicates(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithDeduplication())
	client := dial(t, s.URL())
	w := openEntryWriter(t, client, topic)
	require.NoError(t, w.Store(testContext(t), positioned(0, 4)...))
	require.NoError(t, w.Close(testContext(t)))
	s.Publish(topic, batch(1000, 1)...)

	w = openEntryWriter(t, client, topic)
	require.EqualValues(t, -1, w.Stored())
	require.NoError(t, w.Store(testContext(t), positioned(3, 8)...))
	require.EqualValues(t, 8, w.Stored())
	require.NoError(t, w.Close(testContext(t)))
	require.Equal(t, append(append(inOrder(0, 5), "1000"), inOrder(5, 4)...), stored(s, topic))
}

// nextWriterCompletes opens another writer, which stores all below n. Each must be there once.
func nextWriterCompletes(t *testing.T, s *fakebroker.Server, client *messaging.Client, topic string, n int64) {
	t.Helper()
	w := openEntryWriter(t, client, topic)
	require.NoError(t, w.Store(testContext(t), positioned(w.Stored()+1, n-1)...))
	require.NoError(t, w.Close(testContext(t)))
	require.Equal(t, inOrder(0, int(n)), stored(s, topic))
}

// askedContext is a context that counts how often it is asked for its error, and calls then
// while it answers for the nth time.
type askedContext struct {
	context.Context
	asked atomic.Int32
	n     int32
	then  func()
}

func (c *askedContext) Err() error {
	err := c.Context.Err()
	if c.asked.Add(1) == c.n {
		c.then()
	}
	return err
}

// Store's context ends at any moment: an entry is stored whole or not at all. A writer that is at
// its end says so.
func TestEntryWriterContextEndsWithinStore(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithDeduplication())
	client := dial(t, s.URL())
	for n := range int32(20) {
		topic := fmt.Sprintf("%s-%d", topic, n)
		w := openEntryWriter(t, client, topic)
		require.NoError(t, w.Store(testContext(t), positioned(0, 4)...))
		ctx, cancel := context.WithCancel(context.Background())
		err := w.Store(&askedContext{Context: ctx, n: n, then: cancel}, positioned(5, 19)...)
		cancel()
		require.Contains(t, []int{5, 20}, s.Count(topic))
		if err != nil && !errors.Is(err, messaging.ErrInDoubt) {
			require.NoError(t, w.Store(testContext(t), positioned(5, 19)...), "it goes on")
		}
		require.NoError(t, w.Close(testContext(t)))
		nextWriterCompletes(t, s, client, topic, 30)
	}
}

// The writer, or its client, is closed at any moment of Store.
func TestEntryWriterClosedWithinStore(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithDeduplication())
	other := dial(t, s.URL())
	for n := range int32(20) {
		topic := fmt.Sprintf("%s-%d", topic, n)
		client, err := messaging.Dial(testContext(t), messaging.Config{URL: s.URL()})
		require.NoError(t, err)
		w := openEntryWriter(t, client, topic)
		require.NoError(t, w.Store(testContext(t), positioned(0, 4)...))
		closing := w.Close
		if n%2 == 0 {
			closing = client.Close
		}
		closed := make(chan error, 1)
		begin := func() {
			go func() { closed <- closing(testContext(t)) }()
			runtime.Gosched()
		}
		err = w.Store(&askedContext{Context: testContext(t), n: n/2 + 1, then: begin}, positioned(5, 1999)...)
		if err == nil {
			require.Equal(t, 2000, s.Count(topic))
		} else {
			require.ErrorIs(t, err, messaging.ErrClosed)
			require.Equal(t, 5, s.Count(topic), "nothing of it was sent")
		}
		if n < 2 {
			require.NoError(t, <-closed)
		}
		require.NoError(t, client.Close(testContext(t)))
		nextWriterCompletes(t, s, other, topic, 2010)
	}
}

// One record is larger than the broker takes, those around it are not.
func TestEntryWriterWithARecordThatIsTooLarge(t *testing.T) {
	t.Parallel()
	for at := range 5 {
		s := fakebroker.Start(t, fakebroker.WithDeduplication(), fakebroker.WithMaxMessageSize(10_000))
		client := dial(t, s.URL())
		w := openEntryWriter(t, client, topic)
		require.NoError(t, w.Store(testContext(t), positioned(0, 4)...))
		rs := positioned(5, 9)
		rs[at].Payload = make([]byte, 11_000)
		require.ErrorIs(t, w.Store(testContext(t), rs...), messaging.ErrTooLarge)
		require.NoError(t, w.Close(testContext(t)))
		require.Equal(t, 5, s.Count(topic), "nothing of it is stored")
		nextWriterCompletes(t, s, client, topic, 10)
	}
}

// An entry is larger than the broker's maximum, and the client cuts it: its beginning is stored,
// and the next writer goes on behind that, although the broker has the whole entry's sequence id.
func TestEntryWriterWithAnEntryThatIsCut(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithDeduplication(), fakebroker.WithMaxMessageSize(10_000))
	client := dial(t, s.URL())
	w := openEntryWriter(t, client, topic)
	require.NoError(t, w.Store(testContext(t), positioned(0, 4)...))
	rs := positioned(5, 12)
	for _, r := range rs {
		r.Payload = append(make([]byte, 4000), r.Payload...)
	}
	require.ErrorIs(t, w.Store(testContext(t), rs...), messaging.ErrInDoubt)
	require.ErrorIs(t, w.Store(testContext(t), rs...), messaging.ErrInDoubt, "it is at its end")
	require.NoError(t, w.Close(testContext(t)))
	require.Equal(t, 7, s.Count(topic), "the beginning, and nothing behind it")
	for next := int64(7); next < 20; next = w.Stored() + 1 { // writers that end soon
		w = openEntryWriter(t, client, topic)
		require.Equal(t, next, w.Stored()+1)
		require.NoError(t, w.Store(testContext(t), positioned(next, next)...))
		require.NoError(t, w.Store(testContext(t), positioned(next+1, next+2)...))
		require.NoError(t, w.Close(testContext(t)))
	}
	var at []string
	for _, m := range s.Entries(topic) {
		at = append(at, m.Properties["at"])
	}
	require.Equal(t, inOrder(0, len(at)), at)
}

// What a version before left: the beginning of an entry under the sequence id of its end, however
// far that is.
func TestEntryWriterGoesOnBehindIDsThatAreUsedUp(t *testing.T) {
	t.Parallel()
	for _, used := range []int64{9, 10, 11, 20, 1000, 1 << 40} {
		s := fakebroker.Start(t, fakebroker.WithDeduplication())
		client := dial(t, s.URL())
		p := open(t, client, topic, func(p *messaging.Profile) { entries(p); p.ProducerName = "source" })
		beginning := positioned(0, 8)
		beginning[0].SequenceID = &used
		_, err := inside.StoreEntry(testContext(t), p, nil, beginning...)
		require.NoError(t, err)
		require.NoError(t, p.Close(testContext(t)))
		for next := int64(9); next < 30; next += 3 {
			nextWriterCompletes(t, s, client, topic, next+3)
		}
	}
}

// The id of an entry that is on its way is above those that are used up, and the writer behind it
// does not pass over it: of the ids that it tries, one is used up or lies between the two.
func TestSequenceIDsPassOverNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 10_000 {
		stored := random.Int64N(100)
		used := stored + random.Int64N(1<<random.Int64N(20)) // what is stored, and so known to a writer
		first := stored + 1 + random.Int64N(3)
		inFlight := inside.SequenceID(stored, used, first+random.Int64N(1<<random.Int64N(20)))
		require.Greater(t, inFlight, used)
		steps, known := 0, int64(-1)
		id := inside.SequenceID(stored, known, first)
		for ; id <= used; steps++ {
			known = id
			id = inside.SequenceID(stored, known, first)
			require.Greater(t, id, known)
		}
		require.LessOrEqual(t, steps, 24)
		require.LessOrEqual(t, id, inFlight, "stored %d, used up to %d, first position %d", stored, used, first)
	}
}

// With more than eight active partitions the library gathers records, and flushes what fills an
// entry: not an entry writer's, which would be flushed twice, the second time in the middle of the
// next one.
func TestEntryWriterBesideManyPartitions(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithDeduplication())
	client := dial(t, s.URL())
	for i := range 12 {
		p, err := client.Publisher(testContext(t), fmt.Sprintf("other-%d", i), messaging.Business())
		require.NoError(t, err)
		require.NoError(t, p.Publish(testContext(t), record(0)))
	}
	const size = 200
	w, err := client.EntryWriter(testContext(t), topic, messaging.EntryWriterConfig{Name: "source", Position: position, MaxRecords: size})
	require.NoError(t, err)
	for i := range int64(200) {
		require.NoError(t, w.Store(testContext(t), positioned(i*size, (i+1)*size-1)...))
	}
	require.NoError(t, w.Close(testContext(t)))
	require.Equal(t, inOrder(0, 200*size), stored(s, topic))
}

// Connections break, receipts are lost, entries are cut and writers end in the middle of entries.
// What has no outcome is sent again by the next writer: each position is there once.
func TestEntryWriterStoresEachPositionOnce(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]fakebroker.Option{
		"whole entries": {fakebroker.WithDeduplication()},
		"some are cut":  {fakebroker.WithDeduplication(), fakebroker.WithMaxMessageSize(600)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storesEachPositionOnce(t, options...)
		})
	}
}

func storesEachPositionOnce(t *testing.T, options ...fakebroker.Option) {
	t.Helper()
	s := fakebroker.Start(t, options...)
	client := dial(t, s.URL())
	const n = 1000
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	next := int64(0)
	for next < n {
		w := openEntryWriter(t, client, topic)
		next = w.Stored() + 1
		for next < n {
			switch random.IntN(8) {
			case 0:
				s.CutConnections()
			case 1:
				s.CloseProducers(topic)
			case 2:
				s.DropReceipts(topic, 1)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			err := w.Store(ctx, positioned(next, min(next+random.Int64N(20), n-1))...)
			cancel()
			next = w.Stored() + 1
			if err != nil {
				lost := errors.Is(err, messaging.ErrInDoubt) || errors.Is(err, messaging.ErrProducerLost)
				require.True(t, lost || errors.Is(err, messaging.ErrTooLarge), "%v", err)
				break
			}
		}
		require.NoError(t, w.Close(canceledContext()))
	}
	require.Equal(t, inOrder(0, n), stored(s, topic))
}

// The client closes while an entry writer waits for another owner.
func TestEntryWriterThatWaitsEndsWithItsClient(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	owner := openEntryWriter(t, dial(t, s.URL()), topic)
	client := dial(t, s.URL())
	refused := s.Fail(fakebroker.OpProducer, topic, fakebroker.ProducerBusy, 1)
	opened := make(chan error, 1)
	go func() {
		_, err := client.EntryWriter(context.Background(), topic, messaging.EntryWriterConfig{Name: "n", Position: position})
		opened <- err
	}()
	require.NoError(t, refused.Wait(testContext(t), 1))
	require.NoError(t, client.Close(testContext(t)))
	require.ErrorIs(t, <-opened, messaging.ErrClosed)
	require.NoError(t, owner.Close(testContext(t)))
}
