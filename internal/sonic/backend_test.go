package sonic

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// A Redis that is busy with a script is not unsuitable: Sonic waits until it answers.
func TestARedisThatIsBusyIsWaitedFor(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t)
	busy, db := srv.Client(t), srv.Client(t)
	require.NoError(t, busy.ConfigSet(t.Context(), "busy-reply-threshold", "1").Err())
	ended := make(chan error, 1)
	go func() { ended <- busy.Eval(context.Background(), "while true do end", nil).Err() }()
	require.Eventually(t, func() bool { return script.IsReply(db.Info(t.Context()).Err(), "BUSY") }, await.Patience, time.Millisecond)
	state := health.New(zap.NewNop())
	ready := make(chan error, 1)
	go func() { ready <- awaitRedis(t.Context(), db, backend{}, state) }()
	require.Eventually(t, func() bool { return state.Current() != nil || len(ready) > 0 }, await.Patience, time.Millisecond)
	require.NoError(t, db.ScriptKill(t.Context()).Err())
	require.ErrorContains(t, <-ended, "Script killed")
	select {
	case err := <-ready:
		require.NoError(t, err)
	case <-time.After(await.Patience):
		t.Fatal("Redis answers again, and is not found")
	}
}
