package sonic

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
)

func TestKeysThatTakeEffectAtAStart(t *testing.T) {
	was := DefaultConfig()
	is := was
	is.Users, is.MaxClockSkew, is.Outbox.Full, is.Log.Level = []User{{Name: "default"}}, time.Second, fullFail, "debug"
	require.NoError(t, onlyAtStart(was, is))
	is.Conflicts, is.Redis.Wait, is.Zones = []Conflict{{Policy: policyNone}}, time.Hour, []string{"default", "b"}
	err := onlyAtStart(was, is)
	require.ErrorContains(t, err, "conflicts: takes effect at the next start: change it in all zones")
	require.ErrorContains(t, err, "zones: takes effect at the next start: change it in all zones")
	require.ErrorContains(t, err, "redis: takes effect at the next start")
	assert.NotContains(t, err.Error(), "users")
}

func TestTheBoundsOfTheOutboxChange(t *testing.T) {
	var how proxy.Writes
	g := newGauge(OutboxConfig{Bytes: 10, Full: fullBlock}, nil, nil, zap.NewNop(), func(w proxy.Writes, _ string) { how = w })
	g.take(measured{length: 1, bytes: 11, full: true})
	assert.Equal(t, proxy.WritesHeld, how)
	g.change(OutboxConfig{Bytes: 20, Full: fullFail})
	assert.Equal(t, proxy.WritesRefused, how)
	assert.EqualValues(t, 20, g.bounds().Bytes)
	g.take(measured{length: 1, bytes: 11})
	assert.Equal(t, proxy.WritesOpen, how)
	g.change(OutboxConfig{Bytes: 20, Full: fullBlock})
	assert.Equal(t, proxy.WritesOpen, how)
}

// TestAChangeMeetsAMeasurement: what was configured last counts, also when the outbox is found to be full or to have room at the same time.
func TestAChangeMeetsAMeasurement(t *testing.T) {
	for _, row := range []struct {
		was, is  string
		full     bool // what is measured meanwhile
		expected proxy.Writes
	}{
		{fullBlock, fullGoOn, true, proxy.WritesOpen},
		{fullGoOn, fullFail, true, proxy.WritesRefused},
		{fullFail, fullBlock, false, proxy.WritesOpen},
	} {
		how, changed, armed := proxy.WritesOpen, make(chan struct{}), false
		var g *gauge
		g = newGauge(OutboxConfig{Full: row.was}, nil, nil, zap.NewNop(), func(w proxy.Writes, _ string) {
			if armed {
				armed = false
				go func() {
					defer close(changed)
					g.change(OutboxConfig{Full: row.is})
				}()
				select {
				case <-changed:
				case <-time.After(50 * time.Millisecond): // it waits for this one
				}
			}
			how = w
		})
		g.take(measured{full: !row.full})
		armed = true
		g.take(measured{full: row.full})
		<-changed
		assert.Equal(t, row.expected, how, "%s to %s", row.was, row.is)
	}
}
