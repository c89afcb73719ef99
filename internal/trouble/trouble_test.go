package trouble

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestTroubleIsSaidAtOnceEachMinuteAndAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		s := New(zap.New(core))
		said := func() (lines []string) {
			for _, e := range logs.TakeAll() {
				line := e.Message
				for _, name := range []string{"error", "for", "after", "waiting"} {
					if v, there := e.ContextMap()[name]; there {
						line += " " + name + "=" + fmt.Sprint(v)
					}
				}
				lines = append(lines, line)
			}
			return lines
		}
		s.Remind()
		s.Note(nil)
		assert.Empty(t, said(), "nothing is the matter")

		s.Note(errors.New("refused"))
		assert.Equal(t, []string{"unhealthy, trying on error=refused"}, said())
		for range 9 {
			time.Sleep(time.Second)
			s.Note(errors.New("reset"))
		}
		assert.Empty(t, said(), "other words within ten seconds")
		time.Sleep(time.Second)
		s.Note(errors.New("refused again"))
		assert.Equal(t, []string{"unhealthy, trying on error=refused again"}, said())
		for range 130 { // noted each second
			time.Sleep(time.Second)
			s.Note(errors.New("refused again"))
		}
		assert.Equal(t, []string{
			"unhealthy, trying on error=refused again for=1m10s", "unhealthy, trying on error=refused again for=2m10s",
		}, said())
		for range 13 { // noted no more, and asked for
			time.Sleep(5 * time.Second)
			s.Remind(zap.Int("waiting", 7))
		}
		assert.Equal(t, []string{"unhealthy, trying on error=refused again for=3m10s waiting=7"}, said())

		at, last := s.Last()
		assert.EqualError(t, last, "refused again")
		assert.Equal(t, 65*time.Second, time.Since(at))
		s.Note(nil)
		assert.Equal(t, []string{"recovered after=3m25s"}, said())
		assert.NoError(t, s.Current())
		s.Note(errors.New("refused"))
		assert.Equal(t, []string{"unhealthy, trying on error=refused"}, said(), "new trouble is said at once")
	})
}
