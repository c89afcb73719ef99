package outbox

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
)

// openError makes sonic_open fail with an error reply as long as it has one.
type openError struct{ reply atomic.Pointer[errorReply] }

type errorReply string

func (e errorReply) Error() string { return string(e) }
func (errorReply) RedisError()     {}

func (*openError) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*openError) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *openError) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if reply := h.reply.Load(); reply != nil && len(cmd.Args()) > 1 && cmd.Args()[1] == "sonic_open" {
			cmd.SetErr(*reply)
			return *reply
		}
		return next(ctx, cmd)
	}
}

// An error that Sonic does not know ends no process: the shipper reports it and tries again. An error
// that is known to stay ends it.
func TestOnlyAKnownErrorIsFatal(t *testing.T) {
	t.Parallel()
	s, db, _ := shipper(t)
	var opening openError
	db.AddHook(&opening)
	unknown := errorReply("ERR an error of a later version")
	opening.reply.Store(&unknown)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	require.Eventually(t, func() bool { return s.Unhealthy() != nil || len(ended) > 0 }, await.Patience, time.Millisecond)
	require.Empty(t, ended)
	assert.ErrorIs(t, s.Unhealthy(), unknown)

	opening.reply.Store(nil)
	require.Eventually(t, func() bool { return s.Status().Epoch > 0 || len(ended) > 0 }, await.Patience, time.Millisecond)
	require.Empty(t, ended)
	assert.NoError(t, s.Unhealthy())
	stop()
	require.NoError(t, <-ended)

	require.NoError(t, db.Do(t.Context(), "FCALL", "sonic_close", 1, s.library.Outbox()).Err())
	fatal := errorReply("SONICZONE this Redis belongs to zone b")
	opening.reply.Store(&fatal)
	require.ErrorIs(t, s.Run(t.Context()), ErrState)
}
