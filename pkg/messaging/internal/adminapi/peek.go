package adminapi

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/protofield"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/topicname"
)

// maxPeeked bounds the payloads of one call of Peek, as the broker sends them.
const maxPeeked = 16 << 20

// peek is [Subscription.Peek].
func (c *client) peek(ctx context.Context, s Subscription, n int) ([]PeekedMessage, error) {
	// A broker creates a subscription that it is to look into (Pulsar 4.0.8), which then keeps
	// messages without limit.
	names, err := c.subscriptions(ctx, s.topic.name)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(names, s.name) {
		return nil, fmt.Errorf("%s: %w", c.base, notSubscribed())
	}
	var found []PeekedMessage
	_, index, _ := topicname.SplitPartition(s.topic.name)
	left := int64(maxPeeked)
	for position := 1; len(found) < n; position++ {
		header, data, err := c.ask(ctx, http.MethodGet, s.path()+"/position/"+strconv.Itoa(position), nil, left)
		switch {
		case errors.Is(err, ErrNotFound): // fewer messages than n
			return found, nil
		case position > 1 && errors.Is(err, errTooLarge):
			return found, nil
		case err != nil:
			return nil, err
		}
		left -= int64(len(data))
		entry, err := decodeEntry(header, data, index, n-len(found))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.base, err)
		}
		found = append(found, entry...)
	}
	return found, nil
}

// decodeEntry returns the first messages of an entry, which is one message or a batch: most of them
// at most.
func decodeEntry(header http.Header, data []byte, partition, most int) ([]PeekedMessage, error) {
	var ledger, entry int64
	if _, err := fmt.Sscanf(header.Get("X-Pulsar-Message-Id"), "%d:%d", &ledger, &entry); err != nil {
		return nil, errNotTheAPI
	}
	first := PeekedMessage{
		ID:       record.NewMessageID(record.EntryPlaceOf(ledger, entry), partition, 0, 1),
		Payload:  data,
		Producer: header.Get("X-Pulsar-Producer-Name"),
		Key:      header.Get("X-Pulsar-Partition-Key"),
	}
	var err error
	if first.PublishTime, err = headerTime(header, "X-Pulsar-Publish-Time"); err != nil {
		return nil, err
	}
	if first.EventTime, err = headerTime(header, "X-Pulsar-Event-Time"); err != nil {
		return nil, err
	}
	if text := header.Get("X-Pulsar-Property"); text != "" {
		if err := json.Unmarshal([]byte(text), &first.Properties); err != nil {
			return nil, errNotTheAPI
		}
	}
	batch := header.Get("X-Pulsar-Num-Batch-Message")
	if batch == "" {
		return []PeekedMessage{first}, nil
	}
	n, err := strconv.Atoi(batch)
	if err != nil {
		return nil, errNotTheAPI
	}
	return decodeBatch(first, n, most)
}

func headerTime(header http.Header, name string) (time.Time, error) {
	text := header.Get(name)
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, errNotTheAPI
	}
	return t, nil
}

// decodeBatch splits the payload of an entry of n messages: each has the length of its metadata,
// its metadata and its payload. It stops when it has most: an empty message takes a few bytes
// there, and forty times as many here.
func decodeBatch(entry PeekedMessage, n, most int) ([]PeekedMessage, error) {
	data := entry.Payload
	var messages []PeekedMessage
	for i := 0; i < n && len(messages) < most; i++ {
		if len(data) < 4 {
			return nil, errNotTheAPI
		}
		size := binary.BigEndian.Uint32(data)
		data = data[4:]
		if uint64(size) > uint64(len(data)) {
			return nil, errNotTheAPI
		}
		m := entry
		m.ID = record.NewMessageID(record.EntryOf(entry.ID), entry.ID.Partition(), int32(i), int32(n))
		length, dropped, err := m.decodeSingle(data[:size])
		data = data[size:]
		if err != nil || length > uint64(len(data)) {
			return nil, errNotTheAPI
		}
		m.Payload, data = data[:length:length], data[length:]
		if !dropped {
			messages = append(messages, m)
		}
	}
	return messages, nil
}

// decodeSingle takes from a message's own metadata (SingleMessageMetadata) what differs within a
// batch. It returns the length of the payload, and whether a compaction dropped the message.
func (m *PeekedMessage) decodeSingle(meta []byte) (length uint64, dropped bool, err error) {
	m.Key, m.Properties = "", nil
	err = protofield.Each(meta, func(number protowire.Number, v uint64, text []byte) error {
		switch number {
		case 1:
			return m.decodeProperty(text)
		case 2:
			m.Key = string(text)
		case 3:
			length = v
		case 4:
			dropped = v != 0
		case 5:
			m.EventTime = time.Time{}
			if v != 0 {
				m.EventTime = time.UnixMilli(int64(v))
			}
		}
		return nil
	})
	return length, dropped, err
}

func (m *PeekedMessage) decodeProperty(data []byte) error {
	f, err := protofield.Fields(data)
	if m.Properties == nil {
		m.Properties = make(map[string]string)
	}
	m.Properties[string(f[1].Text)] = string(f[2].Text)
	return err
}
