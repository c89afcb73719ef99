package store

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

func storeOf(t *testing.T, revision int64, buses ...string) *Store {
	t.Helper()
	var all []model.Bus
	for _, name := range buses {
		all = append(all, model.NewBus(name))
	}
	snapshot, err := NewSnapshot(revision, all, nil)
	require.NoError(t, err)
	s := &Store{log: zap.NewNop(), contents: newContents(nil, zap.NewNop())}
	s.snapshot.Store(snapshot)
	s.contents.snapshot = snapshot
	s.contents.share()
	return s
}

func subscriberOf(i, length int) *model.Subscriber {
	sub := model.NewSubscriber("a", fmt.Sprintf("s%d", i))
	sub.Target.Log = &model.LogTarget{}
	sub.Rules = []model.Rule{{Name: "r", Pattern: json.RawMessage(fmt.Sprintf(`{"a":[%q]}`, strings.Repeat("x", length)))}}
	return &sub
}

// Changes that the registry has no room for together are refused before the first one.
func TestADraftCountsWhatItsChangesNeed(t *testing.T) {
	s := storeOf(t, 7, "a", "old")
	draft := func(bytes, subscribers int) (err error) {
		s.contents.entries["filler"] = &entry{bytes: model.MaxBytes - 10_000 - 2*bytes}
		for _, key := range []string{busKey("a"), busKey("old")} {
			s.contents.entries[key] = &entry{bytes: bytes, revision: 7}
		}
		d := s.Draft()
		require.NoError(t, d.Delete("old", ""))
		for i := range subscribers {
			if err == nil {
				_, _, err = d.PutSubscriber(t.Context(), subscriberOf(i, 1000))
			}
		}
		return err
	}
	var bad *model.Invalid
	require.ErrorAs(t, draft(300, 10), &bad)
	require.Contains(t, bad.Faults[0].Problem, "the registry would have")
	require.NoError(t, draft(300, 5), "there is room")
	require.NoError(t, draft(10_000, 10), "what is deleted makes room")
}

// What a draft has room for, the registry has room for, though revisions grow longer on the way.
func TestADraftThatIsTakenHasRoom(t *testing.T) {
	s := storeOf(t, 98, "a")
	s.contents.entries[busKey("a")] = &entry{bytes: 300, revision: 98}
	left := sort.Search(100_000, func(left int) bool {
		s.contents.entries["filler"] = &entry{bytes: model.MaxBytes - 300 - left}
		d := s.Draft()
		for i := range 20 {
			if _, _, err := d.PutSubscriber(t.Context(), subscriberOf(i, 1)); err != nil {
				return false
			}
		}
		return true
	})
	s.contents.entries["filler"] = &entry{bytes: model.MaxBytes - 300 - left}
	for i := range 20 {
		sub := subscriberOf(i, 1)
		key := subscriberKey("a", sub.Name)
		snapshot, _, revision := s.view(key)
		_, r, err := s.completeSubscriber(snapshot, sub, newUID(), revision, now())
		require.NoError(t, err)
		m, err := r.message(key, newID(), "")
		require.NoError(t, err)
		require.NoError(t, s.fits(key, len(m.Payload)), key)
		s.contents.apply(&messaging.Delivery{Key: key, Payload: m.Payload, Properties: m.Properties})
	}
}
