package engine

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

func testIdentity(id string) identity {
	return identityOf(&messaging.Delivery{}, &event.Event{Source: "s", ID: id})
}

func TestWindow(t *testing.T) {
	capacity := &windowCapacity{most: 100}
	w := newWindow(time.Minute, capacity)
	start := time.UnixMilli(1_000_000)
	seen := func(id string, position int64, after time.Duration) bool {
		first, forgotten := w.seen(testIdentity(id), position, start.Add(after))
		assert.Zero(t, forgotten)
		return first != position
	}
	assert.False(t, seen("a", 1, 0))
	assert.True(t, seen("a", 2, 30*time.Second))
	assert.False(t, seen("b", 3, 30*time.Second))
	assert.False(t, seen("a", 1, 0), "it is delivered again")
	assert.True(t, seen("a", 2, 30*time.Second), "so is this one")
	assert.True(t, seen("a", 4, 80*time.Second), "the one before stands no longer before it")
	assert.False(t, seen("b", 5, 90*time.Second), "it does here")
	assert.True(t, seen("b", 6, 89*time.Second), "clocks differ")
	assert.False(t, seen("a", 7, time.Hour))
	assert.EqualValues(t, 1, capacity.used.Load(), "what is old is forgotten")
	w.close()
	assert.Zero(t, capacity.used.Load())
	of := func(tenant, source, id string) identity {
		return identityOf(&messaging.Delivery{Properties: map[string]string{model.PropertyTenant: tenant}}, &event.Event{Source: source, ID: id})
	}
	assert.NotEqual(t, of("", "a", "bc"), of("", "ab", "c"))
	assert.NotEqual(t, of("t", "a", "b"), of("", "ta", "b"))
}

// A backlog that is longer than the window is read ahead when a partition is taken over. An id may
// come again behind the window, and what comes again within it is left out all the same.
func TestABacklogLongerThanTheWindow(t *testing.T) {
	start := time.UnixMilli(1_000_000_000)
	capacity := &windowCapacity{most: 100}
	type one struct {
		id    string
		after time.Duration
		again bool
	}
	topic := []one{
		{"acknowledged", 0, false},
		{"first", time.Second, false},
		{"x", 2 * time.Second, false},
		{"acknowledged", 10 * time.Second, true},
		{"x", 20 * time.Second, true},
		{"x", 10 * time.Minute, false}, // a new one of its id
		{"y", 20 * time.Minute, false},
		{"x", 30 * time.Minute, false}, // another one
		{"x", 30*time.Minute + time.Second, true},
	}
	for _, upTo := range []int{2, 5, 6, len(topic)} { // reading ahead may end early, for want of time
		w := newWindow(time.Minute, capacity)
		for i, e := range topic[:upTo] {
			require.Zero(t, w.ahead(testIdentity(e.id), int64(i), start.Add(e.after)))
		}
		for range 2 { // they may be delivered again
			for i, e := range topic[1:min(upTo, len(topic))] {
				again, _ := w.judge(testIdentity(e.id), int64(i+1), start.Add(e.after))
				assert.Equal(t, e.again, again, "%s after %s, read ahead up to %d", e.id, e.after, upTo)
			}
		}
		for i, e := range topic[upTo:] {
			again, _ := w.judge(testIdentity(e.id), int64(upTo+i), start.Add(e.after))
			assert.Equal(t, e.again, again, "%s after %s, behind what was read ahead up to %d", e.id, e.after, upTo)
		}
		if upTo == 5 {
			assert.Nil(t, w.left, "the verdicts are forgotten behind the window")
		}
		w.close()
		require.Zero(t, capacity.used.Load())
	}
}

// One that is delivered again, when another of its id has come behind the window, changes nothing
// for that other one.
func TestDeliveredAgainBehindTheWindow(t *testing.T) {
	w := newWindow(time.Minute, &windowCapacity{most: 100})
	start := time.UnixMilli(1_000_000_000)
	for _, e := range []struct {
		position int64
		after    time.Duration
	}{{1, 0}, {9, time.Hour}, {1, 0}, {9, time.Hour}} {
		again, _ := w.judge(testIdentity("x"), e.position, start.Add(e.after))
		assert.False(t, again, "position %d", e.position)
	}
}

// What stands before the first event that is delivered is delivered later, when a broker has lost
// acknowledgements.
func TestDeliveredAgainBeforeTheFirst(t *testing.T) {
	w := newWindow(time.Hour, &windowCapacity{most: 100})
	now := time.Now()
	for i, id := range []string{"x", "x", "y"} {
		require.Zero(t, w.ahead(testIdentity(id), int64(i), now))
	}
	for _, e := range []struct {
		id       string
		position int64
		again    bool
	}{{"y", 2, false}, {"x", 0, false}, {"x", 1, true}, {"y", 2, false}, {"x", 3, true}} {
		again, _ := w.judge(testIdentity(e.id), e.position, now)
		assert.Equal(t, e.again, again, "%s at %d", e.id, e.position)
	}
}

// An event that is refused does not count: what repeats it comes, once. It may have been read ahead
// together with what repeats it, and rules may have changed before it is delivered.
func TestARefusedEventDoesNotCount(t *testing.T) {
	now := time.Now()
	for _, ahead := range []int64{0, 1, 2, 4} {
		capacity := &windowCapacity{most: 100}
		w := newWindow(time.Hour, capacity)
		for i := range ahead {
			require.Zero(t, w.ahead(testIdentity("x"), i, now))
		}
		for range 2 { // they may be delivered again
			for i, wanted := range []bool{false, false, false, true, true} {
				again, _ := w.judge(testIdentity("x"), int64(i), now)
				assert.Equal(t, wanted, again, "event %d, read ahead %d", i, ahead)
				if i < 2 {
					w.refuse(testIdentity("x"), int64(i))
				}
			}
		}
		w.close()
		require.Zero(t, capacity.used.Load())
	}
}

// Without capacity for the verdict, a second copy comes rather than none.
func TestARefusedEventDoesNotCountWithoutCapacity(t *testing.T) {
	w := newWindow(time.Hour, &windowCapacity{most: 2})
	now := time.Now()
	for i := range int64(2) {
		w.ahead(testIdentity("x"), i, now)
	}
	w.refuse(testIdentity("x"), 0)
	again, _ := w.judge(testIdentity("x"), 1, now)
	assert.False(t, again)
}

func TestTheRoomOfVerdictsIsBounded(t *testing.T) {
	capacity := &windowCapacity{most: 10}
	w := newWindow(time.Hour, capacity)
	forgotten := 0
	for i := range int64(100) {
		forgotten += w.ahead(testIdentity("x"), i, time.Now())
	}
	assert.LessOrEqual(t, capacity.used.Load(), int64(10))
	assert.LessOrEqual(t, len(w.left), 10)
	assert.Positive(t, forgotten)
}

func TestTheRoomOfWindowsIsBounded(t *testing.T) {
	capacity := &windowCapacity{most: 1000}
	a, b := newWindow(time.Hour, capacity), newWindow(time.Hour, capacity)
	now := time.Now()
	forgotten := 0
	for i := range int64(5000) {
		w := a
		if i%2 == 1 {
			w = b
		}
		_, n := w.seen(testIdentity(fmt.Sprint(i)), i, now)
		forgotten += n
	}
	assert.Equal(t, 4000, forgotten)
	assert.EqualValues(t, 1000, capacity.used.Load())
	assert.Len(t, a.by, 500)
	assert.LessOrEqual(t, cap(a.order), 4096)
	again, _ := a.judge(testIdentity("4998"), 9999, now)
	assert.True(t, again, "the newest are remembered")
	again, _ = a.judge(testIdentity("0"), 10000, now)
	assert.False(t, again)
}

// A partition that gets nothing any more leaves the room to others.
func TestAQuietPartitionGivesItsRoomBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.DedupEvents = 10
		e := New(Options{Config: cfg, Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry())})
		ctx, cancel := context.WithCancel(t.Context())
		b := e.newBus(ctx, &model.Bus{Name: busName, DedupWindow: model.Duration(10 * time.Minute)}, nil)
		b.own(ctx, "topic", 0)
		p := b.owned[0]
		p.rebuilt = true
		for i := range 8 {
			p.mu.Lock()
			assert.False(t, p.again(ctx, testIdentity(fmt.Sprint(i)), int64(i), &messaging.Delivery{PublishTime: time.Now()}))
			p.mu.Unlock()
			time.Sleep(time.Minute)
		}
		assert.EqualValues(t, 8, e.capacity.used.Load())
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		assert.Zero(t, e.capacity.used.Load())
		assert.False(t, p.rebuilt, "it is read back with the next event")
		cancel()
		e.working.Wait()
		b.halt()
		b.endQueues()
	})
}

func TestPositionsAscend(t *testing.T) {
	id := func(ledger, entry uint64, index byte) messaging.MessageID {
		b := []byte{1 << 3}
		for ; ledger > 127; ledger >>= 7 {
			b = append(b, byte(ledger)|128)
		}
		b = append(b, byte(ledger), 2<<3)
		for ; entry > 127; entry >>= 7 {
			b = append(b, byte(entry)|128)
		}
		b = append(b, byte(entry), 3<<3, 0, 4<<3, index, 6<<3, 100)
		m, err := messaging.ParseMessageID(b)
		require.NoError(t, err)
		return m
	}
	last := int64(-1)
	for _, m := range []messaging.MessageID{id(0, 0, 0), id(0, 0, 1), id(0, 1, 0), id(0, 1<<20-1, 99), id(1, 0, 0), id(1<<30-1, 1<<20-1, 99)} {
		position, err := positionOf(m)
		require.NoError(t, err)
		assert.Greater(t, position, last)
		last = position
	}
	assert.Less(t, last, int64(1)<<61)
	for _, m := range []messaging.MessageID{id(1<<30, 0, 0), id(1, 1<<20, 0), {}} {
		_, err := positionOf(m)
		assert.ErrorContains(t, err, "managedLedgerMaxEntriesPerLedger")
	}
	position, err := storedPosition(&messaging.Delivery{Properties: map[string]string{PropertyPosition: "12"}})
	require.NoError(t, err)
	assert.EqualValues(t, 12, position)
	position, err = storedPosition(&messaging.Delivery{})
	require.NoError(t, err)
	assert.EqualValues(t, -1, position)
	_, err = storedPosition(&messaging.Delivery{Properties: map[string]string{PropertyPosition: "x"}})
	assert.Error(t, err)
}
