package messaging_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

var owners = []messaging.Ownership{messaging.ExclusiveOwnership, messaging.WaitForOwnership}

// An owner that loses its producer, in whatever way, tells every record its outcome and sends
// none of them again.
func TestOwnersLossIsFinal(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*fakebroker.Server){
		"connection cut":      func(s *fakebroker.Server) { s.CutConnections() },
		"closed by broker":    func(s *fakebroker.Server) { s.CloseProducers(topic) },
		"receipt never comes": func(*fakebroker.Server) {},
	} {
		for _, ownership := range append(owners, messaging.NamedOwnership) {
			t.Run(name+"/"+string(ownership), func(t *testing.T) {
				t.Parallel()
				s := fakebroker.Start(t)
				p := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) {
					p.Ownership, p.ProducerName, p.AckTimeout = ownership, "one", ackTimeout
				})
				require.NoError(t, p.Publish(testContext(t), record(0)))
				require.NoError(t, p.Owned().Err())
				hold := s.HoldReceipts(topic)
				outcomes := make(chan error, 20)
				for i := 1; i <= 20; i++ {
					p.PublishAsync(testContext(t), record(i), func(_ messaging.MessageID, err error) { outcomes <- err })
				}
				require.NoError(t, s.Until(testContext(t), func() bool { return s.Count(topic) == 21 }))
				hold.Forget()
				lose(s)
				for range 20 {
					require.ErrorIs(t, <-outcomes, messaging.ErrProducerLost)
				}
				<-p.Owned().Done()
				require.ErrorIs(t, context.Cause(p.Owned()), messaging.ErrProducerLost)
				require.ErrorIs(t, p.Publish(testContext(t), record(21)), messaging.ErrProducerLost)
				require.ErrorIs(t, p.Unhealthy(), messaging.ErrProducerLost)
				require.NoError(t, p.Close(testContext(t)))
				require.Equal(t, 21, s.Count(topic), "nothing was sent again")
			})
		}
	}
}

// An owner whose connection breaks does not come back: its records would be stored behind those
// of whoever had the topic in the meantime.
func TestOwnerDoesNotComeBack(t *testing.T) {
	t.Parallel()
	for _, ownership := range owners {
		for _, successor := range append(owners, messaging.SharedOwnership) {
			t.Run(string(ownership)+" then "+string(successor), func(t *testing.T) {
				s := fakebroker.Start(t)
				owner := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) { p.Ownership = ownership })
				hold := s.HoldEntries(topic)
				outcome := make(chan error, 1)
				owner.PublishAsync(testContext(t), &messaging.Record{Payload: []byte("old")},
					func(_ messaging.MessageID, err error) { outcome <- err })
				require.NoError(t, s.Until(testContext(t), func() bool { return hold.Held() == 1 }))
				s.CutConnections()
				hold.Forget()
				hold.Remove()
				next := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) { p.Ownership = successor })
				require.NoError(t, next.Publish(testContext(t), &messaging.Record{Payload: []byte("new")}))
				require.ErrorIs(t, <-outcome, messaging.ErrProducerLost)
				require.NoError(t, next.Close(testContext(t)))
				require.NoError(t, owner.Close(testContext(t)))
				require.Equal(t, []string{"new"}, stored(s, topic))
			})
		}
	}
}

// Two that wait for a topic of several partitions get all of them, one after the other.
func TestWaitForOwnership(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 3)
	wait := func(p *messaging.Profile) { p.Ownership = messaging.WaitForOwnership }
	first := open(t, dial(t, s.URL()), topic, wait)
	opened := make(chan *messaging.Publisher, 2)
	profile := messaging.Ops()
	wait(&profile)
	for range 2 {
		client, ctx := dial(t, s.URL()), testContext(t)
		go func() {
			p, err := client.Publisher(ctx, topic, profile)
			assert.NoError(t, err)
			opened <- p
		}()
	}
	require.NoError(t, s.Until(testContext(t), func() bool { return s.WaitingProducers(topic) == 2 }))
	require.Empty(t, opened)
	require.NoError(t, first.Publish(testContext(t), record(0), record(1), record(2)))
	require.NoError(t, first.Close(testContext(t)))
	require.ErrorIs(t, context.Cause(first.Owned()), messaging.ErrClosed)
	for range 2 {
		p := <-opened
		require.NotNil(t, p)
		require.NoError(t, p.Owned().Err())
		require.NoError(t, p.Publish(testContext(t), record(3), record(4), record(5)))
		require.NoError(t, p.Close(testContext(t)))
	}
	require.Equal(t, 9, s.Count(topic))
}

// Opening fails at once, and by name, for what does not pass by itself.
func TestOpeningFailsAtOnce(t *testing.T) {
	t.Parallel()
	owned := func(p *messaging.Profile) { p.Ownership = messaging.ExclusiveOwnership }
	for name, c := range map[string]struct {
		topic   string
		profile func(*messaging.Profile)
		prepare func(t *testing.T, s *fakebroker.Server)
		want    error
	}{
		"owned": {topic, owned, func(t *testing.T, s *fakebroker.Server) {
			t.Helper()
			open(t, dial(t, s.URL()), topic, owned)
		}, messaging.ErrOwned},
		"shared by others": {topic, owned, func(t *testing.T, s *fakebroker.Server) {
			t.Helper()
			open(t, dial(t, s.URL()), topic, nil)
		}, messaging.ErrOwned},
		"empty name":   {"", nil, nil, messaging.ErrInvalidTopic},
		"invalid name": {"a/b", nil, nil, messaging.ErrInvalidTopic},
		"not permitted to look up": {topic, nil, func(_ *testing.T, s *fakebroker.Server) {
			s.Fail(fakebroker.OpPartitions, topic, fakebroker.AuthorizationError, fakebroker.Always)
		}, messaging.ErrAuthorization},
		"not permitted to produce": {topic, nil, func(_ *testing.T, s *fakebroker.Server) {
			s.FailProducerCreate(topic, fakebroker.AuthorizationError, fakebroker.Always)
		}, messaging.ErrAuthorization},
		"no such topic": {topic, nil, func(_ *testing.T, s *fakebroker.Server) {
			s.FailProducerCreate(topic, fakebroker.TopicNotFound, fakebroker.Always)
		}, messaging.ErrTopicNotFound},
		"no such namespace": {topic, nil, func(_ *testing.T, s *fakebroker.Server) {
			s.Fail(fakebroker.OpPartitions, topic, fakebroker.TopicNotFound, fakebroker.Always)
		}, messaging.ErrTopicNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakebroker.Start(t)
			if c.prepare != nil {
				c.prepare(t, s)
			}
			profile := messaging.Business()
			if c.profile != nil {
				c.profile(&profile)
			}
			_, err := dial(t, s.URL()).Publisher(testContext(t), c.topic, profile)
			require.ErrorIs(t, err, c.want)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

// A shared publisher waits for an owner to leave, in the hope of which it opens.
func TestSharedPublisherWaitsForAnOwnerToLeave(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	owner := open(t, dial(t, s.URL()), topic, func(p *messaging.Profile) { p.Ownership = messaging.ExclusiveOwnership })
	client := dial(t, s.URL())
	ctx, cancel := context.WithCancel(testContext(t))
	asked, opened := s.Received(fakebroker.CommandProducer), make(chan error, 1)
	go func() {
		_, err := client.Publisher(ctx, topic, messaging.Ops())
		opened <- err
	}()
	require.NoError(t, s.WaitReceived(testContext(t), fakebroker.CommandProducer, asked+2), "it asks again")
	cancel()
	err := <-opened
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "exclusive producer")
	require.NoError(t, owner.Close(testContext(t)))
	p := open(t, client, topic, nil)
	require.NoError(t, p.Publish(testContext(t), record(0)))
	require.NoError(t, p.Owned().Err())
	s.CutConnections()
	require.NoError(t, p.Publish(testContext(t), record(1)))
	require.NoError(t, p.Owned().Err(), "nothing was owned")
	require.NoError(t, p.Close(testContext(t)))
	require.ErrorIs(t, context.Cause(p.Owned()), messaging.ErrClosed)
}

// What the broker answers to owners, and to publishers of what it does not have. An owner whose
// connection breaks while others wait does not come back.
func TestOwnershipOnBroker(t *testing.T) {
	t.Parallel()
	url, srv, line := faultyPulsar(t)
	far, err := messaging.Dial(testContext(t), messaging.Config{URL: url, ListenerName: proxy.Listener})
	require.NoError(t, err)
	defer func() { require.NoError(t, far.Close(testContext(t))) }()
	near := dial(t, srv.URL())
	ns := srv.Namespace(t)
	topic := srv.Topic(t, ns, 0)
	profile := messaging.Business()
	profile.Ownership = messaging.ExclusiveOwnership

	owner, err := far.Publisher(testContext(t), topic, profile)
	require.NoError(t, err)
	require.NoError(t, owner.Publish(testContext(t), record(0)))
	_, err = near.Publisher(testContext(t), topic, profile)
	require.ErrorIs(t, err, messaging.ErrOwned)

	opened := make(chan *messaging.Publisher, 1)
	ctx := testContext(t)
	go func() {
		waiting := profile
		waiting.Ownership = messaging.WaitForOwnership
		p, err := near.Publisher(ctx, topic, waiting)
		assert.NoError(t, err)
		opened <- p
	}()
	line.Cut()
	<-owner.Owned().Done()
	require.ErrorIs(t, context.Cause(owner.Owned()), messaging.ErrProducerLost)
	next := <-opened
	require.NotNil(t, next)
	require.NoError(t, line.Restore())
	require.NoError(t, next.Publish(testContext(t), record(1)))
	require.ErrorIs(t, owner.Publish(testContext(t), record(2)), messaging.ErrProducerLost)
	require.NoError(t, owner.Close(testContext(t)))
	require.NoError(t, next.Close(testContext(t)))
	require.Equal(t, []string{"0", "1"}, readTopic(t, srv.URL(), topic))

	_, err = near.Publisher(testContext(t), "persistent://public/there-is-none/t", profile)
	require.ErrorIs(t, err, messaging.ErrTopicNotFound)
	require.NoError(t, srv.Admin(testContext(t), "POST", "/admin/v2/namespaces/"+ns+"/autoTopicCreation",
		map[string]any{"allowAutoTopicCreation": false}, nil))
	_, err = near.Publisher(testContext(t), "persistent://"+ns+"/there-is-none", profile)
	require.ErrorIs(t, err, messaging.ErrTopicNotFound)
}

func TestLast(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	ns := srv.Namespace(t)
	for _, batched := range []bool{true, false} {
		t.Run("batched="+strconv.FormatBool(batched), func(t *testing.T) {
			topic := srv.Topic(t, ns, 0)
			d, err := client.Last(testContext(t), topic)
			require.NoError(t, err)
			require.Nil(t, d)
			for _, n := range []int{1, 2, 500} {
				publish(t, client, topic, n, batched)
				d, err = client.Last(testContext(t), topic)
				require.NoError(t, err)
				require.Equal(t, strconv.Itoa(n-1), string(d.Payload))
				require.Equal(t, record(n-1).Key, d.Key)
				require.NotEmpty(t, d.ProducerName)
			}
		})
	}
	t.Run("one of several", func(t *testing.T) {
		topic := srv.Topic(t, ns, 3)
		publish(t, client, topic+"-partition-2", 10, true)
		d, err := client.Last(testContext(t), topic+"-partition-2")
		require.NoError(t, err)
		require.Equal(t, "9", string(d.Payload))
		d, err = client.Last(testContext(t), topic+"-partition-1")
		require.NoError(t, err)
		require.Nil(t, d)
		_, err = client.Last(testContext(t), topic)
		require.ErrorContains(t, err, "3 partitions")
	})
	t.Run("nobody there", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_, err := dial(t, "pulsar://127.0.0.1:1").Last(ctx, "t")
		require.Error(t, err)
	})
}

// A named owner keeps others of its name out, and nobody else: a replicator of another cluster
// must be let in, which an exclusive producer does not.
func TestNamedOwnershipOnBroker(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	name := srv.Topic(t, srv.Namespace(t), 0)
	named := func(name string) func(*messaging.Profile) {
		return func(p *messaging.Profile) { p.Ownership, p.ProducerName = messaging.NamedOwnership, name }
	}
	first := open(t, dial(t, srv.URL()), name, named("one"))
	other := open(t, dial(t, srv.URL()), name, named("two"))
	for _, p := range []*messaging.Publisher{first, other} {
		require.NoError(t, p.Publish(testContext(t), record(0)))
	}
	profile := messaging.Business()
	named("one")(&profile)
	_, err := dial(t, srv.URL()).Publisher(testContext(t), name, profile)
	require.ErrorIs(t, err, messaging.ErrOwned)
	require.NoError(t, first.Close(testContext(t)))
	second := open(t, dial(t, srv.URL()), name, named("one"))
	require.NoError(t, second.Publish(testContext(t), record(1)))
	require.NoError(t, other.Publish(testContext(t), record(1)))
}
