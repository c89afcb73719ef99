package load

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/aviaryhq/aviary/test/bench/workload"
)

// tap is a TCP proxy between the client and the brokers. It records when each message passes, to
// divide the delay of the message into stages. It is safe for concurrent use.
type tap struct {
	mu       sync.Mutex
	messages map[uint64]*message // by number of the producer and of the message
	brokers  map[string]string   // the tap's addresses, by those of the brokers
	closers  []io.Closer

	compressed atomic.Bool // some entries are compressed: the tap cannot read them
}

func newTap() *tap { return &tap{messages: map[uint64]*message{}, brokers: map[string]string{}} }

func (t *tap) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.closers {
		_ = c.Close()
	}
}

// replace replaces the URLs of the cluster, and of the remote cluster unless it is empty, with
// addresses of the tap.
func (t *tap) replace(cluster, remote *string) (err error) {
	if *cluster, err = t.open(*cluster, false); err == nil && *remote != "" {
		*remote, err = t.open(*remote, true)
	}
	return err
}

// plainScheme begins the URL of a connection that the tap can read.
const plainScheme = "pulsar://"

// open returns the address of the tap for connections to a broker. remote: the broker belongs to
// the cluster to which messages are replicated.
func (t *tap) open(url string, remote bool) (string, error) {
	host, _, _ := strings.Cut(strings.TrimPrefix(url, plainScheme), ",")
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := t.brokers[host]; at != "" {
		return at, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	t.brokers[host] = plainScheme + l.Addr().String()
	t.closers = append(t.closers, l)
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed
			}
			broker, err := net.Dial("tcp", host)
			if err != nil {
				_ = client.Close()
				continue
			}
			c := &connection{tap: t, remote: remote, pending: map[[2]uint64][]*message{}}
			go pass(client, broker, c.toBroker)
			go pass(broker, client, c.toClient)
		}
	}()
	return t.brokers[host], nil
}

// received records that a consumer has the message.
func (t *tap) received(payload []byte) {
	now := time.Now().UnixNano()
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.messages[binary.BigEndian.Uint64(payload[8:])]; m != nil && m.received == 0 {
		m.received = now
	}
}

// connection is the state of one connection through the tap.
type connection struct {
	tap     *tap
	remote  bool
	pending map[[2]uint64][]*message // by producer and sequence ID; guarded by tap.mu
}

// Fields of a command, and of the messages in it: PulsarApi.proto.
const (
	commandSend         = 6
	commandReceipt      = 7
	commandMessage      = 9
	commandLookup       = 24
	lookupURL           = 1
	producerID          = 1 // of commandSend and commandReceipt
	sequenceID          = 2
	metadataCompression = 8
	metadataBatch       = 11
	singlePayloadSize   = 3
	brokerTimestamp     = 1
)

// Magic numbers before the metadata of an entry: of the broker's metadata, then of the checksum.
const (
	magicChecksum       = 0x0e01
	magicBrokerMetadata = 0x0e02
)

// stampCorrection is added to the broker's time stamp. The stamp is cut to whole milliseconds, so
// it is half a millisecond too early on average.
const stampCorrection = int64(time.Millisecond / 2)

// toBroker records when the client sends the messages of an entry.
func (c *connection) toBroker(command, entry []byte) ([]byte, error) {
	now := time.Now().UnixNano()
	_, send := field(command, commandSend)
	if send == nil {
		return command, nil
	}
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	var sent []*message
	c.tap.each(entry, func(key uint64, due int64) {
		if c.tap.messages[key] == nil {
			c.tap.messages[key] = &message{due: due, sent: now}
		}
		sent = append(sent, c.tap.messages[key])
	})
	c.pending[sequence(send)] = sent
	return command, nil
}

// toClient records receipts and deliveries of the broker. In the response to a lookup it replaces
// the broker's address with that of the tap.
func (c *connection) toClient(command, entry []byte) ([]byte, error) {
	now := time.Now().UnixNano()
	if _, lookup := field(command, commandLookup); lookup != nil {
		_, url := field(lookup, lookupURL)
		if len(url) == 0 {
			return command, nil
		}
		at, err := c.tap.open(string(url), c.remote)
		// In protobuf the last occurrence of a field counts, so appending replaces it.
		lookup = protowire.AppendString(protowire.AppendTag(lookup[:len(lookup):len(lookup)], lookupURL, protowire.BytesType), at)
		return protowire.AppendBytes(protowire.AppendTag(command[:2:2], commandLookup, protowire.BytesType), lookup), err
	}
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	if _, receipt := field(command, commandReceipt); receipt != nil {
		for _, m := range c.pending[sequence(receipt)] {
			m.stored = now
		}
		delete(c.pending, sequence(receipt))
	}
	if _, delivered := field(command, commandMessage); delivered == nil {
		return command, nil
	}
	var begun int64
	if binary.BigEndian.Uint16(entry) == magicBrokerMetadata {
		var added []byte
		added, entry = prefixed(entry[2:])
		ms, _ := field(added, brokerTimestamp)
		begun = int64(ms)*int64(time.Millisecond) + stampCorrection
	}
	c.tap.each(entry, func(key uint64, _ int64) {
		m := c.tap.messages[key]
		switch {
		case m == nil:
		case c.remote && m.offered == 0:
			m.offered = now
		case !c.remote && m.begun == 0:
			m.begun = begun
		}
	})
	return command, nil
}

// sequence returns the producer and the sequence ID of a sending or of a receipt.
func sequence(command []byte) [2]uint64 {
	producer, _ := field(command, producerID)
	id, _ := field(command, sequenceID)
	return [2]uint64{producer, id}
}

// each calls f for each timed message of an entry. The caller holds mu.
func (t *tap) each(entry []byte, f func(key uint64, due int64)) {
	if binary.BigEndian.Uint16(entry) == magicChecksum {
		entry = entry[6:]
	}
	metadata, payload := prefixed(entry)
	if codec, _ := field(metadata, metadataCompression); codec != 0 {
		t.compressed.Store(true)
		return
	}
	one := func(payload []byte) {
		if len(payload) < workload.StampSize {
			return // a broker's own message
		}
		if due := binary.BigEndian.Uint64(payload); due > 0 {
			f(binary.BigEndian.Uint64(payload[8:]), int64(due))
		}
	}
	count, _ := field(metadata, metadataBatch)
	if count == 0 {
		one(payload)
	}
	for range count {
		var single []byte
		single, payload = prefixed(payload)
		size, _ := field(single, singlePayloadSize)
		one(payload[:size])
		payload = payload[size:]
	}
}

// prefixed splits b into its first field, whose length is in the 32 bits before it, and the rest.
func prefixed(b []byte) (first, rest []byte) {
	n := binary.BigEndian.Uint32(b)
	return b[4 : 4+n], b[4+n:]
}

// field returns the value of a field of a protobuf message: a number or bytes. Without it: 0, nil.
func field(b []byte, want protowire.Number) (v uint64, text []byte) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			break
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(number, kind, b)
		switch {
		case size < 0:
			return 0, nil
		case number == want && kind == protowire.VarintType:
			v, _ = protowire.ConsumeVarint(b)
			return v, nil
		case number == want && kind == protowire.BytesType:
			text, _ = protowire.ConsumeBytes(b)
			return 0, text
		}
		b = b[size:]
	}
	return 0, nil
}

// pass copies the frames of a connection. It calls seen with the command and the entry of each
// frame. seen returns the command to send.
func pass(from, to net.Conn, seen func(command, entry []byte) ([]byte, error)) {
	defer func() { _, _ = from.Close(), to.Close() }()
	r, w := bufio.NewReaderSize(from, 1<<16), bufio.NewWriterSize(to, 1<<16)
	for {
		var sizes [2]uint32 // of the frame without this number, and of the command
		if err := binary.Read(r, binary.BigEndian, &sizes); err != nil {
			return
		}
		frame := make([]byte, sizes[0]-4)
		if _, err := io.ReadFull(r, frame); err != nil {
			return
		}
		entry := frame[sizes[1]:]
		command, err := seen(frame[:sizes[1]], entry)
		if err != nil {
			return
		}
		sizes = [2]uint32{uint32(4 + len(command) + len(entry)), uint32(len(command))}
		_ = binary.Write(w, binary.BigEndian, sizes) // Flush returns the first error
		_, _ = w.Write(command)
		_, _ = w.Write(entry)
		if r.Buffered() == 0 && w.Flush() != nil {
			return
		}
	}
}
