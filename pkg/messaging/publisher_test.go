package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	inside "github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
	"github.com/aviaryhq/aviary/test/history"
)

// These tests provoke what a real broker does not do on demand, on a server that
// speaks its protocol. publisher_broker_test.go holds those on the real one.

const topic = "persistent://public/default/t"

// ackTimeout is the Profile.AckTimeout of tests that lose receipts: longer than any machine takes
// for those that it does not lose.
const ackTimeout = 5 * time.Second

// testContext lasts for all that a test does.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*await.Patience)
	t.Cleanup(cancel)
	return ctx
}

func dial(t *testing.T, url string, opts ...messaging.Option) *messaging.Client {
	t.Helper()
	return dialImpatient(t, url, await.Patience, opts...)
}

// dialImpatient dials with an operation timeout, for tests of requests that are never answered.
func dialImpatient(t *testing.T, url string, timeout time.Duration, opts ...messaging.Option) *messaging.Client {
	t.Helper()
	client, err := messaging.Dial(testContext(t), messaging.Config{URL: url, OperationTimeout: timeout}, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		if err := client.Close(ctx); !errors.Is(err, messaging.ErrUnacknowledged) {
			require.NoError(t, err)
		}
	})
	return client
}

func open(t *testing.T, client *messaging.Client, topic string, change func(*messaging.Profile)) *messaging.Publisher {
	t.Helper()
	profile := messaging.Ops()
	if change != nil {
		change(&profile)
	}
	p, err := client.Publisher(testContext(t), topic, profile)
	require.NoError(t, err)
	return p
}

func record(i int) *messaging.Record {
	return &messaging.Record{Key: "k" + strconv.Itoa(i%7), Payload: []byte(strconv.Itoa(i))}
}

// requireInOrder checks that entries hold each of 0..n-1 in order: copies may follow a failure,
// and then all behind them do.
func requireInOrder(t *testing.T, payloads []string, n int) {
	t.Helper()
	var seen []int
	for _, p := range payloads {
		i, err := strconv.Atoi(p)
		require.NoError(t, err)
		seen = append(seen, i)
	}
	require.NoError(t, history.InOrder(seen, n))
}

func stored(s *fakebroker.Server, topic string) []string {
	var out []string
	for _, m := range s.Entries(topic) {
		out = append(out, string(m.Payload))
	}
	return out
}

func TestPublishIsDurableWhenItReturns(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, nil)
	var rs []*messaging.Record
	for i := range 500 {
		rs = append(rs, record(i))
	}
	require.NoError(t, p.Publish(testContext(t), rs...))
	requireInOrder(t, stored(s, topic), 500)
	require.NoError(t, p.Publish(testContext(t)), "nothing to publish is no error")
}

func TestRecordArrivesWhole(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, nil)
	at := time.UnixMilli(1_700_000_000_123)
	require.NoError(t, p.Publish(testContext(t),
		&messaging.Record{Key: "key", Payload: []byte("v"), Properties: map[string]string{"a": "b"}, EventTime: at},
		&messaging.Record{Key: "tombstone"},
		&messaging.Record{Payload: []byte{}}))
	got := s.Entries(topic)
	require.Len(t, got, 3)
	require.Equal(t, "key", got[0].Key)
	require.Equal(t, map[string]string{"a": "b"}, got[0].Properties)
	require.True(t, at.Equal(got[0].EventTime))
	require.False(t, got[0].NullValue)
	require.True(t, got[1].NullValue)
	require.False(t, got[2].NullValue, "an empty payload is not a null value")
}

func TestNothingIsAcknowledgedBeforeTheReceipt(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, nil)
	hold := s.HoldReceipts(topic)
	var acked atomic.Bool
	published := make(chan error, 1)
	go func() { published <- p.Publish(testContext(t), record(0)) }()
	p.PublishAsync(testContext(t), record(1), func(messaging.MessageID, error) { acked.Store(true) })
	require.NoError(t, s.WaitEntries(testContext(t), topic, 2))
	require.False(t, acked.Load())
	select {
	case err := <-published:
		t.Fatalf("Publish returned %v while the receipt was held back", err)
	default:
	}
	hold.Release()
	require.NoError(t, <-published)
	require.NoError(t, p.Flush(testContext(t)))
	require.True(t, acked.Load(), "Flush returned before the outcome was told")
}

func TestReceiptThatNeverComes(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	p := open(t, dial(t, s.URL(), messaging.WithRegisterer(reg)), topic, func(p *messaging.Profile) {
		p.AckTimeout = ackTimeout
	})
	require.NoError(t, p.Publish(testContext(t), record(0)))
	s.DropReceipts(topic, 1)
	again := map[bool]int{}
	for _, r := range []*messaging.Record{record(1), record(2)} {
		p.PublishAsync(testContext(t), r, func(id messaging.MessageID, err error) {
			assert.NoError(t, err)
			again[id.SentAgain()]++
		})
		require.NoError(t, p.Flush(testContext(t)))
	}
	require.Equal(t, map[bool]int{true: 1, false: 1}, again)
	require.Equal(t, []string{"0", "1", "1", "2"}, stored(s, topic), "sent again by another producer")
	require.Equal(t, 1, counted(t, reg, "aviary_messaging_producers_recreated_total", messaging.Ops().Name, "ack_timeout"))
}

// A receipt that is skipped while later ones come.
func TestReceiptMissingInTheMiddle(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) { p.AckTimeout = ackTimeout })
	publishWhile(t, p, func() { s.DropReceipts(topic, 1) },
		func(n int) { requireInOrder(t, stored(s, topic), n) })
}

func TestProducerClosedByBroker(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, nil)
	publishWhile(t, p, func() { require.Equal(t, 1, s.CloseProducers(topic)) },
		func(n int) { requireInOrder(t, stored(s, topic), n) })
}

func TestConnectionCut(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, nil)
	publishWhile(t, p, func() { s.CutConnections() },
		func(n int) { requireInOrder(t, stored(s, topic), n) })
}

// publishWhile publishes records one after the other, has fault strike in the
// middle, goes on, and expects every one to be acknowledged and check to hold.
func publishWhile(t *testing.T, p *messaging.Publisher, fault func(), check func(n int)) {
	t.Helper()
	const n = 3000
	var acked atomic.Int64
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		if i == n/2 {
			fault()
		}
		p.PublishAsync(testContext(t), record(i), func(_ messaging.MessageID, err error) {
			if err == nil {
				acked.Add(1)
			}
			wg.Done()
		})
	}
	require.NoError(t, p.Flush(testContext(t)))
	wg.Wait()
	require.EqualValues(t, n, acked.Load())
	check(n)
}

func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]func(*messaging.Profile){
		"records": func(p *messaging.Profile) { p.MaxPendingRecords = 10 },
		"bytes":   func(p *messaging.Profile) { p.MaxPendingBytes = 10 * 1100 },
	} {
		t.Run(name, func(t *testing.T) {
			s := fakebroker.Start(t)
			client := dial(t, s.URL())
			blocking := open(t, client, topic, limit)
			failing := open(t, client, topic, func(p *messaging.Profile) { limit(p); p.Admission = messaging.FailFast })
			hold := s.HoldReceipts(topic)
			big := &messaging.Record{Payload: make([]byte, 1024)}
			for _, p := range []*messaging.Publisher{blocking, failing} {
				for range 10 {
					p.PublishAsync(testContext(t), big, func(messaging.MessageID, error) {})
				}
			}
			require.ErrorIs(t, failing.Publish(testContext(t), big), messaging.ErrQueueFull)

			short, cancel := context.WithTimeout(testContext(t), 50*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, blocking.Publish(short, big), context.DeadlineExceeded)

			admitted := make(chan error, 1)
			go func() { admitted <- blocking.Publish(testContext(t), big) }()
			hold.Release()
			require.NoError(t, <-admitted, "a blocked caller goes on when there is room")
			require.NoError(t, failing.Flush(testContext(t)))
			require.NoError(t, failing.Publish(testContext(t), big))
		})
	}
}

// One call may publish more than the queue holds, whatever the linger: what has gathered is sent
// before anybody waits for its room.
func TestPublishMoreThanTheQueueHolds(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 3, 20} {
		s := fakebroker.Start(t)
		s.CreateTopic(topic, partitions)
		p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) {
			p.MaxPendingRecords, p.Linger = 2*partitions, time.Hour
		})
		var rs []*messaging.Record
		for i := range 500 {
			rs = append(rs, record(i))
		}
		require.NoError(t, p.Publish(testContext(t), rs...))
		require.Equal(t, 500, s.Count(topic))
	}
}

// A record larger than the whole queue is admitted when nothing else is pending.
func TestRecordLargerThanTheQueue(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) { p.MaxPendingBytes = 1000 })
	require.NoError(t, p.Publish(testContext(t), &messaging.Record{Payload: make([]byte, 5000)}, record(1)))
	require.Equal(t, 2, s.Count(topic))
}

func TestRecordTooLarge(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithMaxMessageSize(1000))
	p := open(t, dial(t, s.URL()), topic, nil)
	payload := make([]byte, 5000)
	err := p.Publish(testContext(t), record(0), &messaging.Record{Payload: payload}, record(1))
	require.ErrorIs(t, err, messaging.ErrTooLarge)
	var large *messaging.TooLargeError
	require.ErrorAs(t, err, &large)
	require.Same(t, &payload[0], &large.Payload[0])
	require.ErrorContains(t, err, "1 of 3 records")
	require.Equal(t, []string{"0", "1"}, stored(s, topic), "its neighbours are not harmed")
}

// One partition that does not answer must not hold up the others, nor take their
// share of the queue.
func TestStuckPartitionLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 4)
	p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) {
		p.Routing = messaging.RouteExplicit
		p.MaxPendingRecords = 400
	})
	require.Equal(t, 4, p.Partitions())
	hold := s.HoldReceipts(topic + "-partition-2")
	for range 100 { // its whole share
		p.PublishAsync(testContext(t), &messaging.Record{Partition: 2}, func(messaging.MessageID, error) {})
	}
	for _, part := range []int{0, 1, 3} {
		for range 300 {
			require.NoError(t, p.Publish(testContext(t), &messaging.Record{Partition: part}))
		}
	}
	short, cancel := context.WithTimeout(testContext(t), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Publish(short, &messaging.Record{Partition: 2}), context.DeadlineExceeded)
	hold.Release()
	require.NoError(t, p.Publish(testContext(t), &messaging.Record{Partition: 2}))
}

// Round robin passes over a partition whose queue is full.
func TestRoundRobinAvoidsAStuckPartition(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 3)
	p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) {
		p.Routing = messaging.RouteRoundRobin
		p.MaxPendingRecords = 3 * 50
	})
	hold := s.HoldReceipts(topic + "-partition-1")
	outcomes := make(chan struct{}, 5000)
	for range 3000 {
		p.PublishAsync(testContext(t), &messaging.Record{Payload: []byte("x")}, func(messaging.MessageID, error) { outcomes <- struct{}{} })
	}
	for range 3000 - 50 {
		<-outcomes
	}
	require.Equal(t, 50, s.Count(topic+"-partition-1"))
	hold.Release()
}

// A done function that blocks holds up its own partition only.
func TestBlockedCallback(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 2)
	client := dial(t, s.URL())
	p := open(t, client, topic, func(p *messaging.Profile) { p.Routing = messaging.RouteExplicit })
	other := open(t, client, topic+"-other", nil)
	release := make(chan struct{})
	entered := make(chan struct{})
	p.PublishAsync(testContext(t), &messaging.Record{Partition: 0}, func(messaging.MessageID, error) {
		close(entered)
		<-release
	})
	<-entered
	require.NoError(t, p.Publish(testContext(t), &messaging.Record{Partition: 1}))
	require.NoError(t, other.Publish(testContext(t), &messaging.Record{}), "same connection, other topic")
	close(release)
	require.NoError(t, p.Publish(testContext(t), &messaging.Record{Partition: 0}))
}

func TestExplicitPartitionOutOfRange(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 2)
	p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) { p.Routing = messaging.RouteExplicit })
	for _, part := range []int{-1, 2} {
		require.ErrorIs(t, p.Publish(testContext(t), &messaging.Record{Partition: part}), messaging.ErrBadPartition)
	}
}

func TestKeyStaysOnItsPartition(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 5)
	p := open(t, dial(t, s.URL()), topic, nil)
	for i := range 200 {
		p.PublishAsync(testContext(t), &messaging.Record{Key: fmt.Sprint("key-", i%20)}, func(messaging.MessageID, error) {})
	}
	require.NoError(t, p.Flush(testContext(t)))
	where := map[string]int{}
	parts := map[int]bool{}
	for _, m := range s.Entries(topic) {
		if at, ok := where[m.Key]; ok {
			require.Equal(t, at, m.Partition, m.Key)
		}
		where[m.Key] = m.Partition
		parts[m.Partition] = true
	}
	require.Len(t, where, 20)
	require.Greater(t, len(parts), 1)
}

// When Flush returns the outcomes have been told, not merely received.
func TestFlushWaitsForCallbacks(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, nil)
	entered, leave := make(chan struct{}), make(chan struct{})
	var told atomic.Bool
	p.PublishAsync(testContext(t), record(0), func(messaging.MessageID, error) {
		close(entered)
		<-leave
		told.Store(true)
	})
	<-entered // the record has left the queue and is being told
	short, cancel := context.WithTimeout(testContext(t), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Flush(short), context.DeadlineExceeded)
	close(leave)
	require.NoError(t, p.Flush(testContext(t)))
	require.True(t, told.Load())
}

// Group commit: a lone record does not wait for the linger, and records that come
// while one is in flight share the next batch.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	profile := messaging.Business()
	profile.Linger = time.Hour
	client := dial(t, s.URL())
	p, err := client.Publisher(testContext(t), topic, profile)
	require.NoError(t, err)
	require.NoError(t, p.Publish(testContext(t), record(0)))

	hold := s.HoldReceipts(topic)
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, p.Publish(testContext(t), record(1))) })
	require.NoError(t, s.Until(testContext(t), func() bool { return hold.Held() == 1 }))
	sends := s.Received(fakebroker.CommandSend)
	for i := range 100 {
		p.PublishAsync(testContext(t), record(2+i), func(messaging.MessageID, error) {})
	}
	require.Equal(t, sends, s.Received(fakebroker.CommandSend), "they wait for the one in flight")
	hold.Release()
	wg.Wait()
	require.NoError(t, p.Flush(testContext(t)))
	require.LessOrEqual(t, s.Received(fakebroker.CommandSend)-sends, 2, "and share a batch")
	requireInOrder(t, stored(s, topic), 102)
}

func TestCloseFlushes(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, nil)
	var acked atomic.Int64
	for i := range 100 { // they sit in the batch builder, which the client's Close forgets
		p.PublishAsync(testContext(t), record(i), func(_ messaging.MessageID, err error) {
			if err == nil {
				acked.Add(1)
			}
		})
	}
	require.NoError(t, p.Close(testContext(t)))
	require.EqualValues(t, 100, acked.Load())
	requireInOrder(t, stored(s, topic), 100)
	require.NoError(t, p.Close(testContext(t)), "closing again")
	require.ErrorIs(t, p.Publish(testContext(t), record(0)), messaging.ErrClosed)
}

// A receipt that never comes is made good while Close waits, too.
func TestCloseWithAReceiptThatNeverComes(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) { p.AckTimeout = ackTimeout })
	s.DropReceipts(topic, 1)
	outcome := make(chan error, 1)
	p.PublishAsync(testContext(t), record(0), func(id messaging.MessageID, err error) {
		assert.True(t, id.SentAgain())
		outcome <- err
	})
	require.NoError(t, p.Close(testContext(t)))
	require.NoError(t, <-outcome)
	require.Equal(t, []string{"0", "0"}, stored(s, topic))
}

// drain returns all that topic holds, as a subscription gets it.
func drain(t *testing.T, client *messaging.Client, topic string) (all []*messaging.Delivery) {
	t.Helper()
	cfg := quickConfig(messaging.Exclusive, messaging.OrderTotal)
	cfg.Topics, cfg.Subscription = []string{topic}, "drain"
	c, err := client.Consumer(cfg)
	require.NoError(t, err)
	_, err = c.Drain(testContext(t), func(_ context.Context, d *messaging.Delivery) error {
		all = append(all, d)
		return nil
	})
	require.NoError(t, err)
	return all
}

// An empty payload arrives empty, null stays null, and properties are those that were published,
// in batches and outside.
func TestEmptyPayloadsArriveEmpty(t *testing.T) {
	t.Parallel()
	for _, compression := range []messaging.Compression{messaging.LZ4, messaging.ZSTD, messaging.NoCompression} {
		for _, batch := range []int{1, 10} {
			t.Run(fmt.Sprintf("%s in batches of %d", compression, batch), func(t *testing.T) {
				s := fakebroker.Start(t)
				client := dial(t, s.URL())
				p := open(t, client, topic, func(p *messaging.Profile) { p.BatchRecords, p.Compression = batch, compression })
				own := map[string]string{"a": "b"}
				require.NoError(t, p.Publish(testContext(t),
					&messaging.Record{Payload: []byte{}},
					&messaging.Record{Payload: []byte{}, Properties: own},
					&messaging.Record{Properties: own},
					&messaging.Record{Payload: []byte{0}, Properties: own},
				))
				require.Equal(t, map[string]string{"a": "b"}, own)
				all := drain(t, client, topic)
				require.Len(t, all, 4)
				for i, payload := range [][]byte{{}, {}, nil, {0}} {
					require.Equal(t, payload, all[i].Payload, "%d", i)
					if i == 0 {
						require.Empty(t, all[i].Properties)
					} else {
						require.Equal(t, own, all[i].Properties)
					}
				}
				last, err := client.Last(testContext(t), topic)
				require.NoError(t, err)
				require.Equal(t, []byte{0}, last.Payload)
			})
		}
	}
}

// The client closes while a publisher or an entry writer opens, and the broker does not answer.
func TestOpeningEndsWithTheClient(t *testing.T) {
	t.Parallel()
	for name, opening := range map[string]func(*messaging.Client) error{
		"publisher": func(c *messaging.Client) error {
			_, err := c.Publisher(context.Background(), topic, messaging.Business())
			return err
		},
		"entry writer": func(c *messaging.Client) error {
			_, err := c.EntryWriter(context.Background(), topic, messaging.EntryWriterConfig{Name: "n", Position: position})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakebroker.Start(t)
			s.Ignore(fakebroker.OpPartitions, topic, 1000)
			client := dial(t, s.URL())
			opened := make(chan error, 1)
			go func() { opened <- opening(client) }()
			require.NoError(t, s.WaitReceived(testContext(t), fakebroker.CommandPartitionedMetadata, 1))
			require.NoError(t, client.Close(testContext(t)))
			select {
			case err := <-opened:
				require.ErrorIs(t, err, messaging.ErrClosed)
			case <-testContext(t).Done():
				t.Fatal("opening goes on")
			}
		})
	}
}

// The client closes at any moment of a publisher's opening, also when the broker has just answered.
func TestPublisherOpensWhileItsClientCloses(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 3)
	for i := range 100 {
		client := dial(t, s.URL())
		if i%2 == 0 { // with a connection
			require.NoError(t, open(t, client, "other", nil).Close(testContext(t)))
		}
		asked := s.Received(fakebroker.CommandPartitionedMetadata)
		opened := make(chan error, 1)
		go func() {
			_, err := client.Publisher(testContext(t), topic, messaging.Business())
			opened <- err
		}()
		if i%4 < 2 {
			require.NoError(t, s.WaitReceived(testContext(t), fakebroker.CommandPartitionedMetadata, asked+1))
		}
		require.NoError(t, client.Close(testContext(t)))
		if err := <-opened; err != nil {
			require.ErrorIs(t, err, messaging.ErrClosed)
		}
	}
}

// With a context that has ended nothing is published.
func TestPublishWithAnEndedContext(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for i := range 20 {
		require.ErrorIs(t, p.Publish(ctx, record(i)), context.Canceled)
		_, err := inside.StoreEntry(ctx, p, nil, record(i))
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, messaging.ErrInDoubt)
		p.PublishAsync(ctx, record(i), func(_ messaging.MessageID, err error) { assert.ErrorIs(t, err, context.Canceled) })
	}
	require.NoError(t, p.Close(testContext(t)))
	require.Zero(t, s.Count(topic))
}

func TestCloseCountsWhatWasNotAcknowledged(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) { p.MaxPendingRecords = 100 })
	s.HoldReceipts(topic)
	var unacked atomic.Int64
	for i := range 100 {
		p.PublishAsync(testContext(t), record(i), func(_ messaging.MessageID, err error) {
			if errors.Is(err, messaging.ErrUnacknowledged) {
				unacked.Add(1)
			}
		})
	}
	blocked := make(chan error, 50)
	for range 50 { // the client's own Close panics with blocked senders
		go func() { blocked <- p.Publish(testContext(t), record(0)) }()
	}
	ctx, cancel := context.WithTimeout(testContext(t), 200*time.Millisecond)
	defer cancel()
	err := p.Close(ctx)
	var count *messaging.UnacknowledgedError
	require.ErrorAs(t, err, &count)
	require.Equal(t, 100, count.Count)
	require.EqualValues(t, 100, unacked.Load(), "every outcome is told before Close returns")
	for range 50 {
		require.ErrorIs(t, <-blocked, messaging.ErrClosed)
	}
	require.Equal(t, err, p.Close(testContext(t)))
}

func TestCloseWhileTheServerIsSilent(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	p := open(t, client, topic, nil)
	s.Stall()
	defer s.Resume()
	require.NoError(t, p.Publish(testContext(t), record(0)), "a stalled server handles one more command")
	p.PublishAsync(testContext(t), record(1), func(messaging.MessageID, error) {})
	ctx, cancel := context.WithTimeout(testContext(t), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Close(ctx), messaging.ErrUnacknowledged)
	require.Error(t, client.Close(ctx))
}

func TestOpenWhileTheServerIsUnavailable(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.RefuseConnections(true)
	client := dial(t, s.URL())
	ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond)
	defer cancel()
	_, err := client.Publisher(ctx, topic, messaging.Ops())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	s.RefuseConnections(false)
	p := open(t, client, topic, nil)
	require.NoError(t, p.Publish(testContext(t), record(0)))
}

func TestDeliverAtNeedsUnbatched(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	at := time.Now().Add(time.Minute).Truncate(time.Millisecond)
	r := &messaging.Record{Payload: []byte("later"), DeliverAt: at}
	require.ErrorIs(t, open(t, client, topic, nil).Publish(testContext(t), r), messaging.ErrDeliverAt)
	p := open(t, client, topic, func(p *messaging.Profile) { p.BatchRecords = 1 })
	require.NoError(t, p.Publish(testContext(t), r))
	require.True(t, at.Equal(s.Entries(topic)[0].DeliverAt))
}

// Unbatched sends by many callers reach the broker in the order of their sequence
// ids: one with deduplication would drop the others.
func TestUnbatchedSequenceIDsAscend(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithDeduplication())
	p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) { p.BatchRecords = 1 })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 200 {
				p.PublishAsync(testContext(t), record(i), func(messaging.MessageID, error) {})
			}
		})
	}
	wg.Wait()
	require.NoError(t, p.Flush(testContext(t)))
	require.Equal(t, 1600, s.Count(topic))
}

func TestClientCloseClosesPublishers(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	p := open(t, client, topic, nil)
	p.PublishAsync(testContext(t), record(0), func(messaging.MessageID, error) {})
	require.NoError(t, client.Close(testContext(t)))
	require.Equal(t, 1, s.Count(topic))
	require.ErrorIs(t, p.Publish(testContext(t), record(1)), messaging.ErrClosed)
	_, err := client.Publisher(testContext(t), topic, messaging.Ops())
	require.ErrorIs(t, err, messaging.ErrClosed)
	require.NoError(t, client.Close(testContext(t)))
}

func TestProfileFaultsAreAllReported(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	_, err := dial(t, s.URL()).Publisher(testContext(t), topic, messaging.Profile{BatchBytes: 5 << 20, Routing: "random"})
	for _, path := range []string{"name:", "batch_records:", "batch_bytes:", "max_pending_records:", "max_pending_bytes:",
		"ack_timeout:", "compression:", "admission:", "routing:", "ownership:"} {
		require.ErrorContains(t, err, path)
	}
}

// A service on another client takes over the properties of what it received, with a payload.
func TestMarkOfAnEmptyPayloadOnAnother(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	s.Publish(topic, fakebroker.Message{Payload: []byte("42"), Properties: map[string]string{messaging.PropertyEmpty: "true"}})
	d, err := dial(t, s.URL()).Last(testContext(t), topic)
	require.NoError(t, err)
	require.Equal(t, "42", string(d.Payload))
}
