package messaging_test

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// faulty is the broker that tests break, one after the other: a start takes longer than most of
// them do.
var faulty faultyBroker

// starting is held by a test that starts a broker of its own: a start takes all processors.
var starting sync.Mutex

// faultyBroker is a Pulsar of this package's own behind a proxy.
type faultyBroker struct {
	turn sync.Mutex // held by the test that uses it

	url  string
	srv  *stack.PulsarServer
	line *proxy.Proxy
	tb   *lasting
}

// faultyPulsar waits for the broker and lends it until the test ends, see proxy.Pulsar. After a
// test that fails, the next one gets another broker.
func faultyPulsar(t *testing.T) (url string, srv *stack.PulsarServer, line *proxy.Proxy) {
	t.Helper()
	faulty.turn.Lock()
	start := faulty.tb == nil
	if start {
		faulty.url, faulty.srv, faulty.line, faulty.tb = "", nil, nil, &lasting{TB: t}
	}
	t.Cleanup(func() {
		defer faulty.turn.Unlock()
		if faulty.line == nil || t.Failed() { // it did not start, or may be broken
			faulty.tb.failed = t.Failed()
			faulty.end()
			return
		}
		faulty.line.Heal()
	})
	if start {
		starting.Lock()
		defer starting.Unlock()
		faulty.url, faulty.srv, faulty.line = proxy.Pulsar(faulty.tb, stack.Memory("-Xmx512m -XX:MaxDirectMemorySize=256m"))
	}
	return faulty.url, faulty.srv, faulty.line
}

// end stops the broker, if it runs.
func (b *faultyBroker) end() {
	if b.tb != nil {
		b.tb.end()
		b.tb = nil
	}
}

// lasting is a test's for as long as something starts, and outlives it.
type lasting struct {
	testing.TB

	failed bool
	ends   []func()
}

func (l *lasting) Cleanup(f func())             { l.ends = append(l.ends, f) }
func (l *lasting) Failed() bool                 { return l.failed }
func (*lasting) Errorf(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) }
func (*lasting) Logf(format string, a ...any)   { fmt.Fprintf(os.Stderr, format+"\n", a...) }

func (l *lasting) end() {
	for _, f := range slices.Backward(l.ends) {
		f()
	}
	l.ends = nil
}
