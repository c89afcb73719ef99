package primaries_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// numbers is a library of one function: it appends a number to the list of a slot, unless the list
// has it.
const numbers = `#!lua name=numbers
redis.register_function('add', function(keys, args)
	local last = redis.call('LRANGE', keys[1], '-1', '-1')[1]
	if args[1] == 'wrong' then return redis.error_reply('WRONG argument') end
	if not last or tonumber(last) < tonumber(args[1]) then redis.call('RPUSH', keys[1], args[1]) end
	return args[1]
end)`

func start(t *testing.T, count, replicas int) (*stack.RedisCluster, *primaries.Primaries) {
	t.Helper()
	c := stack.PrivateRedisCluster(t, count, replicas, "cluster-require-full-coverage no")
	for _, n := range c.Nodes()[:count] {
		require.NoError(t, n.Client(t).FunctionLoad(t.Context(), numbers).Err())
	}
	topology := cluster.New(cluster.Config{Addresses: c.Addresses()}, zaptest.NewLogger(t))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- topology.Run(ctx) }()
	p := primaries.New(topology, func(address string) *redis.Client {
		return redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: time.Second})
	})
	t.Cleanup(func() {
		assert.NoError(t, p.Close())
		stop()
		assert.NoError(t, <-ended)
	})
	return c, p
}

// list returns what the slot's list holds.
func list(t *testing.T, c *stack.RedisCluster, slot int) []string {
	t.Helper()
	all, err := c.Node(t, c.Owner(t, slot)).Client(t).LRange(t.Context(), script.SlotKeys(slot).Outbox, 0, -1).Result()
	require.NoError(t, err)
	return all
}

func texts(n int) (all []string) {
	for i := range n {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

// TestARefusedConnectionIsAnError: go-redis gives the commands of a pipeline no error then.
func TestARefusedConnectionIsAnError(t *testing.T) {
	t.Parallel()
	c, _ := start(t, 1, 0)
	refused := func(address string) *redis.Client {
		return redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, Username: "unknown", Password: "wrong"})
	}
	m := cluster.NewMap([]cluster.Range{{First: 0, Last: 16383, Primary: cluster.Primary{ID: "1", Address: c.Addresses()[0]}}})
	p := primaries.New(still{m}, refused)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	replies, err := p.Do(t.Context(), []primaries.Call{{Slot: 1, Function: "add", Args: []any{1}}})
	require.NoError(t, err)
	require.ErrorContains(t, replies[0].Err, "WRONGPASS")
	_, err = primaries.ReadMarker(t.Context(), p.At(c.Addresses()[0]), []int{1}, "a")
	require.ErrorContains(t, err, "WRONGPASS")
}

// still is a cluster that does not change.
type still struct{ m *cluster.Map }

func (s still) Map() *cluster.Map { return s.m }
func (still) Refresh()            {}

func TestRepliesAreInTheOrderOfCalls(t *testing.T) {
	t.Parallel()
	c, p := start(t, 3, 0)
	var calls []primaries.Call
	for i := range 300 {
		calls = append(calls, primaries.Call{Slot: i % 100 * 163, Function: "add", Args: []any{i}})
	}
	calls[7].Args[0] = "wrong"
	replies, err := p.Do(t.Context(), calls)
	require.NoError(t, err)
	for i, r := range replies {
		if i == 7 {
			require.ErrorContains(t, r.Err, "WRONG argument")
			continue
		}
		require.NoError(t, r.Err)
		assert.Equal(t, strconv.Itoa(i), r.Value)
	}
	assert.Equal(t, []string{"5", "105", "205"}, list(t, c, 5*163))
	assert.Equal(t, []string{"107", "207"}, list(t, c, 7*163))

	replies, err = p.Do(t.Context(), []primaries.Call{{Slot: 1, Function: "none"}})
	require.NoError(t, err)
	require.ErrorContains(t, replies[0].Err, "Function not found")
	replies, err = p.Do(t.Context(), nil)
	require.NoError(t, err)
	assert.Empty(t, replies)
	id, err := p.At(c.Addresses()[1]).Do(t.Context(), "CLUSTER", "MYID").Text()
	require.NoError(t, err)
	assert.True(t, slices.ContainsFunc(p.Map().Primaries(), func(one cluster.Primary) bool { return one.ID == id }))
}

func TestNoCallOfASlotOvertakesAnotherWhileSlotsMove(t *testing.T) {
	t.Parallel()
	c, p := start(t, 3, 0)
	slots := []int{1, 2, 3, 6000, 16000}
	written := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	calls := 0
	go func() {
		for ctx.Err() == nil {
			var batch []primaries.Call
			for range 3 { // more than one of a slot
				for _, slot := range slots {
					batch = append(batch, primaries.Call{Slot: slot, Function: "add", Args: []any{calls}})
				}
				calls++
			}
			replies, err := p.Do(t.Context(), batch)
			for _, r := range replies {
				err = errors.Join(err, r.Err)
			}
			if err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	for round := range 6 {
		for _, slot := range slots {
			to := c.Addresses()[round%3]
			if c.Owner(t, slot) == to {
				continue
			}
			before := len(list(t, c, slot))
			c.MoveSlot(t, slot, to)
			require.Eventually(t, func() bool { return len(written) > 0 || len(list(t, c, slot)) > before }, await.Patience, time.Millisecond)
		}
	}
	stop()
	require.NoError(t, <-written)
	for _, slot := range slots {
		assert.Equal(t, texts(calls), list(t, c, slot))
	}
}

func TestASKIsNotFollowed(t *testing.T) {
	t.Parallel()
	c, p := start(t, 2, 0)
	const slot = 1
	to := c.Addresses()[1]
	c.StartMove(t, slot, to) // it has no key: ASK
	done := make(chan error, 1)
	go func() {
		replies, err := p.Do(t.Context(), []primaries.Call{{Slot: slot, Function: "add", Args: []any{1}}, {Slot: slot, Function: "add", Args: []any{2}}})
		for _, r := range replies {
			err = errors.Join(err, r.Err)
		}
		done <- err
	}()
	_, err := p.Do(t.Context(), []primaries.Call{{Slot: slot + 1, Function: "add", Args: []any{1}}}) // others do not wait
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = p.Do(ctx, []primaries.Call{{Slot: slot, Function: "add", Args: []any{1}}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Empty(t, done)
	c.EndMove(t, slot)
	require.NoError(t, <-done)
	assert.Equal(t, []string{"1", "2"}, list(t, c, slot))
}

func TestCallsWaitForAPrimaryThatWasKilled(t *testing.T) {
	t.Parallel()
	c, p := start(t, 3, 1)
	call := func(n int) error {
		var calls []primaries.Call
		for _, slot := range []int{1, 6000, 16000} {
			calls = append(calls, primaries.Call{Slot: slot, Function: "add", Args: []any{n}})
		}
		replies, err := p.Do(t.Context(), calls)
		for _, r := range replies {
			err = errors.Join(err, r.Err)
		}
		return err
	}
	require.NoError(t, call(0))
	killed := c.Nodes()[0]
	replica := c.Nodes()[3].Client(t)
	require.Eventually(t, func() bool { return replica.DBSize(t.Context()).Val() == 1 }, await.Patience, time.Millisecond)
	require.NoError(t, killed.Kill())
	for n := range 3 {
		require.NoError(t, call(n+1))
	}
	for _, slot := range []int{1, 6000, 16000} {
		assert.Equal(t, texts(4), list(t, c, slot))
	}
	assert.Equal(t, c.Nodes()[3].Addr(), c.Owner(t, 1))
}
