package record

import "github.com/apache/pulsar-client-go/pulsar"

// Place is where an entry stands in its partition. Where messages of a batch are acknowledged
// one by one, each counts as an entry.
type Place struct {
	Ledger, Entry int64
	Batch         int32
}

// PlaceOf is the position of a message.
func PlaceOf(id pulsar.MessageID) Place {
	return Place{id.LedgerID(), id.EntryID(), id.BatchIdx()}
}

// Less reports whether p is before o.
func (p Place) Less(o Place) bool {
	// Several times a message: cmp.Or, which compares all three, takes three times as long.
	if p.Ledger != o.Ledger {
		return p.Ledger < o.Ledger
	}
	if p.Entry != o.Entry {
		return p.Entry < o.Entry
	}
	return p.Batch < o.Batch
}

// GapBefore reports whether the topic has entries between p and a later position. The last entries
// of a ledger are not known.
func (p Place) GapBefore(at Place) bool {
	if p.Ledger == at.Ledger {
		return at.Entry > p.Entry+1
	}
	return p.Ledger < at.Ledger && at.Entry > 0
}

// EntryPlace is an entry of a partition. The zero EntryPlace is none.
type EntryPlace struct {
	Ledger int64
	Number int64 // the entry's plus one
}

// EntryPlaceOf is an entry of a ledger.
func EntryPlaceOf(ledger, entry int64) EntryPlace {
	return EntryPlace{Ledger: ledger, Number: entry + 1}
}

// IsZero reports whether p is none.
func (p EntryPlace) IsZero() bool { return p == EntryPlace{} }

// Entry is its number in the ledger.
func (p EntryPlace) Entry() int64 { return p.Number - 1 }
