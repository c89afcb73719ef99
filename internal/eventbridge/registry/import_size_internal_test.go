package registry

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// An import that the registry has no room for is refused before the first change: what it prunes would be deleted, and what comes first stored, before the rest is refused.
func TestAnImportThatHasNoRoomIsRefusedWhole(t *testing.T) {
	snapshot, err := NewSnapshot(7, []Bus{NewBus("a"), NewBus("old")}, nil)
	require.NoError(t, err)
	s := &Store{log: zap.NewNop(), contents: newContents(nil, zap.NewNop())}
	s.snapshot.Store(snapshot)
	s.contents.snapshot = snapshot
	file := func(subscribers, length int) *strings.Reader {
		text := "format: 1\nbuses:\n- name: a\n  subscribers:\n"
		for i := range subscribers {
			text += fmt.Sprintf("  - {name: s%d, target: {log: {}}, rules: [{name: r, pattern: {a: [%q]}}]}\n", i, strings.Repeat("x", length))
		}
		return strings.NewReader(text)
	}
	const left = 10_000
	stored := func(bytes int) {
		s.contents.bytes = MaxBytes - left
		for _, key := range []string{busKey("a"), busKey("old")} {
			s.contents.entries[key] = &entry{bytes: bytes, revision: 7}
		}
	}
	stored(300)
	for _, dry := range []bool{true, false} {
		steps, err := s.Import(t.Context(), file(10, 1000), ImportOptions{Prune: true, DryRun: dry})
		var bad *Invalid
		require.ErrorAs(t, err, &bad)
		require.Empty(t, steps)
		require.Contains(t, bad.Faults[0].Pointer, "/buses/0/subscribers/")
		require.Contains(t, bad.Faults[0].Problem, "the registry would have")
	}
	steps, err := s.Import(t.Context(), file(5, 1000), ImportOptions{Prune: true, DryRun: true})
	require.NoError(t, err, "there is room")
	require.Len(t, steps, 7)
	stored(10_000)
	_, err = s.Import(t.Context(), file(10, 1000), ImportOptions{Prune: true, DryRun: true})
	require.NoError(t, err, "what is deleted makes room")
}
