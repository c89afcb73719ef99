package adminapi

import (
	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// adminID is an id as the admin API takes it.
func adminID(id record.MessageID) (admin.MessageID, error) {
	if err := record.InTopic(id); err != nil {
		return admin.MessageID{}, err
	}
	from := record.StartOf(id)
	return admin.MessageID{Ledger: from.Ledger, Entry: from.Entry(), Partition: int32(id.Partition()), Batch: -1}, nil
}

// peekedID is the id of a message that the admin API gave.
func peekedID(m admin.Message) record.MessageID {
	return record.NewMessageID(record.EntryPlaceOf(m.ID.Ledger, m.ID.Entry), int(m.ID.Partition), m.ID.Batch, m.BatchSize)
}
