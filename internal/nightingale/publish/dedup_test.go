package publish

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// TestJoinedRequestsShareAFailure: nobody waits for an attempt that has ended, however
// it ended.
func TestJoinedRequestsShareAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewDedupCache(DedupConfig{Entries: 10, Window: time.Minute})
		first := &Claim{Cache: l}
		require.True(t, first.Acquire([]byte("body")))
		second := &Claim{Cache: l}
		require.False(t, second.Acquire([]byte("body")))
		time.AfterFunc(time.Second, func() { first.Abort(errGivenUp) })
		_, err, complete := second.Wait(t.Context())
		assert.True(t, complete)
		assert.ErrorIs(t, err, errGivenUp)
		first.Abort(refusal.ErrDisconnected) // again, as handle's defer does
		third := &Claim{Cache: l}
		assert.True(t, third.Acquire([]byte("body")), "it is forgotten")
	})
}

func TestLedgerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewDedupCache(DedupConfig{Entries: 3, Window: time.Minute})
		completed := func() int {
			if own := l.completed[""]; own != nil {
				return own.Len()
			}
			return 0
		}
		claimed := func(body string) (*Attempt, bool) { return l.claim(BodyKey{}, []byte(body)) }
		for i := range 10 {
			a, first := claimed(fmt.Sprint(i))
			require.True(t, first)
			l.Complete(a, batch.Contents{}, Delivered{})
			assert.LessOrEqual(t, completed(), 3)
			assert.Len(t, l.known, completed())
		}
		_, first := claimed("9")
		assert.False(t, first)
		<-time.After(2 * time.Minute) // the bubble's clock
		synctest.Wait()
		a, first := claimed("9")
		assert.True(t, first, "it is too old")
		assert.Zero(t, completed(), "and so were the others")
		assert.Len(t, l.known, 1)
		<-time.After(2 * time.Minute) // the bubble's clock
		_, first = claimed("9")
		assert.False(t, first, "one under way is never too old")
		for i := range 10 {
			more, first := claimed(fmt.Sprint("more", i))
			require.True(t, first)
			l.Complete(more, batch.Contents{}, Delivered{})
		}
		assert.Equal(t, 3, completed())
		_, first = claimed("9")
		assert.False(t, first, "nor does it give way to others")
		l.Complete(a, batch.Contents{}, Delivered{Err: errors.New("whatever")})
		assert.Len(t, l.known, 3)
		_, first = claimed("9")
		assert.True(t, first, "it is to be published again")
	})
}

// TestTheBodiesOfATenantAreNotForgottenForAnothers: a tenant with many requests gives way itself.
func TestTheBodiesOfATenantAreNotForgottenForAnothers(t *testing.T) {
	l := NewDedupCache(DedupConfig{Entries: 100, Window: time.Minute})
	complete := func(tenant string, n int) {
		a, first := l.claim(BodyKey{Tenant: tenant}, []byte(fmt.Sprint(n)))
		if first {
			l.Complete(a, batch.Contents{}, Delivered{})
		}
	}
	for n := range 1000 {
		if n < 30 {
			complete("quiet", n)
		}
		complete("busy", n)
	}
	for n := range 30 {
		_, first := l.claim(BodyKey{Tenant: "quiet"}, []byte(fmt.Sprint(n)))
		assert.False(t, first)
	}
	assert.Len(t, l.known, 100)
	_, first := l.claim(BodyKey{Tenant: "busy"}, []byte("999"))
	assert.False(t, first, "its latest are remembered")
}

// BenchmarkLedger is what recognising a body of 100 KiB costs a request.
func BenchmarkLedger(b *testing.B) {
	l := NewDedupCache(DedupConfig{Entries: 10_000, Window: 10 * time.Minute})
	body := snappy.Encode(nil, make([]byte, 100<<10))
	body = append(body, make([]byte, 100<<10-len(body))...)
	b.SetBytes(int64(len(body)))
	for n := 0; b.Loop(); n++ {
		body[0], body[1], body[2] = byte(n), byte(n>>8), byte(n>>16)
		a, _ := l.claim(BodyKey{}, body)
		l.Complete(a, batch.Contents{}, Delivered{})
	}
}

var errGivenUp = errors.New("given up")

// TestWhereABodyIsStoredIsForgottenOnceAllOfItIs: a thousand topics of each of ten thousand
// bodies would be a lot.
func TestWhereABodyIsStoredIsForgottenOnceAllOfItIs(t *testing.T) {
	l := NewDedupCache(DedupConfig{Entries: 10, Window: time.Minute})
	stored := map[string]storedPart{"a": {series: 1}, "b": {series: 2}}
	a, first := l.claim(BodyKey{}, []byte("body"))
	require.True(t, first)
	a.stored = stored
	l.Complete(a, batch.Contents{}, Delivered{Err: errGivenUp})
	a, first = l.claim(BodyKey{}, []byte("body"))
	require.True(t, first)
	assert.Equal(t, stored, a.stored, "kept while the sender comes again")
	l.Complete(a, batch.Contents{}, Delivered{})
	a, first = l.claim(BodyKey{}, []byte("body"))
	require.False(t, first)
	assert.Empty(t, a.stored)
}
