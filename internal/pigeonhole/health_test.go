package pigeonhole

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
)

// idle is a source from which nothing comes.
type idle struct{}

func (idle) Run(ctx context.Context, _ *lane.Set) error { <-ctx.Done(); return nil }
func (idle) Lag(context.Context) (int64, error)         { return 0, nil }

// TestWhatIsTheMatterEndsWithItsMessages: a route whose partitions went to another process while it tried to send is ready, though nothing comes here any more.
func TestWhatIsTheMatterEndsWithItsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := leading(t, "b")
		r.source, r.phase, r.lanes = idle{}, running, lane.NewSet(lane.Config{Messages: 1, Bytes: 1}, lane.Route{})
		r.report(partSending, errors.New("it takes nothing"))
		r.report(partDead, errors.New("they neither"))
		require.Equal(t, "dead letters: they neither, sending: it takes nothing", r.unwell())
		watching, end := context.WithCancel(t.Context())
		go r.watchLag(watching)
		time.Sleep(time.Second)
		assert.Empty(t, r.unwell())

		r.report("sink.pulsar", errors.New("away"))
		time.Sleep(2 * lagEvery)
		assert.Equal(t, "sink.pulsar: away", r.unwell(), "it is not about messages")
		end()
	})
}

// TestResumingThatIsGivenUpIsNoTrouble: the partition is another process' then.
func TestResumingThatIsGivenUpIsNoTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := leading(t, "b")
		r.cfg.MinBackoff, r.cfg.MaxBackoff = 100*time.Millisecond, time.Second
		r.resume = resumes(func() (int64, bool, error) { return 0, false, errors.New("away") })
		prepare, _ := r.preparation()
		ctx, giveUp := context.WithCancel(t.Context())
		go func() {
			time.Sleep(5 * time.Second)
			r.mu.Lock()
			assert.Equal(t, []string{"resuming: away"}, r.troubles())
			r.mu.Unlock()
			giveUp()
		}()
		_, _, err := prepare(ctx, &message.Message{From: message.From{Topic: "a"}})
		require.ErrorIs(t, err, context.Canceled)
		assert.Empty(t, r.troubles())
	})
}
