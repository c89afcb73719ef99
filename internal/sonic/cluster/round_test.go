package cluster

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// nodes answer in place of a cluster.
type nodes struct {
	views map[string]view // by address; the others do not answer

	mu    sync.Mutex
	asked []string
}

var errGone = errors.New("gone")

func (n *nodes) ask(_ context.Context, address string) (view, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, address)
	v, ok := n.views[address]
	if !ok {
		return v, errGone
	}
	return v, nil
}

// takeAsked returns which nodes were asked since the last call.
func (n *nodes) takeAsked() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	asked := n.asked
	n.asked = nil
	return asked
}

// owned is the view in which one primary has all slots, and a and b are the nodes.
func owned(address string, epoch int64) view {
	return view{epoch, []Range{{0, Slots - 1, Primary{address, address}}}, []string{"a:1", "b:1"}}
}

func TestANewerViewWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		c := New(Config{Addresses: []string{"a:1", "c:1"}}, zap.New(core))
		fake := &nodes{views: map[string]view{"a:1": owned("a:1", 3)}}
		c.ask = fake.ask
		var owners []string
		c.OnChange(func() { owners = append(owners, c.Map().Owner(0)) })
		assert.Nil(t, c.Map())
		require.NoError(t, c.round(t.Context()))
		assert.Equal(t, "a:1", c.Map().Owner(7))

		fake.views["b:1"] = owned("b:1", 4)
		fake.takeAsked()
		require.NoError(t, c.round(t.Context()))
		require.NoError(t, c.round(t.Context()))
		assert.Equal(t, []string{"b:1", "a:1", "b:1"}, fake.takeAsked(), "the node not asked last comes first; a was older; c was not needed")
		assert.Equal(t, []string{"a:1", "b:1"}, owners)

		// The one that knows of the failover is gone, and the other has not heard of it yet.
		delete(fake.views, "b:1")
		require.NoError(t, c.round(t.Context()))
		assert.Equal(t, "b:1", c.Map().Owner(0))
		fake.takeAsked()
		require.NoError(t, c.round(t.Context()))
		assert.Equal(t, []string{"a:1", "b:1", "c:1"}, fake.takeAsked(), "those that failed come last")

		time.Sleep(lowerEpochAfter)
		require.NoError(t, c.round(t.Context()))
		assert.Equal(t, "a:1", c.Map().Owner(0), "it was made anew")
		assert.Equal(t, []string{"a:1", "b:1", "a:1"}, owners)

		delete(fake.views, "a:1")
		err := c.round(t.Context())
		require.ErrorIs(t, err, errGone)
		assert.ErrorContains(t, err, "c:1: gone")

		lines := logs.TakeAll()
		require.Len(t, lines, 3)
		assert.Equal(t, "found the cluster", lines[0].Message)
		assert.Equal(t, map[string]any{"primaries": int64(1), "slots_without_primary": int64(0), "epoch": int64(3)}, lines[0].ContextMap())
		assert.Equal(t, map[string]any{
			"primaries": int64(1), "slots_without_primary": int64(0), "epoch": int64(4), "slots_moved": int64(Slots), "added": []any{"b:1"}, "removed": []any{"a:1"},
		}, lines[1].ContextMap())
	})
}

func TestRefreshesHaveOneAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Addresses: []string{"a:1"}}, zap.NewNop())
		fake := &nodes{views: map[string]view{"a:1": owned("a:1", 1), "b:1": owned("a:1", 1)}}
		c.ask = fake.ask
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		synctest.Wait()
		assert.Len(t, fake.takeAsked(), 1)

		for range 100 {
			c.Refresh()
		}
		time.Sleep(refreshInterval - time.Nanosecond)
		synctest.Wait()
		assert.Empty(t, fake.takeAsked())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Len(t, fake.takeAsked(), 1)
		time.Sleep(pollInterval - time.Nanosecond)
		synctest.Wait()
		assert.Empty(t, fake.takeAsked())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Len(t, fake.takeAsked(), 1)

		time.Sleep(time.Second)
		c.Refresh()
		synctest.Wait()
		assert.Len(t, fake.takeAsked(), 1, "at once: the last answer is older than 50 ms")
		cancel()
		require.NoError(t, <-ended)
	})
}

func TestAnswersOfNodes(t *testing.T) {
	t.Parallel()
	node := func(endpoint any, more ...any) []any { return append([]any{endpoint, int64(7000), "id"}, more...) }
	for name, c := range map[string]struct {
		node    any
		address string
	}{
		"an address":                       {node("10.0.0.1"), "10.0.0.1:7000"},
		"IPv6":                             {node("::1", []any{}), "[::1]:7000"},
		"the node that was asked":          {node(""), "asked:7000"},
		"unknown-endpoint":                 {node(nil, []any{"ip", "10.0.0.1"}), "asked:7000"},
		"a host name":                      {node("a.example", []any{"ip", "10.0.0.1"}), "a.example:7000"},
		"a host name that is not set":      {node("?", []any{"hostname", "", "ip", "10.0.0.1"}), "10.0.0.1:7000"},
		"neither a host name nor address":  {node("?", []any{"ip", nil}), "asked:7000"},
		"a host name of an unknown format": {node("?", "x"), "asked:7000"},
	} {
		ranges, nodes := parseSlots([]any{[]any{int64(1), int64(2), c.node, node("replica")}}, "asked:1")
		assert.Equal(t, []Range{{1, 2, Primary{"id", c.address}}}, ranges, name)
		assert.Equal(t, []string{c.address, "replica:7000"}, nodes, name)
	}
	_, err := currentEpoch("cluster_state:ok\r\n")
	require.Error(t, err)
	_, err = currentEpoch("cluster_current_epoch:x\r\n")
	require.Error(t, err)
	epoch, err := currentEpoch("cluster_state:ok\r\ncluster_current_epoch:12\r\ncluster_my_epoch:3\r\n")
	require.NoError(t, err)
	assert.EqualValues(t, 12, epoch)
}
