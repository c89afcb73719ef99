package outbox

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// listening is a loader with Off that listens to a real Redis; the test takes what it has heard.
type listening struct {
	*loader
	t     *testing.T
	begin wire.ID // the topic's end
	// early is called between the subscription and the first look at the stream.
	early func()
	stop  func()
}

func newListening(t *testing.T, server *stack.RedisServer, s *Shipper) *listening {
	t.Helper()
	if s == nil {
		db := server.Client(t)
		require.NoError(t, script.Load(t.Context(), db))
		l := redislib.New(db, redislib.Config{Zone: "a", Others: []string{"b"}, Default: "lww", Policies: []redislib.Policy{{Prefix: "c:", Policy: "counter"}}, Off: true})
		s = &Shipper{cfg: Config{Off: true}, redis: db, library: l, log: zaptest.NewLogger(t), held: newQueue()}
	}
	return &listening{loader: &loader{Shipper: s}, t: t}
}

// start listens as a session does, behind begin, and opens Redis with open.
func (l *listening) start(open bool) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	live, err := subscribe(ctx, l.redis.Options(), l.library.Channel())
	require.NoError(l.t, err)
	if open {
		state, err := l.library.ReadState(ctx)
		require.NoError(l.t, err)
		_, err = l.library.Open(ctx, state, 1, wire.ID{})
		require.NoError(l.t, err)
	}
	if l.early != nil {
		l.early()
	}
	l.packer.Tail.Last = l.begin
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.listen(ctx, live, l.begin)
	}()
	l.stop = func() {
		cancel()
		<-ended
	}
	l.t.Cleanup(l.stop)
}

func (l *listening) do(command string, args ...any) {
	l.t.Helper()
	err := l.redis.Do(l.t.Context(), append([]any{"FCALL", "sonic_" + command, 1, l.library.Outbox(), "0"}, args...)...).Err()
	if err != redis.Nil { //nolint:errorlint // Redis' own
		require.NoError(l.t, err)
	}
}

// effects takes n effects, beats aside, and returns their keys.
func (l *listening) effects(n int) (keys []string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), await.Patience)
	defer cancel()
	for len(keys) < n {
		entries, err := l.held.take(ctx, false)
		require.NoError(l.t, err, "%v", keys)
		for i := range entries {
			require.Positive(l.t, entries[i].ID.Compare(l.begin), "ids rise")
			l.begin = entries[i].ID
			effects, err := wire.Effects(entries[i].Effects)
			require.NoError(l.t, err)
			for _, e := range effects {
				if e[0] != "_" {
					keys = append(keys, e[0]+" "+e[3])
				}
			}
		}
		require.NoError(l.t, l.library.Shipped(ctx, l.begin, l.held.publishedUpTo(l.begin)))
	}
	return keys
}

func (l *listening) unsent() redislib.Unsent {
	l.t.Helper()
	u, err := l.library.Unsent(l.t.Context())
	require.NoError(l.t, err)
	return u
}

func TestEffectsAreHeardInTheirOrder(t *testing.T) {
	t.Parallel()
	l := newListening(t, stack.PrivateRedis(t), nil)
	l.start(true)
	var want []string
	for i := range 200 {
		value := "v"
		if i%50 == 49 { // goes by way of the stream
			value = strings.Repeat("x", 300<<10)
		}
		l.do("set", fmt.Sprint("k", i), value)
		want = append(want, fmt.Sprint("S k", i))
	}
	assert.Equal(t, want, l.effects(200))
	assert.Zero(t, l.redis.XLen(t.Context(), l.library.Outbox()).Val(), "what is stored is removed")
	state, err := l.library.ReadState(t.Context())
	require.NoError(t, err)
	assert.Equal(t, l.begin, state.Last, "the stream keeps the clock")
	assert.Equal(t, redislib.Unsent{Published: 196, Stored: 196}, l.unsent(), "what is in the stream does not count")

	// Nobody listens for a while: what is written is noted, and its state is shipped by who comes.
	l.stop()
	require.Eventually(t, func() bool {
		return l.redis.Do(t.Context(), "PUBSUB", "SHARDNUMSUB", l.library.Channel()).String() == "PUBSUB SHARDNUMSUB {sonic:0}live: [{sonic:0}live 0]"
	}, await.Patience, 5*time.Millisecond)
	l.do("set", "k1", "unheard")
	l.do("incrby", "c:n", 5)
	l.do("incrby", "c:n", 2)
	assert.Equal(t, redislib.Unsent{Noted: 2, Published: 196, Stored: 196}, l.unsent())
	l.start(false)
	_, left, err := l.library.Resend(t.Context(), 100)
	require.NoError(t, err)
	assert.Zero(t, left)
	assert.ElementsMatch(t, []string{"S k1", "I c:n"}, l.effects(2))
	assert.Zero(t, l.unsent().Lost)
}

// What is written while a process takes over comes in its order, also what goes by way of the
// stream, which the process looks through first.
func TestEffectsOfATakeoverAreHeardInTheirOrder(t *testing.T) {
	t.Parallel()
	server := stack.PrivateRedis(t)
	first := newListening(t, server, nil)
	first.start(true)
	first.stop()
	require.Eventually(t, func() bool {
		return first.redis.PubSubShardNumSub(t.Context(), first.library.Channel()).Val()[first.library.Channel()] == 0
	}, await.Patience, 5*time.Millisecond)

	second := newListening(t, server, nil)
	second.early = func() {
		second.do("set", "small", "v")
		second.do("set", "large", strings.Repeat("x", 300<<10))
		second.do("set", "last", "v")
		second.do("set", "large2", strings.Repeat("x", 300<<10))
	}
	second.start(false)
	assert.Equal(t, []string{"S small", "S large", "S last", "S large2"}, second.effects(4)[:4])
	assert.Zero(t, second.unsent().Lost)
}

// A process that held effects ends: the next one counts them as lost, says so, and goes on.
func TestWhatAnotherProcessHeldIsCounted(t *testing.T) {
	t.Parallel()
	server := stack.PrivateRedis(t)
	first := newListening(t, server, nil)
	first.start(true)
	for i := range 10 {
		first.do("set", fmt.Sprint("k", i), "v")
	}
	first.effects(10)
	for i := range 7 {
		first.do("set", fmt.Sprint("lost", i), "v")
	}
	require.Eventually(t, func() bool {
		return first.held.size() > 0 && first.held.syncReceived(redislib.Unsent{Published: 99}) == 17
	}, await.Patience, time.Millisecond)
	first.stop()
	second := newListening(t, server, nil)
	second.begin = first.begin
	second.start(true)
	second.do("set", "next", "v")
	assert.Equal(t, []string{"S next"}, second.effects(1))
	assert.EqualValues(t, 7, second.unsent().Lost)
}

// A session ends, for Pulsar is unavailable or this process stops: what Redis has published by then is
// heard, and what is written later is noted.
func TestWhatIsOnItsWayAtTheEndIsHeard(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := newListening(t, stack.PrivateRedis(t), nil)
	value := strings.Repeat("x", 60_000)
	heard, written := map[string]bool{}, 0
	take := func() {
		for _, key := range l.effects(1) {
			heard[key] = true
		}
	}
	for round := range 5 {
		l.start(round == 0)
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
				}
				pipe := l.redis.Pipeline()
				for range 20 {
					pipe.Do(ctx, "FCALL", "sonic_set", 1, l.library.Outbox(), "0", fmt.Sprint("k", written), value)
					written++
				}
				_, err := pipe.Exec(ctx)
				assert.NoError(t, err)
			}
		}()
		require.Eventually(t, func() bool { return l.held.size() > 1<<20 }, await.Patience, 100*time.Microsecond)
		l.stop()
		close(stop)
		<-done
		u := l.unsent()
		assert.Equal(t, u.Published, l.held.syncReceived(u))
		require.NoError(t, l.library.SetDropping(ctx, false, redislib.Bound{})) // there may have been too much
		for left := int64(1); left > 0; {                                       // it waits in the stream for who listens next
			var err error
			_, left, err = l.library.Resend(ctx, 1000)
			require.NoError(t, err)
		}
		for l.held.count() > 0 {
			take()
		}
	}
	l.start(false)
	l.do("set", "next", "v")
	for !heard["S next"] {
		take()
	}
	for n := range written {
		assert.Contains(t, heard, fmt.Sprint("S k", n))
	}
	assert.Zero(t, l.unsent().Lost)
}

// The state of what was dropped is in the stream until it is stored: a process that ends with it
// takes nothing along. The same of questions of zones, and their answers.
func TestWhatMustNotBeLostIsInTheStream(t *testing.T) {
	t.Parallel()
	server := stack.PrivateRedis(t)
	first := newListening(t, server, nil)
	first.start(true)
	first.stop()
	for i := range 10 {
		first.do("set", fmt.Sprint("k", i), "v")
	}
	require.EqualValues(t, 10, first.unsent().Noted)
	first.start(false)
	_, left, err := first.library.Resend(t.Context(), 100)
	require.NoError(t, err)
	require.Zero(t, left)
	require.Eventually(t, func() bool { return first.held.size() > 0 }, await.Patience, time.Millisecond)
	first.stop()

	second := newListening(t, server, nil)
	second.begin = first.begin
	second.start(true)
	second.do("set", "next", "v")
	heard := second.effects(11)
	assert.Equal(t, "S next", heard[10])
	assert.Contains(t, heard, "S k7")
	assert.LessOrEqual(t, second.unsent().Lost, int64(1), "a beat, at most")
}

// A process with outbox off ends, and the next one ships the stream: it counts what the first one
// held, once.
func TestWhatWasHeldIsCountedByWhoShipsTheStream(t *testing.T) {
	t.Parallel()
	server := stack.PrivateRedis(t)
	first := newListening(t, server, nil)
	first.start(true)
	for i := range 7 {
		first.do("set", fmt.Sprint("lost", i), "v")
	}
	first.stop()
	second := newListening(t, server, &Shipper{cfg: Config{}, redis: first.redis, library: first.library, log: zaptest.NewLogger(t), held: newQueue()})
	for range 2 {
		require.NoError(t, second.countUnstored(t.Context()))
		assert.EqualValues(t, 7, second.unsent().Lost)
	}
}

// What is stored while a session ends is told, too: who comes next does not take it for lost.
func TestWhatIsStoredLastIsTold(t *testing.T) {
	t.Parallel()
	l := newListening(t, stack.PrivateRedis(t), nil)
	l.start(true)
	for i := range 7 {
		l.do("set", fmt.Sprint("k", i), "v")
	}
	require.Eventually(t, func() bool { return l.held.count() == 7 }, await.Patience, time.Millisecond)
	l.stop()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	trim := newTrimmer(l.library)
	entries, err := l.held.take(ended, false)
	require.NoError(t, err, "it is stored")
	end := entries[len(entries)-1].ID
	trim.trimTo(end, l.held.publishedUpTo(end))
	_ = trim.run(ended) // it has ended
	trim.reportLast(ended, 1)
	assert.Equal(t, redislib.Unsent{Published: 7, Stored: 7}, l.unsent())
	_, err = l.held.take(ended, false)
	assert.ErrorIs(t, err, context.Canceled)
}

// A session begins with what one before it has heard, of which the stream has a part, too: that is
// stored once. Store takes it at once, before listen looks at the stream.
func TestWhatIsHeldAndInTheStreamIsStoredOnce(t *testing.T) {
	t.Parallel()
	s, db, _ := shipper(t)
	s.cfg.Off = true
	s.library = redislib.New(db, redislib.Config{Zone: "a", Others: []string{"b"}, Default: "lww", Off: true})
	require.NoError(t, script.Load(t.Context(), db))
	l := listening{loader: prepared(t, s), t: t}
	l.start(true)
	l.do("set", "small", "v")
	l.effects(1) // it listens
	l.do("set", "large", strings.Repeat("x", 300<<10))
	require.Eventually(t, func() bool { return l.held.count() == 1 }, await.Patience, time.Millisecond)
	l.stop()
	large := l.held.lastID()

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.session(ctx) }()
	assert.Eventually(t, func() bool { return len(ended) > 0 || s.Status().Stored.Compare(large) > 0 }, await.Patience, time.Millisecond, "a beat is stored behind it")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)

	earliest := messaging.Earliest()
	r, err := s.client.Reader(t.Context(), messaging.ReaderConfig{Topic: l.writer.Topic(), Name: "test", From: &earliest})
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close(context.Background()) })
	messages := 0
	_, err = r.ReadToEnd(t.Context(), func(_ context.Context, d *messaging.Delivery) error {
		h, err := wire.ParseHeader(d.Properties)
		if err == nil {
			messages++
			assert.Positive(t, h.First.Compare(h.Prev), "%s is stored again", h.First)
		}
		return err
	})
	require.NoError(t, err)
	assert.GreaterOrEqual(t, messages, 2)
}

// More waits than memory is for: Redis notes what is written from then on, and nothing is lost.
func TestWhatDoesNotFitIntoMemoryIsNoted(t *testing.T) {
	t.Parallel()
	l := newListening(t, stack.PrivateRedis(t), nil)
	l.start(true)
	n := 0
	for ; !l.dropping.Load(); n++ {
		require.Less(t, n, 2000, "the memory has no bound")
		l.do("set", fmt.Sprint("k", n), strings.Repeat("x", 50_000))
	}
	assert.Greater(t, n*50_000, maxHeldBytes)
	l.do("set", "noted", "v")
	u := l.unsent()
	assert.True(t, u.Dropping)
	assert.Positive(t, u.Noted)
	heard := l.effects(n - int(u.Noted) + 1)
	require.Equal(t, "S k0", heard[0])
	assert.Zero(t, u.Lost)
	require.NoError(t, l.library.SetDropping(t.Context(), false, redislib.Bound{}))
	for left := u.Noted; left > 0; {
		var err error
		_, left, err = l.library.Resend(t.Context(), 10)
		require.NoError(t, err)
	}
	assert.Contains(t, l.effects(int(u.Noted)), "S noted")
}

func FuzzPublished(f *testing.F) {
	f.Add("3 1 2-3  \neffects")
	f.Add("9 0 2-3 ab l\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePublished(text)
		if err == nil {
			again := fmt.Sprintf("%d %d %s %s ", p.number, p.writes, p.entry.ID, p.entry.Transaction)
			if p.inStream {
				again += "l"
			}
			q, err := parsePublished(again + "\n" + p.entry.Effects)
			require.NoError(t, err)
			require.Equal(t, p, q)
		}
	})
}
