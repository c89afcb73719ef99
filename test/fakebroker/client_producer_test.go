package fakebroker_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/fakebroker"
)

// The tests of this file record how pulsar-client-go v0.21.0 behaves where our library has to work
// around it. If one fails after an upgrade, the client has changed and the workaround named in the
// test may go.

// watchedBackoff shows what an application can learn from a producer's BackOffPolicyFunc: the
// client makes one policy per reconnection, asks it for a delay after each failed attempt, and
// resets it when it is connected again. A policy that was made and is neither asked nor reset
// belongs to a producer that has been closed for good.
type watchedBackoff struct {
	mu                   sync.Mutex
	made, failed, resets int
	changed              chan struct{}
}

func newWatchedBackoff() *watchedBackoff { return &watchedBackoff{changed: make(chan struct{}, 1)} }

func (w *watchedBackoff) policy() backoff.Policy {
	w.note(&w.made)
	return w
}

func (w *watchedBackoff) Next() time.Duration {
	w.note(&w.failed)
	return time.Millisecond
}

func (w *watchedBackoff) Reset()                    { w.note(&w.resets) }
func (w *watchedBackoff) IsMaxBackoffReached() bool { return false }

func (w *watchedBackoff) note(n *int) {
	w.mu.Lock()
	*n++
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *watchedBackoff) counts() (made, failed, resets int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.made, w.failed, w.resets
}

func (w *watchedBackoff) wait(ctx context.Context, cond func(made, failed, resets int) bool) error {
	for !cond(w.counts()) {
		select {
		case <-w.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// closed asks a producer whether it is closed, without side effects: a send with a dead context is
// refused before it touches anything, but only after the client has looked at the producer's state.
// (Flush also reports it, but panics if it runs into the closing: the client closes the channel
// that Flush writes to.) With partitions it asks the one that the router picks for the message.
func closed(p pulsar.Producer, probe *pulsar.ProducerMessage) bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var result error
	p.SendAsync(ctx, probe, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { result = err })
	return errors.Is(result, pulsar.ErrProducerClosed)
}

func waitClosed(ctx context.Context, t *testing.T, p pulsar.Producer, probe string) {
	t.Helper()
	for !closed(p, &pulsar.ProducerMessage{Payload: []byte(probe)}) {
		require.NoError(t, ctx.Err(), "the producer is still open")
		runtime.Gosched()
	}
}

func TestClientErrorsThatCloseAProducerForGood(t *testing.T) {
	closing := map[fakebroker.ServerError]error{
		fakebroker.ProducerFenced:       pulsar.ErrProducerFenced,
		fakebroker.TopicTerminatedError: pulsar.ErrTopicTerminated,
		fakebroker.TopicNotFound:        pulsar.ErrTopicNotfound,
	}
	for code, want := range closing {
		t.Run(code.String(), func(t *testing.T) {
			ctx := testContext(t)
			s := fakebroker.Start(t)
			hold := s.HoldReceipts("orders")
			watch := newWatchedBackoff()
			p := newProducer(t, newClient(t, s), pulsar.ProducerOptions{
				Topic: "orders", BatchingMaxPublishDelay: time.Hour, BatchingMaxMessages: 2,
				BackOffPolicyFunc: watch.policy,
			})
			got := newSends()
			got.send(ctx, p, "pending 1")
			got.send(ctx, p, "pending 2")
			got.send(ctx, p, "in the builder") // does not fit: the two before are flushed
			require.NoError(t, hold.Wait(ctx, 1))

			s.FailProducerCreate("orders", code, fakebroker.Always)
			s.CutConnections()
			require.NoError(t, got.wait(ctx, 2))
			for _, payload := range []string{"pending 1", "pending 2"} {
				err, ok := got.done(payload)
				require.True(t, ok)
				require.ErrorIs(t, err, want)
				require.ErrorContains(t, err, "server error: "+code.String())
			}
			waitClosed(ctx, t, p, "probe")
			require.ErrorIs(t, p.FlushWithCtx(ctx), pulsar.ErrProducerClosed)

			// New sends fail at once.
			_, err := p.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("late")})
			require.ErrorIs(t, err, pulsar.ErrProducerClosed)

			// What was in the builder is forgotten without a callback, and closing does not change
			// that.
			p.Close()
			_, ok := got.done("in the builder")
			require.False(t, ok, "the client now fails what is in the builder")
			require.Equal(t, 2, got.count())

			made, failed, resets := watch.counts()
			require.Equal(t, []int{1, 0, 0}, []int{made, failed, resets})
		})
	}
}

func TestClientErrorsThatAProducerRetries(t *testing.T) {
	for _, code := range []fakebroker.ServerError{
		fakebroker.ServiceNotReady, fakebroker.ProducerBusy, fakebroker.AuthorizationError, fakebroker.AuthenticationError, fakebroker.NotAllowedError,
		fakebroker.ProducerBlockedQuotaExceededError, fakebroker.PersistenceError, fakebroker.MetadataError, fakebroker.InvalidTopicName,
		fakebroker.IncompatibleSchema, fakebroker.UnknownError,
	} {
		t.Run(code.String(), func(t *testing.T) {
			ctx := testContext(t)
			s := fakebroker.Start(t)
			hold := s.HoldReceipts("orders")
			watch := newWatchedBackoff()
			o := oneByOne("orders")
			o.BackOffPolicyFunc = watch.policy
			p := newProducer(t, newClient(t, s), o)
			got := newSends()
			got.send(ctx, p, "a")
			require.NoError(t, hold.Wait(ctx, 1))
			s.FailProducerCreate("orders", code, 3)
			s.CutConnections()
			require.NoError(t, hold.Wait(ctx, 2)) // connected again and sent again
			require.Zero(t, got.count())
			hold.Release()
			require.NoError(t, got.wait(ctx, 1))
			err, _ := got.done("a")
			require.NoError(t, err)
			require.NoError(t, watch.wait(ctx, func(made, failed, resets int) bool {
				return made == 1 && failed == 3 && resets == 1
			}))
		})
	}
}

// The one error that fails the pending messages and goes on reconnecting all the same.
func TestClientQuotaExceptionFailsPendingAndRetries(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	hold := s.HoldReceipts("orders")
	p := newProducer(t, newClient(t, s), oneByOne("orders"))
	got := newSends()
	got.send(ctx, p, "a")
	require.NoError(t, hold.Wait(ctx, 1))
	s.FailProducerCreate("orders", fakebroker.ProducerBlockedQuotaExceededException, 1)
	s.CutConnections()
	require.NoError(t, got.wait(ctx, 1))
	err, _ := got.done("a")
	require.ErrorIs(t, err, pulsar.ErrProducerBlockedQuotaExceeded)
	require.NoError(t, s.WaitProducers(ctx, "orders", 1))
	hold.Release()
	got.send(ctx, p, "b")
	require.NoError(t, got.wait(ctx, 2))
	err, _ = got.done("b")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, payloads(s.Entries("orders")), "the failed message was stored before")
}

// With nothing in flight no callback tells the application. A probe does, and so does the backoff
// policy.
func TestClientIdleProducerFenced(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	watch := newWatchedBackoff()
	p := newProducer(t, newClient(t, s), pulsar.ProducerOptions{Topic: "orders", BackOffPolicyFunc: watch.policy})
	require.NoError(t, p.FlushWithCtx(ctx))
	s.FailProducerCreate("orders", fakebroker.ProducerFenced, fakebroker.Always)
	s.CutConnections()
	waitClosed(ctx, t, p, "probe")
	made, failed, resets := watch.counts()
	require.Equal(t, []int{1, 0, 0}, []int{made, failed, resets})
}

// Of a partitioned producer only the partition is closed: the others go on.
func TestClientOnePartitionFenced(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.CreateTopic("orders", 2)
	p := newProducer(t, newClient(t, s), pulsar.ProducerOptions{
		Topic: "orders",
		MessageRouter: func(m *pulsar.ProducerMessage, _ pulsar.TopicMetadata) int {
			return int(m.Payload[0] - '0')
		},
	})
	fenced := s.FailProducerCreate("orders-partition-1", fakebroker.ProducerFenced, 1)
	s.CloseProducers("orders-partition-1")
	require.NoError(t, fenced.Wait(ctx, 1))
	waitClosed(ctx, t, p, "1 probe")
	require.False(t, closed(p, &pulsar.ProducerMessage{Payload: []byte("0 probe")}))
	require.Equal(t, 0, s.Count("orders"), "probes are not sent")
	_, err := p.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("0")})
	require.NoError(t, err)
	_, err = p.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("1")})
	require.ErrorIs(t, err, pulsar.ErrProducerClosed)
}

// A producer the server closed for good keeps its reconnect goroutine for ever: Close returns early
// for a closed producer and never cancels the context that goroutine waits for.
func TestClientFencedProducerLeaksAGoroutine(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	const partitions = 50 // many, so that the odd goroutine of an earlier test that is just ending does not matter
	s.CreateTopic("orders", partitions)
	before := reconnectLoops()
	p := newProducer(t, newClient(t, s), pulsar.ProducerOptions{
		Topic: "orders",
		MessageRouter: func(m *pulsar.ProducerMessage, _ pulsar.TopicMetadata) int {
			n, err := strconv.Atoi(string(m.Payload))
			require.NoError(t, err)
			return n
		},
	})
	s.FailProducerCreate("orders", fakebroker.ProducerFenced, fakebroker.Always)
	s.CutConnections()
	for i := range partitions {
		waitClosed(ctx, t, p, strconv.Itoa(i))
	}
	p.Close()
	require.Greater(t, reconnectLoops()-before, partitions/2, "the client now ends the loop")
}

func reconnectLoops() int {
	buf := make([]byte, 16<<20)
	buf = buf[:runtime.Stack(buf, true)]
	return strings.Count(string(buf), "partitionProducer).runEventsLoop.func1()")
}

// Close drops what is in the batch builder: no callback, not even an error.
func TestClientCloseForgetsTheBuilder(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	p := newProducer(t, newClient(t, s), pulsar.ProducerOptions{Topic: "orders", BatchingMaxPublishDelay: time.Hour, BatchingMaxMessages: 2})
	hold := s.HoldReceipts("orders")
	got := newSends()
	got.send(ctx, p, "pending 1")
	got.send(ctx, p, "pending 2")
	got.send(ctx, p, "in the builder")
	require.NoError(t, hold.Wait(ctx, 1))
	p.Close()
	require.NoError(t, got.wait(ctx, 2))
	for _, payload := range []string{"pending 1", "pending 2"} {
		err, _ := got.done(payload)
		require.ErrorIs(t, err, pulsar.ErrProducerClosed)
	}
	require.Equal(t, 2, got.count())
	require.Equal(t, []string{"pending 1", "pending 2"}, payloads(s.Entries("orders")), "failed and stored")
}

// TopicTerminatedError or NotAllowedError as the answer to a send make the producer a ghost: the
// connection forgets it and tells nobody. Its sends fail by timeout only, and it never reconnects.
func TestClientSendErrorMakesAGhost(t *testing.T) {
	for _, code := range []fakebroker.ServerError{fakebroker.TopicTerminatedError, fakebroker.NotAllowedError} {
		t.Run(code.String(), func(t *testing.T) {
			ctx := testContext(t)
			s := fakebroker.Start(t)
			watch := newWatchedBackoff()
			p := newProducer(t, newClient(t, s), pulsar.ProducerOptions{
				Topic: "orders", DisableBatching: true, SendTimeout: 300 * time.Millisecond, BackOffPolicyFunc: watch.policy,
			})
			s.FailSend("orders", code, 1)
			got := newSends()
			got.send(ctx, p, "a")
			require.NoError(t, got.wait(ctx, 1))
			err, _ := got.done("a")
			require.ErrorIs(t, err, pulsar.ErrSendTimeout)

			// The server takes sends again, but the receipts find nobody.
			got.send(ctx, p, "b")
			require.NoError(t, got.wait(ctx, 2))
			err, _ = got.done("b")
			require.ErrorIs(t, err, pulsar.ErrSendTimeout)
			require.Equal(t, []string{"b"}, payloads(s.Entries("orders")))

			// Not even a lost connection wakes it.
			s.CutConnections()
			got.send(ctx, p, "c")
			require.NoError(t, got.wait(ctx, 3))
			err, _ = got.done("c")
			require.ErrorIs(t, err, pulsar.ErrSendTimeout)
			require.NoError(t, p.FlushWithCtx(ctx), "Flush does not notice")
			made, _, _ := watch.counts()
			require.Zero(t, made)
			require.Empty(t, s.Producers("orders"))
		})
	}
}

// Any other error as the answer to a send closes the connection, with everything on it, and the
// send is repeated.
func TestClientSendErrorClosesTheConnection(t *testing.T) {
	for _, code := range []fakebroker.ServerError{fakebroker.ChecksumError, fakebroker.PersistenceError, fakebroker.ServiceNotReady, fakebroker.ProducerFenced} {
		t.Run(code.String(), func(t *testing.T) {
			ctx := testContext(t)
			s := fakebroker.Start(t)
			client := newClient(t, s)
			p := newProducer(t, client, oneByOne("orders"))
			other := newProducer(t, client, oneByOne("other"))
			s.FailSend("orders", code, 2)
			_, err := p.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("a")})
			require.NoError(t, err)
			require.Equal(t, []string{"a"}, payloads(s.Entries("orders")))
			_, err = other.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("b")})
			require.NoError(t, err)
			require.GreaterOrEqual(t, s.Producers("other")[0].Epoch, uint64(1), "the other producer had to reconnect too")
		})
	}
}

// A receipt that is ahead of the oldest pending message makes the client close the connection and
// repeat everything.
func TestClientReceiptOutOfOrder(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	hold := s.HoldReceipts("orders")
	p := newProducer(t, newClient(t, s), oneByOne("orders"))
	got := newSends()
	for _, payload := range []string{"a", "b", "c"} {
		got.send(ctx, p, payload)
	}
	require.NoError(t, hold.Wait(ctx, 3))
	require.Equal(t, 1, hold.ReleaseOnly(1))
	require.NoError(t, hold.Wait(ctx, 6))
	require.Zero(t, got.count())
	hold.Release()
	require.NoError(t, got.wait(ctx, 3))
	require.Equal(t, []string{"a", "b", "c", "a", "b", "c"}, payloads(s.Entries("orders")))
}

// A receipt for a message that is already confirmed is ignored.
func TestClientReceiptTwice(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.DuplicateReceipts("orders", fakebroker.Always)
	p := newProducer(t, newClient(t, s), oneByOne("orders"))
	got := newSends()
	for _, payload := range []string{"a", "b", "c"} {
		got.send(ctx, p, payload)
	}
	require.NoError(t, got.wait(ctx, 3))
	require.NoError(t, p.FlushWithCtx(ctx))
	require.Equal(t, 3, got.count())
	require.Equal(t, 1, s.Accepted())
	require.Equal(t, 3, s.Count("orders"))
}

// A send that timed out may have been stored, and its late receipt is ignored.
func TestClientTimeoutIsNotFailure(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := fakebroker.Start(t)
	hold := s.HoldReceipts("orders")
	p := newProducer(t, newClient(t, s), pulsar.ProducerOptions{
		Topic: "orders", DisableBatching: true, SendTimeout: 5 * time.Second, // that of "b", too,
	})
	got := newSends()
	got.send(ctx, p, "a")
	require.NoError(t, got.wait(ctx, 1))
	err, _ := got.done("a")
	require.ErrorIs(t, err, pulsar.ErrSendTimeout)
	require.Equal(t, 1, hold.Release())
	got.send(ctx, p, "b")
	require.NoError(t, got.wait(ctx, 2))
	err, _ = got.done("b")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, payloads(s.Entries("orders")))
}

// An error of the first creation comes back as plain text: only its name tells what it was.
func TestClientFirstCreationFails(t *testing.T) {
	s := fakebroker.Start(t)
	s.FailProducerCreate("orders", fakebroker.ProducerFenced, 1)
	_, err := newClient(t, s).CreateProducer(pulsar.ProducerOptions{Topic: "orders"})
	require.ErrorContains(t, err, "server error: ProducerFenced")
	require.NotErrorIs(t, err, pulsar.ErrProducerFenced)
}
