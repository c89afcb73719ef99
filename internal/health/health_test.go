package health

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

func TestStateLogsAtOnceEachMinuteAndOnRecovery(t *testing.T) {
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
		s.Set(nil)
		assert.Empty(t, said(), "healthy")

		s.Set(errors.New("refused"))
		assert.Equal(t, []string{"unhealthy, will keep trying error=refused"}, said())
		for range 9 {
			time.Sleep(time.Second)
			s.Set(errors.New("reset"))
		}
		assert.Empty(t, said(), "another error within ten seconds")
		time.Sleep(time.Second)
		s.Set(errors.New("refused again"))
		assert.Equal(t, []string{"unhealthy, will keep trying error=refused again"}, said())
		for range 130 { // noted each second
			time.Sleep(time.Second)
			s.Set(errors.New("refused again"))
		}
		assert.Equal(t, []string{
			"unhealthy, will keep trying error=refused again for=1m10s", "unhealthy, will keep trying error=refused again for=2m10s",
		}, said())
		for range 13 { // Note is not called any more, Remind is
			time.Sleep(5 * time.Second)
			s.Remind(zap.Int("waiting", 7))
		}
		assert.Equal(t, []string{"unhealthy, will keep trying error=refused again for=3m10s waiting=7"}, said())

		at, last := s.Last()
		assert.EqualError(t, last, "refused again")
		assert.Equal(t, 65*time.Second, time.Since(at))
		s.Set(nil)
		assert.Equal(t, []string{"recovered after=3m25s"}, said())
		assert.NoError(t, s.Current())
		s.Set(errors.New("refused"))
		assert.Equal(t, []string{"unhealthy, will keep trying error=refused"}, said(), "a new error is logged at once")
	})
}
