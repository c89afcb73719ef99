package instances

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// pipe passes the records of one Status to another, or fails.
type pipe struct {
	mu        sync.Mutex
	published []*messaging.Record
	fail      error
	reader    *Status
}

func (l *pipe) PublishAsync(_ context.Context, r *messaging.Record, done func(messaging.MessageID, error)) {
	l.mu.Lock()
	err := l.fail
	if err == nil {
		l.published = append(l.published, r)
		l.reader.mu.Lock()
		l.reader.known.take(l.reader.now(), &messaging.Delivery{Key: r.Key, Payload: r.Payload})
		l.reader.mu.Unlock()
	}
	l.mu.Unlock()
	go done(messaging.MessageID{}, err)
}

func (l *pipe) count(prefix string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, r := range l.published {
		if strings.HasPrefix(r.Key, prefix) {
			n++
		}
	}
	return n
}

func newStatus(t *testing.T, name string, roles ...string) *Status {
	t.Helper()
	s, err := NewStatus(nil, model.Topics{}, StatusOptions{Instance: name, Roles: roles})
	require.NoError(t, err)
	return s
}

// tells has one status tell another until the test's bubble, or stop, ends it.
func tells(t *testing.T, from, to *Status) (*pipe, func()) {
	t.Helper()
	l := &pipe{reader: to}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = from.publishWith(ctx, l) // ends with ctx
	}()
	stop := func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	return l, stop
}

func TestInstancesAreHeardOfAndMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, a, b := newStatus(t, "r"), newStatus(t, "a", "engine"), newStatus(t, "b", "engine", "processor")
		active, _ := reader.Active(0)
		require.False(t, active, "there is no engine")
		lineA, stopA := tells(t, a, reader)
		_, stopB := tells(t, b, reader)
		synctest.Wait()
		require.Len(t, reader.Instances(), 2)

		a.SetRevision(7)
		a.SetPartitions("orders", []int{0, 2})
		time.Sleep(2 * changeAfter)
		synctest.Wait()
		require.EqualValues(t, 7, reader.Instances()[0].Revision)
		require.Equal(t, map[string][]int{"orders": {0, 2}}, reader.Instances()[0].Partitions)
		active, behind := reader.Active(7)
		require.False(t, active)
		require.Equal(t, []string{"b"}, behind)
		b.SetRevision(8)
		a.SetPartitions("orders", nil)
		time.Sleep(2 * changeAfter)
		synctest.Wait()
		active, behind = reader.Active(7)
		require.True(t, active)
		require.Empty(t, behind)
		require.Empty(t, reader.Instances()[0].Partitions)

		before := lineA.count("a")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, before+12, lineA.count("a"), "a heartbeat each 5 s")
		require.Len(t, reader.Instances(), 2)
		stopB()
		time.Sleep(expireAfter + time.Second)
		synctest.Wait()
		require.Equal(t, []string{"a"}, []string{reader.Instances()[0].Name})
		require.Len(t, reader.Instances(), 1)
		reader.known.take(reader.now(), &messaging.Delivery{Key: "a", Payload: []byte(`{"format":1,"gone":true}`)})
		require.Empty(t, reader.Instances())
		stopA()
	})
}

func TestStatesAreBoundedInRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, a := newStatus(t, "r"), newStatus(t, "a", "processor")
		line, stop := tells(t, a, reader)
		synctest.Wait()
		state := func(text string) {
			a.SetState("orders", "mail", []byte(text))
		}
		state(`{"n":0}`)
		time.Sleep(statesEvery)
		synctest.Wait()
		require.JSONEq(t, `{"n":0}`, string(reader.States("orders", "mail")["a"]))

		// It changes 1,000 times in 10 s: twice it is told.
		before := line.count("a/orders/mail")
		for i := range 1000 {
			state(fmt.Sprintf(`{"n":%d}`, i+1))
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * heartbeatEvery)
		synctest.Wait()
		require.LessOrEqual(t, line.count("a/orders/mail"), before+4)
		require.JSONEq(t, `{"n":1000}`, string(reader.States("orders", "mail")["a"]))

		// 1,000 that change at once are told at 200 a second.
		begin := line.count("")
		for i := range 1000 {
			a.SetState("orders", fmt.Sprintf("s%d", i), []byte(`{}`))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Less(t, line.count("")-begin, 300)
		time.Sleep(8 * time.Second)
		synctest.Wait()
		require.NotEmpty(t, reader.States("orders", "s999"))

		// What does not change is told again, and so it does not expire.
		time.Sleep(3 * refreshEvery)
		synctest.Wait()
		require.JSONEq(t, `{"n":1000}`, string(reader.States("orders", "mail")["a"]))
		a.SetState("orders", "mail", nil)
		time.Sleep(2 * heartbeatEvery)
		synctest.Wait()
		require.Empty(t, reader.States("orders", "mail"))
		a.mu.Lock()
		require.Len(t, a.published, 1000)
		a.mu.Unlock()

		// What could not be told is told later.
		line.mu.Lock()
		line.fail = messaging.ErrQueueFull
		line.mu.Unlock()
		state(`{"n":1}`)
		time.Sleep(heartbeatEvery)
		line.mu.Lock()
		line.fail = nil
		line.mu.Unlock()
		time.Sleep(3 * heartbeatEvery)
		synctest.Wait()
		require.JSONEq(t, `{"n":1}`, string(reader.States("orders", "mail")["a"]))
		stop()
	})
}

// Telling all states takes longer than others wait for a heartbeat.
func TestManyStatesHoldUpNoHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, a := newStatus(t, "r"), newStatus(t, "a", "engine")
		for i := range model.MaxSubscribers {
			a.SetState("bus", fmt.Sprint("s", i), []byte(`{"delivering":true}`))
		}
		l, _ := tells(t, a, reader)
		time.Sleep(time.Second)
		for range 60 {
			time.Sleep(time.Second)
			instances := reader.Instances()
			require.Len(t, instances, 1)
			require.LessOrEqual(t, reader.now().Sub(instances[0].Seen), heartbeatEvery+time.Second)
		}
		require.Equal(t, model.MaxSubscribers, l.count("a/"))
	})
}

func TestInstancesExpire(t *testing.T) {
	table, now := make(instanceTable), time.Now()
	for _, text := range []string{"", "{", `{"format":0}`, `[]`} {
		table.take(now, &messaging.Delivery{Key: "x", Payload: []byte(text)})
	}
	require.Empty(t, table, "what cannot be read is passed over")
	table.take(now, &messaging.Delivery{Key: "a", Payload: []byte(`{"format":1,"instance":{"started":"2026-01-02T15:04:05Z"}}`)})
	require.Len(t, table.instances(now.Add(expireAfter)), 1)
	require.Empty(t, table.instances(now.Add(expireAfter+time.Second)))
	require.Empty(t, table)
}

// A process that takes the name of another one has none of its states.
func TestAnInstanceThatIsStartedAgainHasNoStates(t *testing.T) {
	b, now := make(instanceTable), time.Now()
	take := func(key, text string) { b.take(now, &messaging.Delivery{Key: key, Payload: []byte(text)}) }
	take("a", `{"format":1,"instance":{"started":"2026-01-02T15:04:05Z"}}`)
	take("a/orders/mail", `{"format":1,"state":{}}`)
	take("a", `{"format":1,"instance":{"started":"2026-01-02T15:04:05Z","revision":2}}`)
	require.Len(t, b.states(now, "orders/mail"), 1)
	take("a", `{"format":1,"instance":{"started":"2026-01-02T15:04:06Z"}}`)
	require.Empty(t, b.states(now, "orders/mail"))
	require.Len(t, b.instances(now), 1)
}

func TestAnInstanceNeedsAName(t *testing.T) {
	for _, name := range []string{"", "a/b", strings.Repeat("x", 256)} {
		_, err := NewStatus(nil, model.Topics{}, StatusOptions{Instance: name})
		require.ErrorContains(t, err, "the name of the instance must have")
	}
}
