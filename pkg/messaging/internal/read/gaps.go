package read

import (
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// gaps remembers the entries between messages that brought none. They may be chunks of a
// message that is not whole yet: the underlying client keeps chunks until their message is whole,
// shows nothing of them, and forgets them with its connection. A reader that continues begins with
// the first of them again, so that the message comes when its last chunk does.
//
// Other entries bring no message either: transactions' markers, messages whose checksum is wrong.
// So only the latest entries are remembered.
type gaps struct {
	known bool              // last is
	last  record.EntryPlace // the entry that was read last
	read  int64             // entries up to last

	gaps    []gap
	unshown int64 // entries in gaps
}

type gap struct {
	from    record.EntryPlace // its first entry
	entries int64
	at      int64 // entries read up to its end
}

const (
	// maxUnshown bounds the entries of gaps that are remembered, which can be chunks of 5 MiB each.
	maxUnshown = 200
	// maxGapAge is how many entries behind a gap are read before it is forgotten.
	maxGapAge = 2000
)

// beginBehind begins anew behind last.
func (g *gaps) beginBehind(last record.EntryPlace, known bool) {
	*g = gaps{known: known, last: last}
}

// note records a message. More of the same entry, and repeated ones, change nothing.
func (g *gaps) note(id record.MessageID) {
	if !g.known { // the topic's beginning is that of a ledger
		g.beginBehind(record.EntryPlace{Ledger: record.EntryOf(id).Ledger, Number: 0}, true)
	}
	at, last := record.EntryOf(id), g.last
	if at.Ledger < last.Ledger || at.Ledger == last.Ledger && at.Number <= last.Number {
		return
	}
	missing := at.Number // and where the ledger before ended nobody knows
	if at.Ledger == last.Ledger {
		missing = at.Number - last.Number - 1
	}
	g.last = at
	g.read += missing + 1
	if missing > 0 {
		last.Number++
		g.gaps = append(g.gaps, gap{from: last, entries: missing, at: g.read})
		g.unshown += missing
	}
	for len(g.gaps) > 0 && (g.unshown > maxUnshown || g.read-g.gaps[0].at > maxGapAge) {
		g.unshown -= g.gaps[0].entries
		g.gaps = g.gaps[1:]
	}
}

// position is the position of a reader that has read id: it begins with the oldest gap.
func (g *gaps) position(id record.MessageID) record.MessageID {
	if len(g.gaps) > 0 {
		return record.StartingAt(id, g.gaps[0].from)
	}
	return id
}
