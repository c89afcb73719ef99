package outbox

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

// largest measures the replies of XREAD.
type largest struct{ bytes int }

func (l *largest) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *largest) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *largest) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if read, ok := cmd.(*redis.XStreamSliceCmd); ok && err == nil {
			l.bytes = max(l.bytes, bytesOf(read.Val()[0].Messages))
		}
		return err
	}
}

// Many small effects, and then large ones: no reply is larger than maxReadCount pieces.
func TestWhatIsReadAtOnceIsBounded(t *testing.T) {
	t.Parallel()
	server := stack.PrivateRedis(t)
	db, measured := server.Client(t), new(largest)
	db.AddHook(measured)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.NoError(t, script.Load(ctx, db))
	l := redislib.New(db, redislib.Config{Zone: "a", Others: []string{"b"}, Default: "lww"})
	_, err := l.Open(ctx, redislib.State{}, 1, wire.ID{})
	require.NoError(t, err)
	_, err = db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range 3000 {
			p.Do(ctx, "FCALL", "sonic_set", 1, l.Outbox(), "0", fmt.Sprint("small", i), "1")
		}
		return nil
	})
	require.NoError(t, err)
	const large = 40
	for i := range large {
		require.NoError(t, db.Do(ctx, "FCALL", "sonic_set", 1, l.Outbox(), "0", fmt.Sprint("large", i), strings.Repeat("x", 1<<20)).Err())
	}
	q := newQueue()
	reading := make(chan error, 1)
	go func() { reading <- (&owner{Shipper: &Shipper{redis: db, library: l}}).read(ctx, wire.ID{}, q) }()
	got, bytes := 0, 0
	for got < 3000+large {
		entries, err := q.take(ctx, false)
		require.NoError(t, err)
		got += len(entries)
		for i := range entries {
			bytes += len(entries[i].Effects)
		}
	}
	assert.Greater(t, bytes, large<<20)
	assert.LessOrEqual(t, measured.bytes, maxReadCount*64<<10)
	assert.Greater(t, measured.bytes, 2048, "it was measured")
	cancel()
	require.ErrorIs(t, <-reading, context.Canceled)
}
