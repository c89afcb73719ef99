package sentinel

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

func TestTheNewestAnswerIsBelieved(t *testing.T) {
	var moves []string
	s := New(Config{Master: "m", Addresses: []string{"s1", "s2", "s3"}}, zap.NewNop())
	s.OnMove(func(address string) { moves = append(moves, address) })
	at := func() string {
		address, err := s.Master(t.Context())
		require.NoError(t, err)
		return address
	}
	s.take("s1", answer{"old", 3}, nil)
	assert.Equal(t, "old", at())
	s.take("s2", answer{"new", 4}, nil)
	s.take("s1", answer{"old", 3}, nil)
	s.take("s3", answer{"old", 3}, nil)
	assert.Equal(t, "new", at())

	gone := errors.New("gone")
	s.take("s2", answer{}, gone)
	s.take("s3", answer{}, gone)
	s.take("s1", answer{"old", 3}, nil)
	assert.Equal(t, "new", at(), "one Sentinel that was cut off is not believed")
	s.take("s1", answer{}, gone)
	assert.Equal(t, "new", at(), "nobody answers")
	require.ErrorIs(t, s.problem(), gone)

	s.answered = s.answered.Add(-believedFor)
	s.take("s1", answer{"anew", 0}, nil)
	assert.Equal(t, "new", at())
	s.take("s3", answer{"anew", 0}, nil)
	assert.Equal(t, "anew", at(), "most were set up anew")
	assert.Equal(t, []string{"new", "anew"}, moves)
}

func TestNobodyTellsWhereThePrimaryIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Master: "m", Addresses: []string{"s1"}}, zap.NewNop())
		s.take("s1", answer{}, errors.New("connection refused"))
		ctx, cancel := context.WithTimeout(t.Context(), Timeout)
		defer cancel()
		_, err := s.Master(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `no Sentinel reports the address of "m": s1: connection refused`)
	})
}

// The Sentinel that carried the failover out is not heard for a moment, and the others have not
// heard of it yet: they are more than half, and wrong.
func TestTheFormerPrimaryIsNotTakenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Master: "m", Addresses: []string{"s1", "s2", "s3"}}, zap.NewNop())
		at := func() string {
			address, err := s.Master(t.Context())
			require.NoError(t, err)
			return address
		}
		for _, from := range []string{"s1", "s2", "s3"} {
			s.take(from, answer{"old", 3}, nil)
		}
		s.take("s2", answer{"new", 4}, nil)
		time.Sleep(2 * time.Second)
		s.take("s2", answer{}, errors.New("gone"))
		s.take("s1", answer{"old", 3}, nil)
		s.take("s3", answer{"old", 3}, nil)
		assert.Equal(t, "new", at())
		time.Sleep(believedFor)
		s.take("s1", answer{"old", 3}, nil)
		assert.Equal(t, "old", at(), "nobody has told of the other one for long: these were set up anew")
	})
}
