package pigeonhole

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// resumes is a sink whose answers are the test's.
type resumes func() (offset int64, ok bool, err error)

func (f resumes) Resume(context.Context, string, *message.From) (offset int64, ok bool, err error) {
	return f()
}
func (resumes) Oversized(*message.Message) bool { return false }
func (resumes) Release(string, int32)           {}

// TestRefusalWhileResumingIsFinal: other errors are retried, a refusal goes where refused messages go,
// for each message.
func TestRefusalWhileResumingIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := leading(t, "b")
		asked := 0
		r.resumableSink = resumes(func() (int64, bool, error) {
			if asked++; asked < 5 {
				return 0, false, errors.New("unavailable")
			}
			return 0, false, pipeline.Refuse("no_partition", errors.New("it has 2 partitions"))
		})
		prepare, _ := r.newPrepare()
		for n := range 2 {
			_, _, err := prepare(t.Context(), &message.Message{From: message.From{Topic: "a", Partition: 7, Offset: int64(n)}})
			reason, refused := pipeline.Refused(err)
			require.True(t, refused, "%v", err)
			assert.Equal(t, "no_partition", reason)
		}
		assert.Equal(t, 6, asked)
		assert.Empty(t, r.unhealthyParts())
	})
}

// TestStoredIsNotSentAgain: up to what the destination says it holds.
func TestStoredIsNotSentAgain(t *testing.T) {
	r := leading(t, "b")
	r.resumableSink = resumes(func() (int64, bool, error) { return 3, true, nil })
	prepare, _ := r.newPrepare()
	for n := range 6 {
		_, keep, err := prepare(t.Context(), &message.Message{From: message.From{Topic: "a", Partition: 0, Offset: int64(n)}})
		require.NoError(t, err)
		assert.Equal(t, n > 3, keep, "%d", n)
	}
}
