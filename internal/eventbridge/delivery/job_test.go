package delivery

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// ended waits for the end of a subscriber's job.
func (w *fixture) ended(p *Processor, name string) (j Job) {
	w.t.Helper()
	w.eventually("the job ends", func() bool {
		var err error
		j, err = p.Job(busName, name)
		require.NoError(w.t, err)
		return j.State != JobRunning
	})
	return j
}

// jobOf is the latest job of a subscriber that the processor has run.
func (p *Processor) jobOf(uid string) *job {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.jobs[uid]
}

// left are the dead letters that a subscriber, or the bus, has. A busy broker may not answer in time:
// it is asked again then.
func (w *fixture) left(p *Processor, name string) (deadLetters []DeadLetter) {
	w.t.Helper()
	w.eventually("the broker says which dead letters there are", func() (known bool) {
		var err error
		deadLetters, err = p.DeadLetters(w.t.Context(), busName, name, 100)
		return err == nil
	})
	return deadLetters
}

// What nobody wants is removed, of a subscriber and of a bus, and nothing else is.
func TestDeadLettersAreDiscarded(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderNone)
	s.Delivery.Retry.MaxAttempts = 1
	w := newFixture(t, 1, s)
	w.target("s", func(_ context.Context, d target.Delivery) target.Result {
		return target.Result{Verdict: target.Refused, Err: fmt.Errorf("no %s here", d.Event.ID)}
	})
	p, _ := w.processor(testConfig())
	w.send("s", "k", slices.Concat(numbered("e", 20), numbered("x", 10))...)
	w.eventually("all are dead letters", func() bool { return len(w.deadLetters("s")) == 30 })
	for _, dry := range []bool{true, false} {
		_, err := p.Discard(t.Context(), busName, "s", RedriveOptions{Reason: "no x", DryRun: dry})
		require.NoError(t, err)
		j := w.ended(p, "s")
		require.Equal(t, []any{KindDiscard, JobDone, int64(30), int64(10), int64(0)}, []any{j.Kind, j.State, j.Read, j.Chosen, j.Published}, j.Error)
		if dry {
			require.Zero(t, j.Discarded)
			require.Len(t, w.left(p, "s"), 30)
		} else {
			require.EqualValues(t, 10, j.Discarded)
		}
	}
	left := w.left(p, "s")
	require.Len(t, left, 20, "the others stay")
	for _, l := range left {
		require.Contains(t, l.Reason, "no e")
	}
	_, err := p.Discard(t.Context(), busName, "unknown", RedriveOptions{})
	require.ErrorIs(t, err, ErrNoSubscriber)

	// Those of the bus: what an engine refuses, as its consumer stores it.
	_, err = p.Discard(t.Context(), "unknown", "", RedriveOptions{})
	require.ErrorIs(t, err, ErrNoSubscriber)
	require.Empty(t, w.left(p, ""), "there has been none")
	topic := w.topics.BusDeadLetter(busName)
	require.NoError(t, w.client.EnsureSubscription(t.Context(), topic, model.DeliverSubscription, messaging.StartEarliest))
	out, err := w.client.Publisher(t.Context(), topic, messaging.Business())
	require.NoError(t, err)
	for _, payload := range []string{`{"id":"1"}`, "\xff no JSON"} {
		require.NoError(t, out.Publish(t.Context(), &messaging.Record{Payload: []byte(payload), Properties: map[string]string{
			messaging.PropertyReason: "cannot be matched", messaging.PropertyAttempts: "1", messaging.PropertyOriginTopic: w.topics.Events(busName),
			messaging.PropertySubscription: model.EngineSubscription, messaging.PropertyFirstFailedAt: time.Now().UTC().Format(time.RFC3339Nano),
		}}))
	}
	require.NoError(t, out.Close(t.Context()))
	deadLetters := w.left(p, "")
	require.Len(t, deadLetters, 2)
	require.JSONEq(t, `{"id":"1"}`, string(deadLetters[0].Event))
	require.Equal(t, "cannot be matched", deadLetters[0].Reason)
	require.Nil(t, deadLetters[1].Event)
	require.Equal(t, "\xff no JSON", string(deadLetters[1].Bytes))
	_, err = p.Discard(t.Context(), busName, "", RedriveOptions{})
	require.NoError(t, err)
	j := w.ended(p, "")
	require.Equal(t, []any{JobDone, int64(2), int64(2)}, []any{j.State, j.Read, j.Discarded}, j.Error)
	w.eventually("none is left", func() bool {
		deadLetters, err := p.DeadLetters(t.Context(), busName, "", 10)
		return err == nil && len(deadLetters) == 0
	})
}

func TestDeadLettersGoBack(t *testing.T) {
	t.Parallel()
	for _, order := range []model.Order{model.OrderNone, model.OrderGroup} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			s := newSubscriber("s", order)
			s.Delivery.Retry.MaxAttempts = 1
			s.Delivery.Breaker.Failures = 0
			w := newFixture(t, 1, s)
			down := atomic.Bool{}
			down.Store(true)
			f := w.target("s", func(_ context.Context, d target.Delivery) target.Result {
				switch {
				case !down.Load():
					return delivered()
				case strings.HasPrefix(d.Event.ID, "x"):
					return target.Result{Verdict: target.Refused, Err: fmt.Errorf("no %s here", d.Event.ID)}
				}
				return retryResult()
			})
			p, _ := w.processor(testConfig())
			_, err := p.Job(busName, "s")
			require.ErrorIs(t, err, ErrNoJob)
			_, err = p.Redrive(t.Context(), busName, "unknown", RedriveOptions{})
			require.ErrorIs(t, err, ErrNoSubscriber)
			ids := slices.Concat(numbered("e", 30), numbered("x", 10))
			w.send("s", "k", ids...)
			w.eventually("all are dead letters", func() bool { return len(w.deadLetters("s")) == 40 })
			down.Store(false)

			j, err := p.Redrive(t.Context(), busName, "s", RedriveOptions{Reason: " here", DryRun: true})
			require.NoError(t, err)
			assert.Equal(t, JobRunning, j.State)
			j = w.ended(p, "s")
			assert.Equal(t, []any{JobDone, int64(40), int64(10), int64(0)}, []any{j.State, j.Read, j.Chosen, j.Published}, j.Error)

			// It takes 1.8 s, so that it still runs when the next one is asked for.
			_, err = p.Redrive(t.Context(), busName, "s", RedriveOptions{Reason: "no x", Type: "a", From: time.Now().Add(-time.Hour), Rate: 5})
			require.NoError(t, err)
			_, err = p.Redrive(t.Context(), busName, "s", RedriveOptions{})
			require.ErrorIs(t, err, ErrJobRunning)
			j = w.ended(p, "s")
			assert.Equal(t, []any{JobDone, int64(10)}, []any{j.State, j.Published}, j.Error)
			w.gets(f, ids[30:])

			_, err = p.Redrive(t.Context(), busName, "s", RedriveOptions{To: time.Now().Add(-time.Hour)})
			require.NoError(t, err)
			assert.Zero(t, w.ended(p, "s").Published)
			began := time.Now()
			_, err = p.Redrive(t.Context(), busName, "s", RedriveOptions{Rate: 20})
			require.NoError(t, err)
			assert.EqualValues(t, 30, w.ended(p, "s").Published)
			assert.Greater(t, time.Since(began), time.Second)
			w.gets(f, slices.Concat(ids[30:], ids[:30]))
		})
	}
}

func TestPastEventsComeAgain(t *testing.T) {
	t.Parallel()
	for _, order := range []model.Order{model.OrderNone, model.OrderGroup} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			s := newSubscriber("s", order)
			s.Rules[0].Pattern = []byte(`{"type":["a"]}`)
			w := newFixture(t, 2, s)
			f := w.target("s", nil)
			p, _ := w.processor(testConfig())
			in, err := w.client.Publisher(t.Context(), w.topics.Events(busName), messaging.Business())
			require.NoError(t, err)
			publish := func(ids []string, kind string) {
				for i, id := range ids {
					key := fmt.Sprint("k", i%5)
					require.NoError(t, in.Publish(t.Context(), &messaging.Record{Key: key, Payload: testEvent(id, kind, key)}))
				}
			}
			early, wanted, late := numbered("early", 50), numbered("wanted", 100), numbered("late", 50)
			publish(early, "a")
			from := nextMillisecond()
			publish(wanted, "a")
			publish(numbered("other", 30), "b")
			to := nextMillisecond()
			publish(late, "a")

			_, err = p.Replay(t.Context(), busName, "s", ReplayOptions{From: from, To: to, DryRun: true})
			require.NoError(t, err)
			j := w.ended(p, "s")
			assert.Equal(t, []any{JobDone, int64(130), int64(100), int64(0)}, []any{j.State, j.Read, j.Chosen, j.Published}, j.Error)
			_, err = p.Replay(t.Context(), busName, "s", ReplayOptions{From: from, To: to})
			require.NoError(t, err)
			j = w.ended(p, "s")
			assert.EqualValues(t, 100, j.Published, j.Error)
			w.gets(f, wanted)
			if order.Ordered() {
				last := map[int]int{}
				for _, id := range f.delivered() {
					var n int
					_, err := fmt.Sscanf(id, "wanted%d", &n)
					require.NoError(t, err)
					before, ok := last[n%5]
					assert.True(t, !ok || before < n, "of a key in their order")
					last[n%5] = n
				}
			}

			_, err = p.Replay(t.Context(), busName, "s", ReplayOptions{Rate: 2})
			require.NoError(t, err)
			w.eventually("it has begun", func() bool {
				j, err := p.Job(busName, "s")
				return err == nil && j.Published > 1
			})
			_, err = p.CancelJob(t.Context(), busName, "s")
			require.NoError(t, err)
			j = w.ended(p, "s")
			assert.Equal(t, JobCanceled, j.State)
			assert.Less(t, j.Published, int64(100))
		})
	}
}

// The job of a deleted subscriber ends: nobody could end it, and it would keep the topics from
// being removed.
func TestTheJobOfADeletedSubscriberEnds(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, newSubscriber("s", model.OrderGroup), newSubscriber("other", model.OrderGroup))
	w.target("s", nil)
	w.target("other", nil)
	p, _ := w.processor(testConfig())
	in, err := w.client.Publisher(t.Context(), w.topics.Events(busName), messaging.Business())
	require.NoError(t, err)
	for _, id := range numbered("e", 50) {
		require.NoError(t, in.Publish(t.Context(), &messaging.Record{Payload: testEvent(id, "a", "")}))
	}
	jobs := map[string]*job{}
	for _, name := range []string{"s", "other"} {
		_, err = p.Replay(t.Context(), busName, name, ReplayOptions{Rate: 0.2})
		require.NoError(t, err)
		jobs[name] = p.jobOf("u-" + name)
	}
	w.eventually("it has begun", func() bool { return jobs["s"].now().Published > 0 })
	w.keepOnly("other")
	w.eventually("it ends", func() bool { return jobs["s"].now().State == JobCanceled })
	assert.Nil(t, p.jobOf("u-s"))
	assert.Equal(t, JobRunning, jobs["other"].now().State)
}

// A job that was ended does not wait for brokers that are unavailable: it could not be begun anew,
// and the process would not stop.
func TestAReplayEndsWithoutBrokers(t *testing.T) {
	t.Parallel()
	url, server, line := proxy.Pulsar(t)
	w := newFixtureOn(t, server, 1, newSubscriber("s", model.OrderGroup))
	w.target("s", nil)
	cfg := testConfig()
	cfg.StopTimeout = time.Second // a job that was canceled may take as long until it ends
	p, _ := w.processorOf(w.dial(messaging.Config{URL: url, ListenerName: proxy.Listener}), cfg)
	in, err := w.client.Publisher(t.Context(), w.topics.Events(busName), messaging.Business())
	require.NoError(t, err)
	for _, id := range numbered("e", 200) {
		require.NoError(t, in.Publish(t.Context(), &messaging.Record{Payload: testEvent(id, "a", "")}))
	}
	_, err = p.Replay(t.Context(), busName, "s", ReplayOptions{Rate: 20})
	require.NoError(t, err)
	j := p.jobOf("u-s")
	w.eventually("it has begun", func() bool { return j.now().Published > 0 })
	line.Cut()
	t.Cleanup(func() { assert.NoError(t, line.Restore()) })
	before, same := int64(-1), 0
	w.eventually("something waits for the brokers", func() bool {
		now := j.now()
		if same++; now.Published != before || now.Read == now.Published {
			before, same = now.Published, 0
		}
		return same > 50
	})
	_, err = p.CancelJob(t.Context(), busName, "s")
	require.NoError(t, err)
	w.eventually("it ends", func() bool { return j.now().State == JobCanceled })
}

// A replay up to the present has all that the topic holds, whatever the clocks of those that
// publish say.
func TestAReplayUpToThePresentGoesByNoClock(t *testing.T) {
	ahead := &messaging.Delivery{
		PublishTime: time.Now().Add(10 * time.Minute), Payload: testEvent("e", "a", ""),
	}
	s := storetest.Snapshot(t, 1, []model.Bus{{Name: busName, Partitions: 1}}, []model.Subscriber{func() model.Subscriber {
		s := newSubscriber("s", model.OrderNone)
		s.Bus, s.UID, s.Revision = busName, "u", 1
		return s
	}()}).Subscriber(busName, "s")
	for _, toEnd := range []bool{false, true} {
		r := newReplay(&job{}, s, ReplayOptions{To: time.Now()}, toEnd)
		require.NoError(t, r.take(t.Context(), ahead))
		assert.Equal(t, toEnd, r.job.now().Chosen == 1)
	}
}

func TestANewSubscriberStartsInThePast(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 2)
	in, err := w.client.Publisher(t.Context(), w.topics.Events(busName), messaging.Business())
	require.NoError(t, err)
	w.engine(w.client)
	p, _ := w.processor(testConfig())
	publish := func(ids []string) {
		for i, id := range ids {
			key := fmt.Sprint("k", i%5)
			require.NoError(t, in.Publish(t.Context(), &messaging.Record{Key: key, Payload: testEvent(id, "a", key)}))
		}
	}
	old, middle, during := numbered("old", 20), numbered("middle", 20), numbered("during", 20)
	publish(old)
	noon := nextMillisecond()
	publish(middle)
	w.eventually("they are matched", func() bool { // what waits for the engine is not past for it
		n, err := w.client.Topic(w.topics.Events(busName)).Subscription(model.EngineSubscription).Backlog(t.Context())
		return err == nil && n == 0
	})
	want := map[string][]string{"earliest": slices.Concat(old, middle, during), "time": slices.Concat(middle, during), "latest": during}
	targets := map[string]*fakeTarget{}
	for name := range want {
		targets[name] = w.target(name, nil)
		s := newSubscriber(name, model.OrderGroup)
		s.Created, s.Start = time.Now(), name
		if name == "time" {
			s.Start = noon.Format(time.RFC3339Nano)
		}
		w.put(s)
		j, began, err := p.Start(t.Context(), busName, name)
		require.NoError(t, err)
		assert.Equal(t, name != "latest", began)
		if began {
			assert.Equal(t, KindReplay, j.Kind)
		}
	}
	publish(during)
	for name, ids := range want {
		w.eventually(name, func() bool {
			got := targets[name].delivered()
			return !slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(got, id) })
		})
		for _, id := range targets[name].delivered() {
			assert.Contains(t, ids, id, name)
		}
	}
	_, _, err = p.Start(t.Context(), busName, "unknown")
	require.ErrorIs(t, err, ErrNoSubscriber)
}

// letter is a message in a subscriber's topic of dead letters.
type letter struct {
	payload    []byte
	reason     string // empty: it is not one of Eventbridge's dead letters
	properties map[string]string
}

// storeDeadLetters stores messages in a subscriber's topic of dead letters.
func (w *fixture) storeDeadLetters(name string, letters ...letter) {
	w.t.Helper()
	topic := w.topics.DeadLetter(w.sub(name))
	require.NoError(w.t, w.client.EnsureSubscription(w.t.Context(), topic, model.DeliverSubscription, messaging.StartEarliest))
	profile := messaging.Business()
	profile.BatchRecords, profile.Compression = 1, messaging.ZSTD
	out, err := w.client.Publisher(w.t.Context(), topic, profile)
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, out.Close(w.t.Context())) }()
	for _, l := range letters {
		properties := maps.Clone(l.properties)
		if l.reason != "" {
			if properties == nil {
				properties = make(map[string]string)
			}
			properties[messaging.PropertyReason], properties[messaging.PropertyAttempts] = l.reason, "1"
			properties[messaging.PropertyOriginTopic] = w.topics.Send(w.sub(name))
		}
		require.NoError(w.t, out.Publish(w.t.Context(), &messaging.Record{Payload: l.payload, Properties: properties}))
	}
}

// large is an event that takes more than a message may have unless ZSTD compresses it.
func large(id string) []byte {
	data := make([]byte, 4<<20)
	_, _ = rand.Read(data)
	return fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/test","type":"a","data":"%x"}`, id, data)
}

// What a job cannot send again, or remove, stays, and the job says how much and why.
func TestAJobSaysWhatStays(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, newSubscriber("s", model.OrderNone))
	f := w.target("s", nil)
	p, _ := w.processor(testConfig())
	w.storeDeadLetters("s",
		letter{payload: []byte("somebody else's")},
		letter{payload: testEvent("e0", "a", ""), reason: "chosen"},
		letter{payload: testEvent("x", "a", ""), reason: "other"},
		letter{payload: large("large"), reason: "chosen"},
		letter{payload: []byte(`{"specversion":"1.0"`), reason: "chosen", properties: map[string]string{messaging.PropertyTruncated: "100"}},
		letter{payload: testEvent("e1", "a", ""), reason: "chosen"},
	)
	o := RedriveOptions{Reason: "chosen", DryRun: true}
	_, err := p.Redrive(t.Context(), busName, "s", o)
	require.NoError(t, err)
	j := w.ended(p, "s")
	require.Equal(t, []any{JobDone, Counts{Read: 6, Chosen: 5, Left: Left{Foreign: 1, Truncated: 1}}}, []any{j.State, j.Counts}, j.Error)

	o.DryRun = false
	_, err = p.Redrive(t.Context(), busName, "s", o)
	require.NoError(t, err)
	j = w.ended(p, "s")
	require.Equal(t, []any{JobDone, Counts{Read: 6, Chosen: 5, Published: 2, Left: Left{TooLarge: 1, Foreign: 1, Truncated: 1}}}, []any{j.State, j.Counts}, j.Error)
	w.gets(f, []string{"e0", "e1"})

	_, err = p.Discard(t.Context(), busName, "s", o)
	require.NoError(t, err)
	j = w.ended(p, "s")
	require.Equal(t, []any{JobDone, Counts{Read: 4, Chosen: 3, Discarded: 2, Left: Left{Foreign: 1}}}, []any{j.State, j.Counts}, j.Error)
	dead := w.client.Topic(w.topics.DeadLetter(w.sub("s"))).Subscription(model.DeliverSubscription)
	w.eventually("the others stay", func() bool {
		n, err := dead.Backlog(t.Context())
		return err == nil && n == 2
	})
}

// Of a replay, an event that no broker takes as a copy keeps back no other.
func TestAReplaySaysWhatItCannotCopy(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, newSubscriber("s", model.OrderNone))
	f := w.target("s", nil)
	p, _ := w.processor(testConfig())
	w.fill("e0")
	profile := messaging.Business()
	profile.BatchRecords, profile.Compression = 1, messaging.ZSTD // copies of a replay are not compressed
	in, err := w.client.Publisher(t.Context(), w.topics.Events(busName), profile)
	require.NoError(t, err)
	for _, payload := range [][]byte{large("large"), []byte("no event")} {
		require.NoError(t, in.Publish(t.Context(), &messaging.Record{Payload: payload}))
	}
	require.NoError(t, in.Close(t.Context()))
	w.fill("e1")
	for dry, want := range map[bool]Counts{
		true:  {Read: 4, Chosen: 4, Left: Left{Foreign: 1}},
		false: {Read: 4, Chosen: 4, Published: 2, Left: Left{TooLarge: 1, Foreign: 1}},
	} {
		_, err = p.Replay(t.Context(), busName, "s", ReplayOptions{DryRun: dry})
		require.NoError(t, err)
		j := w.ended(p, "s")
		require.Equal(t, []any{JobDone, want}, []any{j.State, j.Counts}, j.Error)
	}
	w.gets(f, []string{"e0", "e1"})
}

// The counts of a job that fails, or is canceled, are those of what it has done.
func TestTheCountsOfAJobThatDoesNotGetToItsEnd(t *testing.T) {
	t.Parallel()
	server := stack.Pulsar(t)
	w := newFixtureOn(t, server, 1, newSubscriber("s", model.OrderNone))
	w.target("s", nil)
	p, _ := w.processor(testConfig())
	letters := []letter{{payload: []byte("somebody else's")}}
	for _, id := range numbered("e", 50) {
		letters = append(letters, letter{payload: testEvent(id, "a", ""), reason: "no"})
	}
	w.storeDeadLetters("s", letters...)
	_, err := p.Redrive(t.Context(), busName, "s", RedriveOptions{Rate: 4})
	require.NoError(t, err)
	w.eventually("it has begun", func() bool {
		j, err := p.Job(busName, "s")
		return err == nil && j.Published > 0
	})
	_, err = p.CancelJob(t.Context(), busName, "s")
	require.NoError(t, err)
	j := w.ended(p, "s")
	require.Equal(t, []any{JobCanceled, Left{Foreign: 1}, j.Published + 1}, []any{j.State, j.Left, j.Chosen})

	require.NoError(t, server.Admin(t.Context(), "POST", "/admin/v2/persistent/"+strings.TrimPrefix(w.topics.Replay(w.sub("s")), "persistent://")+"/terminate", nil, nil))
	_, err = p.Redrive(t.Context(), busName, "s", RedriveOptions{})
	require.NoError(t, err)
	j = w.ended(p, "s")
	require.Equal(t, []any{JobFailed, Counts{Read: 1, Chosen: 1, Left: Left{Foreign: 1}}}, []any{j.State, j.Counts})
	require.Contains(t, j.Error, "terminated")
}
