package sonic

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

type infoError string

func (e infoError) Error() string { return string(e) }
func (infoError) RedisError()     {}

// An error that Sonic does not know may go away: Sonic asks again.
func TestOnlyAKnownErrorOfInfoIsFatal(t *testing.T) {
	db := redis.NewClient(&redis.Options{Limiter: failing{infoError("ERR an error of a later version")}})
	t.Cleanup(func() { _ = db.Close() })
	_, err := askInfo(t.Context(), db)
	assert.ErrorContains(t, err, "a later version")
	assert.NotErrorIs(t, err, errUnsuitable)

	refusing := redis.NewClient(&redis.Options{Limiter: failing{infoError("NOPERM this user has no permissions to run the 'info' command")}})
	t.Cleanup(func() { _ = refusing.Close() })
	_, err = askInfo(t.Context(), refusing)
	assert.ErrorIs(t, err, errUnsuitable)
}

// failing is a limiter that answers each command with an error.
type failing struct{ err error }

func (f failing) Allow() error       { return f.err }
func (f failing) ReportResult(error) {}
