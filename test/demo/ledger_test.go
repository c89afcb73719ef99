package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/test/demo/display"
)

// TestLedgerTellsWhatIsMissing, what came twice, and how late it was.
func TestLedgerTellsWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(1)
		for n := int64(1); n <= 6; n++ {
			if n == 3 {
				l.skip(n)
				continue
			}
			l.send(n, time.Now())
		}
		time.Sleep(display.Overdue)
		missing, lag := l.behind()
		assert.Zero(t, missing, "not yet")
		assert.Equal(t, display.Overdue, lag)
		for _, n := range []int64{2, 1, 5, 2, 5} {
			l.arrive(n)
		}
		time.Sleep(time.Second)
		missing, lag = l.behind()
		assert.EqualValues(t, 2, missing, "4 and 6")
		assert.Equal(t, display.Overdue+time.Second, lag, "of what is still missing")
		assert.EqualValues(t, 5, l.sent)
		assert.EqualValues(t, 3, l.arrived)
		assert.EqualValues(t, 2, l.twice)
		l.arrive(4)
		l.arrive(6)
		l.send(8, time.Now())
		l.arrive(7) // before its sender knows that it was stored
		began := time.Now()
		time.Sleep(time.Second)
		l.send(7, began)
		l.arrive(8)
		missing, lag = l.behind()
		assert.Zero(t, missing)
		assert.Equal(t, time.Second, lag)
		assert.Equal(t, l.sent, l.arrived)
		assert.Empty(t, l.ahead, "what arrived without gaps takes no memory")
		assert.Empty(t, l.early)
	})
}

// TestOutgoingTellsWhatIsMissing: what Prometheus holds back while its receiver is killed, and what
// it has handed over and never arrives.
func TestOutgoingTellsWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outgoing
		arrived := int64(0)
		read := func(s sent) {
			o.add(time.Now(), s, arrived)
			time.Sleep(outgoingEvery)
		}
		for n := range int64(20) { // each batch is on its way for a while
			read(sent{samples: 100 * n})
			arrived = 100 * n
			read(sent{samples: 100 * n, pending: 100})
		}
		assert.Zero(t, o.missing(arrived))
		assert.EqualValues(t, 1900, o.taken, "a batch on its way is counted twice")

		for n := range int64(20) { // the receiver is killed: a batch is tried again and again
			read(sent{samples: 1900, retried: 100 * n, pending: 100 * n})
		}
		assert.Greater(t, o.missing(arrived), int64(1000))
		arrived = 1900 + 1900
		for range 2 * outgoingReads {
			read(sent{samples: 1900 + 1900, retried: 1900})
		}
		assert.Zero(t, o.missing(arrived), "it has sent them")
		assert.Equal(t, arrived, o.taken)
		for n := range int64(20) { // 7 are lost for good
			read(sent{samples: 3800 + 100*n, retried: 1900})
			arrived = 3800 + 100*n - 7
			read(sent{samples: 3800 + 100*n, retried: 1900})
		}
		assert.EqualValues(t, 7, o.missing(arrived))
	})
}
