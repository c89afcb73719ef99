package sonic

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// A ledger notes what writers were told. It is safe for concurrent use.
type ledger struct {
	mu sync.Mutex
	// counters is, of each counter or element of one, the sum of what was acknowledged.
	counters map[string]*tally
	// own are the writes that are each made once: what they wrote, and whether that was
	// acknowledged.
	own map[string]outcome
	// state is what keys hold of which each has one writer, where that is known.
	state map[string]string
	// last are the last commands on each key.
	last map[string][]string
	// total counts outcomes of commands.
	total map[outcome]int
}

// A tally is of increments. Those whose reply never came may have counted: they add up to less than
// low and high.
type tally struct{ acknowledged, low, high int64 }

// An outcome is what a writer knows of a command.
type outcome string

const (
	acknowledged outcome = "acknowledged"
	refused      outcome = "refused" // Redis or Sonic said why; nothing was executed
	unknown      outcome = "unknown" // no reply came
)

// keptCommands is how many commands are kept of each key.
const keptCommands = 24

func newLedger() *ledger {
	return &ledger{counters: map[string]*tally{}, own: map[string]outcome{}, state: map[string]string{}, last: map[string][]string{}, total: map[outcome]int{}}
}

// counted notes an increment.
func (l *ledger) counted(counter string, by int64, o outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.counters[counter]
	if t == nil {
		t = &tally{}
		l.counters[counter] = t
	}
	switch {
	case o == acknowledged:
		t.acknowledged += by
	case o == unknown && by < 0:
		t.low += by
	case o == unknown:
		t.high += by
	}
}

// wrote notes a write that is made once.
func (l *ledger) wrote(what string, o outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own[what] = o
}

// holds notes what a key holds. An empty value: it is not known any more.
func (l *ledger) holds(key, value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state[key] = value; value == "" {
		delete(l.state, key)
	}
}

// sent notes commands and what became of each. keys are those that they may name.
func (l *ledger) sent(zone string, db int, how string, batch [][]string, errs []error, keys map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now().Format("15:04:05.000000")
	for i, words := range batch {
		l.total[outcomeOf(errs[i])]++
		line := fmt.Sprintf("%s zone %s db %d%s %.300q", now, zone, db, how, words)
		if errs[i] != nil {
			line += fmt.Sprintf(": %.100s", errs[i])
		}
		for _, word := range words[1:] {
			if keys[word] {
				l.last[word] = append(l.last[word][max(0, len(l.last[word])-keptCommands+1):], line)
			}
		}
	}
}

// lastOf are the last commands on a key.
func (l *ledger) lastOf(key string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last[key], "\n    ")
}

// String tells how much there is.
func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	doubt := int64(0)
	for _, t := range l.counters {
		doubt += t.high - t.low
	}
	return fmt.Sprintf("random commands: %v; written once: %d; increments in doubt: %d", l.total, len(l.own), doubt)
}
