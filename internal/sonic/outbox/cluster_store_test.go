package outbox

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

// ownerOf is an owner of which a test uses some methods.
func ownerOf(t *testing.T, cfg ClusterConfig) *clusterOwner {
	t.Helper()
	cfg.Zone, cfg.Reached = "a", func() map[string]uint64 { return nil }
	s := NewCluster(cfg, nil, nil, zaptest.NewLogger(t), NewMetrics(prometheus.NewRegistry()))
	return newClusterOwner(s, &topicWriter{packer: wire.Packer{Origin: "a"}})
}

// A primary is opened while a message is stored: its entries are not before the watermark of that.
func TestAPrimaryIsOpenedBehindAMessageOnItsWay(t *testing.T) {
	t.Parallel()
	conn := stack.PrivateRedis(t).Client(t).Conn()
	t.Cleanup(func() { _ = conn.Close() })
	cfg := redislib.Config{Zone: "a", Default: "lww"}
	r := &primaryReader{clusterOwner: ownerOf(t, ClusterConfig{Library: cfg}), library: redislib.NewPrimary(conn, cfg)}
	r.storing.Lock()
	opened := make(chan error, 1)
	go func() { opened <- r.open(t.Context(), nil) }()
	told := uint64(time.Now().Add(time.Hour).UnixMilli())
	r.packer.Tail.Watermark = told
	r.storing.Unlock()
	require.NoError(t, <-opened)
	state, err := r.library.Look(t.Context())
	require.NoError(t, err)
	assert.Equal(t, told, state.Clock)
}
