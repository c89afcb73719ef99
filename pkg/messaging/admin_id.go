package messaging

import "github.com/aviaryhq/aviary/pkg/messaging/internal/admin"

// adminID is an id as the admin API takes it.
func adminID(id MessageID) (admin.MessageID, error) {
	if err := inTopic(id); err != nil {
		return admin.MessageID{}, err
	}
	from := startOf(id)
	return admin.MessageID{Ledger: from.ledger, Entry: from.entry(), Partition: int32(id.Partition()), Batch: -1}, nil
}

// peekedID is the id of a message that the admin API gave.
func peekedID(m admin.Message) MessageID {
	return newMessageID(entryPlaceOf(m.ID.Ledger, m.ID.Entry), int(m.ID.Partition), m.ID.Batch, m.BatchSize)
}
