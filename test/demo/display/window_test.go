package display

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAWindowKillsAndStarts through what it was given, and tells what happens.
func TestAWindowKillsAndStarts(t *testing.T) {
	w := &Window{panels: []*panel{newPanel("a"), newPanel("b")}}
	b := &fakeControl{}
	w.Control("b", b)
	w.act("a", true)
	w.act("b", true)
	w.act("b", false)
	b.err = fmt.Errorf("it is %s", Up)
	w.act("b", false)
	assert.Equal(t, []string{"kill", "again", "again"}, b.did)
	require.Len(t, w.notes, 4)
	for i, want := range []string{"a does not run yet", "b was killed", "b is started again", "b cannot be started: it is running"} {
		assert.Contains(t, w.notes[i], want)
	}
}

type fakeControl struct {
	did []string
	err error
}

func (f *fakeControl) State() State { return State{Phase: Up} }
func (f *fakeControl) Kill() error  { f.did = append(f.did, "kill"); return f.err }
func (f *fakeControl) Again() error { f.did = append(f.did, "again"); return f.err }
