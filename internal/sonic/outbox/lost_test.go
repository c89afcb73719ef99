package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// another has Redis be opened, with Off, by a Sonic of another version, to which n writes are
// published. It returns what ends that.
func (l *listening) another(n int) (end func()) {
	l.t.Helper()
	ctx := l.t.Context()
	text, version, err := script.Library()
	require.NoError(l.t, err)
	require.NoError(l.t, l.redis.Do(ctx, "FUNCTION", "LOAD", "REPLACE", strings.Replace(text, "'"+version+"'", "'another'", 1)).Err())
	live, err := subscribe(ctx, l.redis.Options(), l.library.Channel())
	require.NoError(l.t, err)
	l.t.Cleanup(live.close)
	require.NoError(l.t, l.redis.Do(ctx, "FCALL", "sonic_open", 1, l.library.Outbox(), "a", 1, "0-0", "0-0o", 1, "b", "lww").Err())
	for i := range n {
		l.do("set", fmt.Sprint("k", i), "v")
	}
	require.Equal(l.t, redislib.Unsent{Published: int64(n)}, l.unsent())
	return func() {
		live.close()
		require.Eventually(l.t, func() bool {
			return l.redis.PubSubShardNumSub(ctx, l.library.Channel()).Val()[l.library.Channel()] == 0
		}, await.Patience, 5*time.Millisecond)
	}
}

// A process of another version ends, and takes along what it held. That is counted before the
// library is replaced that knows of it: also by a process that only starts, unless somebody listens
// who may hold it.
func TestWhatAnotherVersionHeldIsCounted(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name          string
		owner, listen bool
		lost          int64
	}{
		{"a process starts", false, false, 7},
		{"a process starts beside the one that holds it", false, true, 0},
		{"the next owner", true, false, 7},
		{"the next owner, and a connection that is dead", true, true, 7},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newListening(t, stack.PrivateRedis(t), nil)
			end := l.another(7)
			if !row.listen {
				end()
			}
			for range 2 { // it is counted once
				require.NoError(t, Load(t.Context(), l.library, l.log, row.owner))
				assert.Equal(t, redislib.Unsent{Lost: row.lost}, l.unsent())
			}
		})
	}
}

// The library of another version is replaced by a Redis that has no memory for it, or whose reply
// is lost, only later: what is lost is counted all the same, and once.
func TestWhatAnotherVersionHeldIsCountedWhenTheLoadFails(t *testing.T) {
	t.Parallel()
	l := newListening(t, stack.PrivateRedis(t), nil)
	l.another(7)()
	require.NoError(t, l.redis.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for range 2 {
		require.True(t, redislib.NoMemory(Load(t.Context(), l.library, l.log, true)))
		assert.Equal(t, redislib.Unsent{Published: 7, Stored: 7, Lost: 7}, l.unsent())
	}
	require.NoError(t, l.redis.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.NoError(t, Load(t.Context(), l.library, l.log, true))
	assert.Equal(t, redislib.Unsent{Lost: 7}, l.unsent())
}

// A question that Redis does not answer is no answer: the library that knows what is lost stays.
func TestTheLibraryIsNotReplacedBeforeItIsAsked(t *testing.T) {
	t.Parallel()
	l := newListening(t, stack.PrivateRedis(t), nil)
	l.another(7)()
	l.redis.AddHook(refusing{"sonic_unsent"})
	require.ErrorIs(t, Load(t.Context(), l.library, l.log, true), errRefusing)
	version, err := l.redis.Do(t.Context(), "FCALL_RO", "sonic_version", 0).Text()
	require.NoError(t, err)
	assert.Equal(t, "another", version)
}

var errRefusing = errors.New("no reply")

// refusing is a connection on which calls of a function are not answered.
type refusing struct{ function string }

func (r refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && args[1] == r.function {
			cmd.SetErr(errRefusing)
			return errRefusing
		}
		return next(ctx, cmd)
	}
}

// Nothing is lost when a process of another version ends in order and this one takes over while
// clients write. Neither count what was published before as lost, nor is what is lost later hidden
// by that.
func TestTakingOverFromAnotherVersionLosesNothing(t *testing.T) {
	t.Parallel()
	s, db, _ := shipper(t)
	s.cfg.Off = true
	s.library = redislib.New(db, redislib.Config{Zone: "a", Others: []string{"b"}, Default: "lww", Off: true})
	l := listening{loader: prepared(t, s), t: t}
	end := l.another(1000)
	require.NoError(t, l.library.Shipped(t.Context(), wire.ID{}, 1000))
	end()

	writing, stop := context.WithCancel(t.Context())
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := 0; writing.Err() == nil; i++ { // refused while the library is not open
			_ = db.Do(writing, "FCALL", "sonic_set", 1, l.library.Outbox(), "0", fmt.Sprint("k", i%100), "v").Err()
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.session(ctx) }()
	_, version, err := script.Library()
	require.NoError(t, err)
	assert.Eventually(t, func() bool {
		return len(ended) > 0 || db.Do(t.Context(), "FCALL_RO", "sonic_version", 0).Val() == version && l.unsent().Stored > 100
	}, await.Patience, time.Millisecond)
	stop()
	<-written
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	u := l.unsent()
	assert.Zero(t, u.Lost)
	assert.Equal(t, u.Published, l.held.syncReceived(u), "all of it was heard")
}
