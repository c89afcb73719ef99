package engine

import (
	"fmt"
	"strconv"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// The position of an event is the place of its message in the partition as one ascending number:
// ledger, entry and index in the batch, from the highest bits to the lowest. Copies for ordered
// subscribers are stored under it, and have it as a property.
const (
	batchBits = 11 // publishers of events batch at most 2,000
	entryBits = 20 // brokers begin a new ledger after 50,000 entries (managedLedgerMaxEntriesPerLedger)
	// An entry writer needs numbers above the positions: see messaging.EntryWriter.
	ledgerBits = 30
)

// positionOf returns the position of a message, or an error if its place does not fit into one.
func positionOf(id messaging.MessageID) (int64, error) {
	ledger, entry, index := id.Place()
	if id.IsZero() || ledger < 0 || ledger >= 1<<ledgerBits || entry < 0 || entry >= 1<<entryBits || index < 0 || index >= 1<<batchBits {
		return 0, fmt.Errorf("the place of message %s has no position: ledger %d must be below %d, entry %d below %d, index %d below %d. "+
			"Make a bus of another name on a cluster whose ledgers are numbered lower, or with a smaller managedLedgerMaxEntriesPerLedger",
			id, ledger, int64(1)<<ledgerBits, entry, 1<<entryBits, index, 1<<batchBits)
	}
	return ledger<<(entryBits+batchBits) | entry<<batchBits | int64(index), nil
}

// PropertyPosition is the property of a copy for an ordered subscriber that holds the event's
// position in its partition of the bus' topic.
const PropertyPosition = "position"

// storedPosition returns the position of a copy, -1 if it has none.
func storedPosition(d *messaging.Delivery) (int64, error) {
	text, ok := d.Properties[PropertyPosition]
	if !ok {
		return -1, nil
	}
	position, err := strconv.ParseInt(text, 10, 64)
	if err != nil || position < 0 {
		return 0, fmt.Errorf("the last message of %s has an invalid position, %q", d.Topic, text)
	}
	return position, nil
}
