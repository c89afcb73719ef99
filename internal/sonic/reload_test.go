package sonic

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestKeysThatTakeEffectAtAStart(t *testing.T) {
	t.Parallel()
	was := DefaultConfig()
	is := was
	is.Users, is.Outbox.Full, is.Log.Level = []User{{Name: "default"}}, fullFail, "debug"
	is.Setup.Clusters = []string{"zone-a"}
	require.NoError(t, onlyAtStart(was, is))
	is.Conflicts, is.Redis.Wait, is.Zones = []Conflict{{Policy: policyNone}}, time.Hour, []string{"default", "b"}
	err := onlyAtStart(was, is)
	require.ErrorContains(t, err, "conflicts: takes effect at the next start: change it in all zones")
	require.ErrorContains(t, err, "zones: takes effect at the next start: change it in all zones")
	require.ErrorContains(t, err, "redis: takes effect at the next start")
	assert.NotContains(t, err.Error(), "users")
	assert.NotContains(t, err.Error(), "outbox")
	was.Redis.Cluster, was.Zones = true, []string{"default", "b"}
	is = was
	is.Outbox.Full = fullFail
	require.NoError(t, onlyAtStart(was, is))
	is.Outbox.Bytes *= 2
	require.ErrorContains(t, onlyAtStart(was, is), "outbox.bytes: takes effect at the next start, in front of a Redis Cluster")
}

func TestTheBoundsOfTheOutboxChange(t *testing.T) {
	t.Parallel()
	var how proxy.WriteMode
	g := newOutboxMonitor(OutboxConfig{Bytes: 10, Full: fullBlock}, nil, zap.NewNop(), func(w proxy.WriteMode, _ string) { how = w })
	g.record(measurement{redislib.Unsent{Entries: 1, Bytes: 11}, true})
	assert.Equal(t, proxy.WritesDelayed, how)
	g.change(OutboxConfig{Bytes: 20, Full: fullFail})
	assert.Equal(t, proxy.WritesRefused, how)
	assert.EqualValues(t, 20, g.bounds().Bytes)
	g.record(measurement{Unsent: redislib.Unsent{Entries: 1, Bytes: 11}})
	assert.Equal(t, proxy.WritesOpen, how)
	g.change(OutboxConfig{Bytes: 20, Full: fullBlock})
	assert.Equal(t, proxy.WritesOpen, how)
}

// TestAChangeMeetsAMeasurement: what was configured last counts, also when the outbox is found to
// be full or to have room at the same time.
func TestAChangeMeetsAMeasurement(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		was, is  string
		full     bool // what is measured meanwhile
		expected proxy.WriteMode
	}{
		{fullBlock, fullDrop, true, proxy.WritesOpen},
		{fullDrop, fullFail, true, proxy.WritesRefused},
		{fullFail, fullBlock, false, proxy.WritesOpen},
	} {
		how, changed, armed := proxy.WritesOpen, make(chan struct{}), false
		var g *outboxMonitor
		g = newOutboxMonitor(OutboxConfig{Full: row.was}, nil, zap.NewNop(), func(w proxy.WriteMode, _ string) {
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
		g.record(measurement{full: !row.full})
		armed = true
		g.record(measurement{full: row.full})
		<-changed
		assert.Equal(t, row.expected, how, "%s to %s", row.was, row.is)
	}
}

// TestWhatIsFullWithAndWithoutAnOutbox: readiness goes by what is configured now, and without an
// outbox nothing is full: what is large waits there.
func TestWhatIsFullWithAndWithoutAnOutbox(t *testing.T) {
	t.Parallel()
	db := stack.PrivateRedis(t).Client(t)
	require.NoError(t, script.Load(t.Context(), db))
	cfg := redislib.Config{Zone: "a", Others: []string{"b"}, Default: policyLWW}
	l := redislib.New(db, cfg)
	_, err := l.Open(t.Context(), redislib.State{}, 1, wire.ID{})
	require.NoError(t, err)
	require.NoError(t, db.Do(t.Context(), "FCALL", "sonic_set", 1, l.Outbox(), "0", "k", make([]byte, 2<<20)).Err())

	s := &service{cfg: Config{Outbox: OutboxConfig{Bytes: 1 << 20, Full: fullBlock}}, library: l, memory: newMemory(zap.NewNop())}
	s.monitor = newOutboxMonitor(s.cfg.Outbox, measureOne(l), zap.NewNop(), func(proxy.WriteMode, string) {})
	m, err := s.monitor.measure(t.Context())
	require.NoError(t, err)
	require.True(t, m.full)
	s.monitor.record(m)
	require.ErrorContains(t, s.checkWrites(t.Context()), "the outbox is full")
	s.monitor.change(OutboxConfig{Bytes: 1 << 20, Full: fullDrop})
	require.NoError(t, s.checkWrites(t.Context()), "writes go on")
	s.monitor.change(OutboxConfig{Bytes: 1 << 20, Full: fullFail})
	require.ErrorContains(t, s.checkWrites(t.Context()), "the outbox is full")
}
