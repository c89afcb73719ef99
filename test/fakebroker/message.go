package fakebroker

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"io"
	"sort"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"google.golang.org/protobuf/encoding/protowire"
)

// Compression is the codec of an entry's payload (enum CompressionType).
type Compression int32

// The codecs of the protocol.
const (
	None Compression = iota
	LZ4
	ZLIB
	ZSTD
	Snappy
)

// Message is one message as it lies in the log: a message of a batch is a Message of its own.
type Message struct {
	// Topic is the full name of the partition, or of the topic if it has no partitions.
	Topic string
	// Partition is -1 if the topic has no partitions.
	Partition int
	Ledger    uint64
	Entry     uint64
	// BatchIndex is -1 and BatchSize 0 if the message was not sent in a batch.
	BatchIndex int
	BatchSize  int
	// Compression is that of the whole entry.
	Compression Compression

	ProducerName   string
	SequenceID     uint64
	Key            string
	OrderingKey    string
	Properties     map[string]string
	Payload        []byte
	NullValue      bool
	PublishTime    time.Time
	EventTime      time.Time
	DeliverAt      time.Time
	ReplicatedFrom string
	SchemaVersion  []byte
	// Chunks is above 1 if this is one chunk of a chunked message; Payload is then the chunk as it
	// was sent.
	Chunks int
}

// entryMetadata is MessageMetadata: producer_name = 1, sequence_id = 2, publish_time = 3,
// properties = 4, replicated_from = 5, partition_key = 6, compression = 8, uncompressed_size = 9,
// num_messages_in_batch = 11, event_time = 12, schema_version = 16, ordering_key = 18,
// deliver_at_time = 19, null_value = 25, num_chunks_from_msg = 27.
type entryMetadata struct {
	Message
	uncompressed int
	messages     int
	batch        bool
}

func decodeEntryMetadata(b []byte) (m entryMetadata, err error) {
	m.messages, m.BatchIndex = 1, -1
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			m.ProducerName = string(f.b)
		case 2:
			m.SequenceID = f.n
		case 3:
			m.PublishTime = fromMillis(f.n)
		case 4:
			return addProperty(&m.Properties, f.b)
		case 5:
			m.ReplicatedFrom = string(f.b)
		case 6:
			m.Key = string(f.b)
		case 8:
			m.Compression = Compression(f.n)
		case 9:
			m.uncompressed = int(f.n)
		case 11:
			// A batch of one is still framed as a batch: what counts is that the field is there.
			m.messages, m.batch = int(int32(f.n)), true
		case 12:
			m.EventTime = fromMillis(f.n)
		case 16:
			m.SchemaVersion = bytes.Clone(f.b)
		case 18:
			m.OrderingKey = string(f.b)
		case 19:
			m.DeliverAt = fromMillis(f.n)
		case 25:
			m.NullValue = f.n != 0
		case 27:
			m.Chunks = int(f.n)
		}
		return nil
	})
	return m, err
}

// decodeSingle reads SingleMessageMetadata over the fields taken from the entry: properties = 1,
// partition_key = 2, payload_size = 3, event_time = 5, ordering_key = 7, sequence_id = 8,
// null_value = 9.
func decodeSingle(b []byte, m *Message) (size int, err error) {
	err = eachField(b, func(f field) error {
		switch f.num {
		case 1:
			return addProperty(&m.Properties, f.b)
		case 2:
			m.Key = string(f.b)
		case 3:
			size = int(int32(f.n))
		case 5:
			m.EventTime = fromMillis(f.n)
		case 7:
			m.OrderingKey = string(f.b)
		case 8:
			m.SequenceID = f.n
		case 9:
			m.NullValue = f.n != 0
		}
		return nil
	})
	return size, err
}

// unpack decodes an entry into its messages.
func unpack(raw []byte) ([]Message, error) {
	metaBytes, payload, err := splitEntry(raw)
	if err != nil {
		return nil, err
	}
	meta, err := decodeEntryMetadata(metaBytes)
	if err != nil {
		return nil, fmt.Errorf("decode metadata: %w", err)
	}
	if meta.Chunks > 1 {
		// The chunks were cut from the compressed payload, so one alone cannot be decompressed.
		m := meta.Message
		m.Payload = payload
		return []Message{m}, nil
	}
	if meta.uncompressed > 0 {
		if payload, err = decompress(meta.Compression, payload, meta.uncompressed); err != nil {
			return nil, fmt.Errorf("decompress entry: %w", err)
		}
	}
	if !meta.batch {
		m := meta.Message
		m.Payload = payload
		return []Message{m}, nil
	}
	messages := make([]Message, 0, meta.messages)
	for i := range meta.messages {
		m := meta.Message
		// The client copies key and properties of the first message of a batch into the entry. They
		// are not defaults.
		m.Key, m.OrderingKey, m.Properties, m.EventTime = "", "", nil, time.Time{}
		m.BatchIndex, m.BatchSize = i, meta.messages
		m.SequenceID = meta.SequenceID + uint64(i)
		if len(payload) < 4 {
			return nil, fmt.Errorf("batch of %d messages ends before message %d", meta.messages, i)
		}
		n := int(binary.BigEndian.Uint32(payload))
		payload = payload[4:]
		if n > len(payload) {
			return nil, fmt.Errorf("metadata of message %d exceeds the batch", i)
		}
		size, err := decodeSingle(payload[:n], &m)
		if err != nil {
			return nil, fmt.Errorf("decode metadata of message %d: %w", i, err)
		}
		payload = payload[n:]
		if size < 0 || size > len(payload) {
			return nil, fmt.Errorf("payload of message %d exceeds the batch", i)
		}
		m.Payload, payload = payload[:size], payload[size:]
		messages = append(messages, m)
	}
	return messages, nil
}

// pack is the inverse of unpack, for messages that no client sent: an entry of one message, or a
// batch.
func pack(messages []Message, compression Compression, batch bool) ([]byte, error) {
	first := messages[0]
	meta := message(nil).str(1, first.ProducerName).num(2, first.SequenceID).num(3, toMillis(first.PublishTime))
	var payload []byte
	if batch {
		for _, m := range messages {
			single := properties(nil, 1, m.Properties)
			if m.Key != "" {
				single = single.str(2, m.Key)
			}
			single = single.num(3, uint64(len(m.Payload)))
			if !m.EventTime.IsZero() {
				single = single.num(5, toMillis(m.EventTime))
			}
			if m.OrderingKey != "" {
				single = single.str(7, m.OrderingKey)
			}
			single = single.num(8, m.SequenceID)
			if m.NullValue {
				single = single.flag(9, true)
			}
			payload = binary.BigEndian.AppendUint32(payload, uint32(len(single)))
			payload = append(payload, single...)
			payload = append(payload, m.Payload...)
		}
	} else {
		payload = first.Payload
		meta = properties(meta, 4, first.Properties)
	}
	if first.ReplicatedFrom != "" {
		meta = meta.str(5, first.ReplicatedFrom)
	}
	if first.Key != "" {
		meta = meta.str(6, first.Key)
	}
	uncompressed := len(payload)
	if compression != None {
		var err error
		if payload, err = compress(compression, payload); err != nil {
			return nil, err
		}
		meta = meta.num(8, uint64(compression))
	}
	meta = meta.num(9, uint64(uncompressed))
	if batch {
		meta = meta.num(11, uint64(len(messages)))
	}
	if !first.EventTime.IsZero() && !batch {
		meta = meta.num(12, toMillis(first.EventTime))
	}
	if first.OrderingKey != "" {
		meta = meta.str(18, first.OrderingKey)
	}
	if first.NullValue && !batch {
		meta = meta.flag(25, true)
	}
	return joinEntry(meta, payload), nil
}

// properties appends the map as repeated KeyValue (key = 1, value = 2), sorted so that equal
// messages make equal bytes.
func properties(m message, num protowire.Number, props map[string]string) message {
	keys := make([]string, 0, len(props))
	for k := range props {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		m = m.bytes(num, message(nil).str(1, k).str(2, props[k]))
	}
	return m
}

func addProperty(props *map[string]string, b []byte) error {
	var key, value string
	err := eachField(b, func(f field) error {
		switch f.num {
		case 1:
			key = string(f.b)
		case 2:
			value = string(f.b)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if *props == nil {
		*props = map[string]string{}
	}
	(*props)[key] = value
	return nil
}

func decompress(c Compression, b []byte, size int) ([]byte, error) {
	switch c {
	case None:
		return b, nil
	case LZ4:
		out := make([]byte, size)
		n, err := lz4.UncompressBlock(b, out)
		return out[:max(n, 0)], err
	case ZLIB:
		r, err := zlib.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(io.LimitReader(r, int64(size)))
	case ZSTD:
		r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return r.DecodeAll(b, make([]byte, 0, size))
	case Snappy:
		return snappy.Decode(nil, b)
	}
	return nil, fmt.Errorf("unknown compression %d", c)
}

func compress(c Compression, b []byte) ([]byte, error) {
	switch c {
	case LZ4:
		// Pulsar uses raw blocks, which cannot say "stored": a block that would not shrink needs
		// room to grow.
		out := make([]byte, lz4.CompressBlockBound(len(b)))
		var compressor lz4.Compressor
		n, err := compressor.CompressBlock(b, out)
		if err == nil && n == 0 {
			return nil, fmt.Errorf("%d bytes are incompressible for LZ4", len(b))
		}
		return out[:n], err
	case ZSTD:
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer func() { _ = w.Close() }()
		return w.EncodeAll(b, nil), nil
	case ZLIB:
		var out bytes.Buffer
		w := zlib.NewWriter(&out)
		if _, err := w.Write(b); err != nil {
			return nil, err
		}
		err := w.Close()
		return out.Bytes(), err
	case Snappy:
		return snappy.Encode(nil, b), nil
	}
	return nil, fmt.Errorf("unknown compression %d", c)
}

func fromMillis(ms uint64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms))
}

func toMillis(t time.Time) uint64 {
	return uint64(t.UnixMilli())
}
