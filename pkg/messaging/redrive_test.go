package messaging_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// deaden publishes n messages of 7 keys to topic and has a consumer reject them all.
func deaden(t *testing.T, s *fakebroker.Server, client *messaging.Client, n int) {
	t.Helper()
	at := time.UnixMilli(1_700_000_000_000)
	for i := range n {
		s.Publish(topic, fakebroker.Message{
			Key: "k" + strconv.Itoa(i%7), OrderingKey: "o" + strconv.Itoa(i%7), Payload: []byte(strconv.Itoa(i)),
			Properties: map[string]string{"aviary_reason": "own", "i": strconv.Itoa(i)}, EventTime: at,
		})
	}
	r := start(t, client, consumerConfig(topic, messaging.Exclusive), func(_ context.Context, d *messaging.Delivery) error {
		return messaging.Reject(errors.New("reason " + string(d.Payload)))
	})
	require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", n))
	r.stop(t)
	require.Equal(t, n, s.Backlog(deadLetters, "sub"))
}

// dialToRedrive makes a client whose redrives wait only briefly.
func dialToRedrive(t *testing.T, url string, opts ...messaging.Option) *messaging.Client {
	t.Helper()
	client := dial(t, url, opts...)
	messaging.SetRedriveIdle(client, 50*time.Millisecond)
	return client
}

func redriveConfig() messaging.RedriveConfig {
	return messaging.RedriveConfig{Topic: deadLetters, Subscription: "sub"}
}

func TestRedrivePutsLettersBackAsTheyWere(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dialToRedrive(t, s.URL())
	s.CreateTopic(topic, 3)
	deaden(t, s, client, 50)
	was := s.Entries(topic)
	cfg := redriveConfig()
	cfg.DryRun = true
	result, err := client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 50}, result)
	require.Len(t, s.Entries(topic), 50, "a dry run publishes nothing")
	require.Equal(t, 50, s.Backlog(deadLetters, "sub"), "and acknowledges nothing")

	cfg.DryRun = false
	result, err = client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 50}, result)
	require.Zero(t, s.Backlog(deadLetters, "sub"))
	require.Empty(t, s.Consumers(deadLetters, "sub"))
	require.Empty(t, s.Producers(topic))

	byKey := func(ms []fakebroker.Message) map[string][]string {
		got := make(map[string][]string)
		for _, m := range ms {
			got[m.Topic+m.Key] = append(got[m.Topic+m.Key], strings.Join([]string{
				string(m.Payload), m.Key, m.OrderingKey, m.EventTime.String(), m.Properties["aviary_reason"], strconv.Itoa(len(m.Properties)),
			}, " "))
		}
		return got
	}
	var back []fakebroker.Message
	perTopic := make(map[string]int)
	for _, m := range was {
		perTopic[m.Topic]++
	}
	for _, m := range s.Entries(topic) {
		if perTopic[m.Topic]--; perTopic[m.Topic] < 0 {
			back = append(back, m)
		}
	}
	require.Equal(t, byKey(was), byKey(back), "in their partitions, keys in order")

	result, err = client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Zero(t, result, "nothing is left")
}

func TestRedriveLeavesWhatIsNotChosen(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dialToRedrive(t, s.URL())
	deaden(t, s, client, 20)
	s.Publish(deadLetters, fakebroker.Message{Payload: []byte("no letter")})
	cfg := redriveConfig()
	cfg.To = "elsewhere"
	cfg.Filter = func(l *messaging.DeadLetter) bool {
		return l.Reason == "reason "+string(l.Payload) && len(l.Payload) == 2
	}
	cfg.Max = 3
	var progress messaging.RedriveResult
	cfg.Progress = func(r messaging.RedriveResult) { progress = r }
	result, err := client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, 3, result.Redriven)
	cfg.Max, cfg.Rate = 0, 1000
	result, err = client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 7, Filtered: 10, Foreign: 1}, result)
	require.Equal(t, result, progress)
	require.Equal(t, 11, s.Backlog(deadLetters, "sub"))
	require.Len(t, s.Entries("elsewhere"), 10)
	require.Len(t, s.Entries(topic), 20)

	ctx, cancel := context.WithCancel(context.Background())
	cfg.Filter = func(*messaging.DeadLetter) bool { cancel(); return true }
	_, err = client.Redrive(ctx, cfg)
	require.ErrorIs(t, err, context.Canceled)
}

func TestDiscardedLettersAreGone(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dialToRedrive(t, s.URL())
	deaden(t, s, client, 20)
	cfg := redriveConfig()
	cfg.Discard, cfg.DryRun = true, true
	cfg.Filter = func(l *messaging.DeadLetter) bool { return len(l.Payload) == 2 }
	result, err := client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 10, Filtered: 10}, result)
	require.Equal(t, 20, s.Backlog(deadLetters, "sub"))

	cfg.DryRun, cfg.Max = false, 3
	result, err = client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, 3, result.Redriven)
	require.Equal(t, 17, s.Backlog(deadLetters, "sub"))
	cfg.Max, cfg.Rate = 0, 1000
	result, err = client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 7, Filtered: 10}, result)
	require.Equal(t, 10, s.Backlog(deadLetters, "sub"))
	require.Len(t, s.Entries(topic), 20, "nothing is published")
}

// One of the topics that dead letters came from is gone, and brokers create none: waiting does not
// help its dead letters, and the others need not wait.
func TestRedriveToATopicThatIsGone(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithAutoCreate(false, 0))
	client := dialToRedrive(t, s.URL())
	cfg := redriveConfig()
	_, err := client.Redrive(testContext(t), cfg)
	require.ErrorIs(t, err, messaging.ErrTopicNotFound, "no dead letters")
	s.CreateTopic(topic, 0)
	s.CreateTopic(deadLetters, 0)
	_, err = client.Redrive(testContext(t), cfg) // makes the subscription
	require.NoError(t, err)
	const gone = "persistent://public/default/gone"
	for _, origin := range []string{gone, topic, gone, topic} {
		s.Publish(deadLetters, fakebroker.Message{Payload: []byte(origin), Properties: map[string]string{
			messaging.PropertyAttempts: "1", messaging.PropertyOriginTopic: origin,
		}})
	}
	result, err := client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 2, NoTopic: 2}, result)
	require.Equal(t, 2, s.Backlog(deadLetters, "sub"))

	cfg.To = gone
	result, err = client.Redrive(testContext(t), cfg)
	require.ErrorIs(t, err, messaging.ErrTopicNotFound)
	require.Zero(t, result)
	cfg.To = topic
	result, err = client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 2}, result)
	require.Zero(t, s.Backlog(deadLetters, "sub"))
}

// What fails again comes to the same dead-letter topic: it must not go round for ever.
func TestRedriveDoesNotCircle(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dialToRedrive(t, s.URL())
	const n = 300 // several batches
	deaden(t, s, client, n)
	r := start(t, client, consumerConfig(topic, messaging.Exclusive), func(context.Context, *messaging.Delivery) error {
		return messaging.Reject(errors.New("again"))
	})
	ctx := testContext(t)
	cfg := redriveConfig()
	chosen := 0
	cfg.Filter = func(l *messaging.DeadLetter) bool {
		if chosen++; chosen == n {
			require.NoError(t, s.WaitEntries(ctx, deadLetters, n+1), "the first have come back")
		}
		return l.Reason != "again"
	}
	result, err := client.Redrive(ctx, cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: n}, result)
	require.NoError(t, s.WaitEntries(ctx, deadLetters, 2*n))
	r.stop(t)
	require.Equal(t, n, s.Backlog(deadLetters, "sub"), "they wait for the next call")
}

// Whatever breaks, a letter is acknowledged only once its copy is stored, and none goes back twice
// while the call lives.
func TestRedriveSurvivesBrokerFaults(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dialImpatient(t, s.URL(), time.Second) // an answer that a closing consumer loses is asked for again
	deaden(t, s, client, 300)
	cfg := redriveConfig()
	messaging.SetRedriveIdle(client, 500*time.Millisecond)
	n := 0
	cfg.Filter = func(l *messaging.DeadLetter) bool {
		if n++; n%70 == 0 {
			s.CloseConsumers(deadLetters)
		}
		return string(l.Payload) != "41"
	}
	s.FailAck(deadLetters, fakebroker.ServiceNotReady, 2)
	result, err := client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 299, Filtered: 1}, result)
	require.Equal(t, 1, s.Backlog(deadLetters, "sub"))
	seen := make(map[string]bool)
	for _, m := range s.Entries(topic)[300:] {
		seen[string(m.Payload)] = true
	}
	require.Len(t, seen, 299, "a publisher may store one twice, and loses none")
}

func TestRedriveRefusals(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dialToRedrive(t, s.URL())
	for want, change := range map[string]func(*messaging.RedriveConfig){
		"topic: must be":        func(c *messaging.RedriveConfig) { c.Topic = "a/b" },
		"subscription: must be": func(c *messaging.RedriveConfig) { c.Subscription = "" },
		"to: must be a name":    func(c *messaging.RedriveConfig) { c.To = "a/b" },
		"to: must not be":       func(c *messaging.RedriveConfig) { c.To = "t-sub-DLQ" },
		"rate: must be":         func(c *messaging.RedriveConfig) { c.Rate = -1 },
		"max: must be":          func(c *messaging.RedriveConfig) { c.Max = -1 },
	} {
		cfg := redriveConfig()
		change(&cfg)
		_, err := client.Redrive(testContext(t), cfg)
		require.ErrorContains(t, err, want)
	}
	deaden(t, s, client, 2)
	r := start(t, client, consumerConfig(deadLetters, messaging.Exclusive), func(context.Context, *messaging.Delivery) error { return nil })
	require.NoError(t, s.WaitConsumers(testContext(t), deadLetters, "sub", 1))
	_, err := client.Redrive(testContext(t), redriveConfig())
	require.ErrorIs(t, err, messaging.ErrSubscriptionBusy)
	require.NoError(t, s.WaitAcked(testContext(t), deadLetters, "sub", 2))
	r.stop(t)

	other := redriveConfig()
	other.Subscription = "mistyped"
	result, err := client.Redrive(testContext(t), other)
	require.NoError(t, err)
	require.Zero(t, result, "a subscription that did not exist has nothing")
	require.Len(t, s.Entries(topic), 2)

	// The reader has acknowledged what there was.
	s.FailProducerCreate(topic, fakebroker.TopicTerminatedError, fakebroker.Always)
	again := start(t, client, consumerConfig(topic, messaging.Exclusive), func(context.Context, *messaging.Delivery) error {
		return messaging.Reject(errors.New("never"))
	})
	s.Publish(topic, fakebroker.Message{Key: "k", Payload: []byte("late")})
	require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", 3))
	again.stop(t)
	_, err = client.Redrive(testContext(t), redriveConfig())
	require.ErrorIs(t, err, messaging.ErrTopicTerminated)
	require.Equal(t, 1, s.Backlog(deadLetters, "sub"), "it stays")
}

// A topic was made again with fewer partitions: the dead letters of a partition that is gone keep
// no others waiting.
func TestRedriveToAPartitionThatIsGone(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithAutoCreate(false, 0))
	client := dialToRedrive(t, s.URL())
	s.CreateTopic(topic, 2)
	s.CreateTopic(deadLetters, 0)
	cfg := redriveConfig()
	cfg.Rate = 1
	_, err := client.Redrive(testContext(t), cfg) // makes the subscription
	require.NoError(t, err)
	for _, origin := range []string{topic + "-partition-3", topic + "-partition-1"} {
		s.Publish(deadLetters, fakebroker.Message{Payload: []byte(origin), Properties: map[string]string{
			messaging.PropertyAttempts: "1", messaging.PropertyOriginTopic: origin,
		}})
	}
	result, err := client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 1, NoTopic: 1}, result)
}

// A broker sends nothing to the first consumer of a redrive: it subscribes once more.
func TestRedriveSubscribesAgain(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dialToRedrive(t, s.URL())
	deaden(t, s, client, 5)
	s.Ignore(fakebroker.OpDispatch, deadLetters, 5)
	result, err := client.Redrive(testContext(t), redriveConfig())
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 5}, result)
}

// A broker takes the copy of a dead letter for a duplicate, and does not say whether that one is
// stored: the dead letter is acknowledged only once a copy is.
func TestRedriveCopyTakenForADuplicateIsSentAgain(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithDeduplication())
	client := dialToRedrive(t, s.URL())
	deaden(t, s, client, 1)
	lost := s.DropReceipts(topic, 1)
	cfg := redriveConfig()
	var result messaging.RedriveResult
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		result, err = client.Redrive(testContext(t), cfg)
	}()
	require.NoError(t, s.WaitEntries(testContext(t), topic, 2))
	lost.Remove()
	s.CutConnections() // the client underneath sends the copy again, under the same sequence id
	<-ended
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 1}, result)
	require.Equal(t, 3, s.Count(topic))
	require.Zero(t, s.Backlog(deadLetters, "sub"))
}

// What Redrive cannot send back stays on the subscription, and is counted by its reason. What the
// filter does not choose is counted as that alone.
func TestRedriveCountsWhatStays(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t, fakebroker.WithMaxMessageSize(1000))
	client := dialToRedrive(t, s.URL())
	deaden(t, s, client, 3)
	letter := func(payload int, truncated, reason string) fakebroker.Message {
		properties := map[string]string{
			messaging.PropertyAttempts: "1", messaging.PropertyOriginTopic: "persistent://public/default/" + topic,
			messaging.PropertyTruncated: truncated, messaging.PropertyReason: reason,
		}
		b := make([]byte, payload)
		_, _ = rand.Read(b) // compression must not help
		return fakebroker.Message{Payload: b, Properties: properties}
	}
	s.Publish(deadLetters, letter(2000, "", ""), fakebroker.Message{Payload: []byte("foreign")}, letter(1, "5", ""), letter(2, "5", "skip"))
	secret := producer(t, rawClient(t, s.URL()), deadLetters, keys(t))
	_, err := secret.Send(testContext(t), &pulsar.ProducerMessage{Payload: []byte("secret"), Properties: letter(0, "", "").Properties})
	require.NoError(t, err)
	cfg := redriveConfig()
	cfg.Filter = func(l *messaging.DeadLetter) bool { return l.Reason != "skip" }
	cfg.DryRun = true
	result, err := client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 4, Filtered: 1, Truncated: 1, Encrypted: 1, Foreign: 1}, result)
	cfg.DryRun = false
	result, err = client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 3, Filtered: 1, Truncated: 1, Encrypted: 1, TooLarge: 1, Foreign: 1}, result)
	require.Equal(t, 5, s.Backlog(deadLetters, "sub"))
	cfg.Discard = true
	result, err = client.Redrive(testContext(t), cfg)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 2, Filtered: 1, Encrypted: 1, Foreign: 1}, result)
	require.Equal(t, 3, s.Backlog(deadLetters, "sub"))
}
