package store

import (
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// An import that the registry has no room for is refused before the first change: what it prunes
// would be deleted, and what comes first stored, before the rest is refused.
func TestAnImportThatHasNoRoomIsRefusedWhole(t *testing.T) {
	snapshot, err := NewSnapshot(7, []model.Bus{model.NewBus("a"), model.NewBus("old")}, nil)
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
		s.contents.bytes = model.MaxBytes - left
		for _, key := range []string{busKey("a"), busKey("old")} {
			s.contents.entries[key] = &entry{bytes: bytes, revision: 7}
		}
	}
	stored(300)
	for _, dry := range []bool{true, false} {
		steps, err := s.Import(t.Context(), file(10, 1000), ImportOptions{Prune: true, DryRun: dry})
		var bad *model.Invalid
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

// What an import was found to have room for has it, though revisions grow longer on the way.
func TestAnImportThatIsTakenHasRoom(t *testing.T) {
	snapshot, err := NewSnapshot(98, []model.Bus{model.NewBus("a")}, nil)
	require.NoError(t, err)
	s := &Store{log: zap.NewNop(), contents: newContents(nil, zap.NewNop())}
	s.snapshot.Store(snapshot)
	s.contents.snapshot = snapshot
	s.contents.share()
	s.contents.entries[busKey("a")] = &entry{bytes: 300, revision: 98}
	text := "format: 1\nbuses:\n- name: a\n  subscribers:\n"
	for i := range 20 {
		text += fmt.Sprintf("  - {name: s%d, target: {log: {}}, rules: [{name: r, pattern: {a: [b]}}]}\n", i)
	}
	left := sort.Search(100_000, func(left int) bool {
		s.contents.bytes = model.MaxBytes - left
		_, err := s.Import(t.Context(), strings.NewReader(text), ImportOptions{DryRun: true})
		return err == nil
	})
	s.contents.bytes = model.MaxBytes - left
	file, err := readImport(strings.NewReader(text), ImportOptions{}, model.Checks{})
	require.NoError(t, err)
	for i := range file.subscribers {
		key := subscriberKey("a", file.subscribers[i].Name)
		_, _, r, err := s.decideSubscriber(t.Context(), key, &birth{uid: newUID()}, &file.subscribers[i], Condition{})
		require.NoError(t, err)
		r.Format, r.Change = formatVersion, newID()
		m, err := r.message(key)
		require.NoError(t, err)
		require.NoError(t, s.fits(key, len(m.Payload)), key)
		s.contents.apply(&messaging.Delivery{Key: key, Payload: m.Payload, Properties: m.Properties})
	}
}
