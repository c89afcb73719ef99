package install

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack/process"
)

func TestTry(t *testing.T) {
	errs := []error{errors.New("one"), errors.New("two"), errors.New("three")}
	for name, c := range map[string]struct {
		failures, fetched int
		took              time.Duration
		want              string
	}{
		"at once":       {0, 1, 0, ""},
		"the third one": {2, 3, 2 * pause, ""},
		"never":         {3, 3, 2 * pause, "after 3 attempts: three"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, fetched := time.Now(), 0
				err := Try(t.Context(), process.NewProgress(nil), func(context.Context) error {
					fetched++
					if fetched > c.failures {
						return nil
					}
					return errs[fetched-1]
				})
				if c.want == "" {
					require.NoError(t, err)
				} else {
					require.EqualError(t, err, c.want)
					require.ErrorIs(t, err, errs[2])
				}
				assert.Equal(t, c.fetched, fetched)
				assert.Equal(t, c.took, time.Since(began))
			})
		})
	}
}

// TestTryEndsWithItsContext in the pause as well as in the fetch.
func TestTryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), pause/2)
		defer cancel()
		fetched := 0
		err := Try(ctx, process.NewProgress(nil), func(context.Context) error { fetched++; return errors.New("no network") })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 1, fetched)
	})
	ctx, cancel := context.WithCancel(t.Context())
	err := Try(ctx, process.NewProgress(nil), func(context.Context) error { cancel(); return errors.New("killed") })
	require.Equal(t, context.Canceled, err)
}

// TestAptOutput: the log has the size and each package, the output is kept for the error.
func TestAptOutput(t *testing.T) {
	t.Parallel()
	var written strings.Builder
	out := aptOutput{log: process.NewProgress(&written)}
	for _, part := range []string{"Reading package lists...\nNeed to get 1351 kB", " of archives.\nGet:1 a mirror redis-tools [992 kB]\n", "E: no"} {
		n, err := out.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	assert.Equal(t, "  Need to get 1351 kB of archives.\n  Get:1 a mirror redis-tools [992 kB]\n", written.String())
	assert.Equal(t, "no", strings.TrimPrefix(aptError(out.all.String(), nil), "E: "))
}
