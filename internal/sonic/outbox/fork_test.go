package outbox

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// FLUSHALL past Sonic; a write comes before the next beat, and is shipped and reported.
func TestFlushAllAndAWriteBeforeTheBeat(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newTwoRedis(t)
	w.write(w.former, "more")
	w.ship()
	w.shipped()
	require.NoError(t, w.former.FlushAll(ctx).Err())
	w.write(w.former, "x")
	w.ship()
	w.shipped()
	require.ErrorContains(t, w.s.library.SendHeartbeat(ctx), "SONICNOTREADY")
	err := w.owner.prepare(ctx) // the next session of the same owner
	assert.ErrorIs(t, err, ErrState)
}

// The clock of effects is ten minutes ahead.
func TestForkWithAClockAhead(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, former, _ := shipper(t)
	next := stack.PrivateRedis(t).Client(t)
	w := &twoRedis{t: t, s: s, former: former, next: next}
	require.NoError(t, script.Load(ctx, former))
	require.NoError(t, w.serve(former))
	w.write(former, "first")
	w.ship()
	w.shipped()
	require.NoError(t, former.Do(ctx, "XSETID", s.library.Outbox(), fmt.Sprintf("%d-0", time.Now().Add(10*time.Minute).UnixMilli())).Err())
	w.write(former, "both")
	w.ship()
	w.shipped()
	for _, key := range former.Keys(ctx, "*").Val() {
		require.NoError(t, next.RestoreReplace(ctx, key, 0, former.Dump(ctx, key).Val()).Err())
	}
	require.NoError(t, w.serve(next))
	w.write(next, "next")
	w.ship()
	w.shipped()
	for i := range 5 {
		w.write(former, fmt.Sprint("after", i))
	}
	assert.ErrorIs(t, w.serve(w.former), ErrHistory)
}

// A beforeClose does something before the first call of sonic_close.
type beforeClose struct {
	once *sync.Once
	do   func()
}

func (beforeClose) DialHook(next redis.DialHook) redis.DialHook { return next }

func (beforeClose) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h beforeClose) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if len(cmd.Args()) > 1 && cmd.Args()[1] == "sonic_close" {
			h.once.Do(h.do)
		}
		return next(ctx, cmd)
	}
}

// The same owner goes back to the former primary, which is open, and a client writes to it before
// it is closed.
func TestWriteBeforeTheClose(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newTwoRedis(t)
	require.NoError(t, w.serve(w.next))
	w.write(w.next, "next")
	w.ship()
	w.shipped()
	client := redis.NewClient(w.former.Options())
	hooked := redis.NewClient(w.former.Options())
	hooked.AddHook(beforeClose{new(sync.Once), func() { w.write(client, "after") }})
	w.s.redis, w.s.library = hooked, redislib.New(hooked, redislib.Config{Zone: "a", Others: []string{"b"}, Default: "lww"})
	w.owner.single, w.owner.prepared = false, true
	err := w.owner.prepare(ctx)
	assert.ErrorIs(t, err, ErrHistory)
}

// FLUSHALL past Sonic, a write that is shipped and reported, and then another Sonic takes over
// before a beat.
func TestFlushAllThenTakeover(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newTwoRedis(t)
	require.NoError(t, w.former.FlushAll(ctx).Err())
	w.write(w.former, "x")
	w.ship()
	w.shipped()
	assert.ErrorIs(t, w.serve(w.former), ErrState)
}

// A foreign message in the own topic behind what Redis knows to be stored.
func TestForeignMessageInTheHistory(t *testing.T) {
	t.Parallel()
	for name, properties := range map[string]map[string]string{
		"foreign":         {"x": "y"},
		"of another zone": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			w := newTwoRedis(t)
			w.write(w.former, "stored")
			w.ship() // and the Sonic ends before Redis hears of it
			if properties == nil {
				tail := w.owner.packer.Tail
				id := tail.Last
				h := wire.Header{Origin: "b", Prev: wire.ID{}, First: id, Last: id, Part: 1, Parts: 1, Position: 7, Epoch: 1, Count: 1}
				properties = h.Properties()
			}
			payload, _ := wire.Payload([]wire.Entry{{ID: w.owner.packer.Tail.Last, Effects: "x"}})
			w.s.release(w.owner.topicWriter)
			w.owner = nil
			p, err := w.s.client.Publisher(ctx, w.s.cfg.Topic, messaging.Business())
			require.NoError(t, err)
			require.NoError(t, p.Publish(ctx, &messaging.Record{Payload: payload, Properties: properties}))
			require.NoError(t, p.Close(ctx))
			require.NoError(t, w.serve(w.former))
			w.write(w.former, "more")
			w.ship()
			// The next Sonic, again before Redis hears of it.
			require.NoError(t, w.serve(w.former))
		})
	}
}
