package load

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// sumTolerance is the allowed difference between the sum of the stages and the total delay, as a
// fraction.
const sumTolerance = 0.05

// stampCorrection is added to the broker's time stamp. The stamp is cut to whole milliseconds, so
// it is half a millisecond too early on average.
const stampCorrection = int64(time.Millisecond / 2)

// message holds the times at which a message reached each point, in nanoseconds since 1970; 0: not
// yet, or unknown.
type message struct {
	due      int64
	sent     int64 // the client has written its batch to the connection
	begun    int64 // the broker begins to store it: the broker's time stamp
	stored   int64 // the broker has acknowledged it
	offered  int64 // the other cluster has sent it to a consumer
	received int64 // the consumer has it
}

// tap is a TCP proxy between the client and the brokers. It records when each message passes, to
// divide the delay of the message into stages. It is safe for concurrent use.
type tap struct {
	mu       sync.Mutex
	messages map[uint64]*message // by number of the producer and of the message
	brokers  map[string]string   // the tap's addresses, by those of the brokers
	closers  []io.Closer

	compressed atomic.Bool // some entries are compressed: the tap cannot read them
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

func (t *tap) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.closers {
		_ = c.Close()
	}
}

// newTap opens a tap to the cluster and, if remote is not empty, to the remote cluster. It replaces
// both URLs with addresses of the tap.
func newTap(cluster *messaging.Config, remote *string) (*tap, error) {
	t := &tap{messages: map[uint64]*message{}, brokers: map[string]string{}}
	var err error
	if cluster.URL, err = t.open(cluster.URL, false); err == nil && *remote != "" {
		*remote, err = t.open(*remote, true)
	}
	return t, err
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

// results adds figures and histograms of the stages, of messages that were due after since.
// The means include negative values, which the histograms cannot hold. The sum of the means must
// equal the mean of the total delay, which is measured independently.
func (t *tap) results(since time.Time, into *Result) error {
	if t.compressed.Load() {
		return errors.New("stages: entries are compressed: the side needs publisher: {compression: none}")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	histograms, sums := map[string]*hdrhistogram.Histogram{}, map[string]float64{}
	n, negative := 0, 0
	for _, m := range t.messages {
		if m.due < since.UnixNano() || m.received == 0 || m.stored == 0 {
			continue
		}
		n++
		for name, ns := range m.stages() {
			if histograms[name] == nil {
				histograms[name] = NewHistogram()
			}
			Record(histograms[name], time.Duration(ns))
			sums[name] += float64(ns) / 1e6
			if ns < 0 {
				negative++
			}
		}
	}
	if n == 0 {
		return errors.New("stages: no message was seen on the connections")
	}
	sum := 0.0
	for name, h := range histograms {
		if err := into.AddHistogram("stage_"+name, h); err != nil {
			return err
		}
		mean := sums[name] / float64(n)
		into.Figures["stage_"+name+"_mean_ms"] = mean
		sum += mean
	}
	ratio := sum / into.Figures["e2e_mean_ms"]
	if math.Abs(ratio-1) > sumTolerance {
		return fmt.Errorf("stages: their sum is %.3f ms, but the total delay is %.3f ms", sum, into.Figures["e2e_mean_ms"])
	}
	into.Figures["stages_sum_over_total"] = ratio
	into.Figures["stages_negative_ratio"] = float64(negative) / float64(n*len(histograms))
	into.Figures["stages_messages"] = float64(n)
	return nil
}

// stages returns the time between consecutive points. Without the broker's time stamp, send and
// write are one stage.
func (m *message) stages() map[string]int64 {
	all := map[string]int64{"queue": m.sent - m.due}
	if m.begun > 0 {
		all["send"], all["write"] = m.begun-m.sent, m.stored-m.begun
	} else {
		all["send_write"] = m.stored - m.sent
	}
	if m.offered > 0 {
		all["replicate"], all["pull"] = m.offered-m.stored, m.received-m.offered
	} else {
		all["pull"] = m.received - m.stored
	}
	return all
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
	producerID          = 1
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

// toBroker records when the client sends the messages of an entry.
func (c *connection) toBroker(command, entry []byte) ([]byte, error) {
	now := time.Now().UnixNano()
	_, send := field(command, commandSend)
	if send == nil {
		return command, nil
	}
	producer, _ := field(send, producerID)
	sequence, _ := field(send, sequenceID)
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	var sent []*message
	c.tap.each(entry, func(key uint64, due int64) {
		if c.tap.messages[key] == nil {
			c.tap.messages[key] = &message{due: due, sent: now}
		}
		sent = append(sent, c.tap.messages[key])
	})
	c.pending[[2]uint64{producer, sequence}] = sent
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
		producer, _ := field(receipt, producerID)
		sequence, _ := field(receipt, sequenceID)
		for _, m := range c.pending[[2]uint64{producer, sequence}] {
			m.stored = now
		}
		delete(c.pending, [2]uint64{producer, sequence})
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
func field(b []byte, want protowire.Number) (uint64, []byte) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, nil
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(number, kind, b)
		if size < 0 {
			return 0, nil
		}
		if number == want && kind == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(b)
			return v, nil
		}
		if number == want && kind == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			return 0, v
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
	var frame []byte
	for {
		var head [8]byte // sizes of the frame without this one, and of the command
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		size, commandSize := int(binary.BigEndian.Uint32(head[:]))-4, int(binary.BigEndian.Uint32(head[4:]))
		if cap(frame) < size {
			frame = make([]byte, size)
		}
		frame = frame[:size]
		if _, err := io.ReadFull(r, frame); err != nil {
			return
		}
		entry := frame[commandSize:]
		command, err := seen(frame[:commandSize], entry)
		if err != nil {
			return
		}
		binary.BigEndian.PutUint32(head[:], uint32(4+len(command)+len(entry)))
		binary.BigEndian.PutUint32(head[4:], uint32(len(command)))
		_, _ = w.Write(head[:]) // Flush returns the first error
		_, _ = w.Write(command)
		_, _ = w.Write(entry)
		if r.Buffered() > 0 {
			continue
		}
		if err := w.Flush(); err != nil {
			return
		}
	}
}

// geo publishes to one cluster and receives from the cluster to which it replicates. A consumer in
// the first cluster receives too: its messages carry the time stamp of the first broker.
type geo struct {
	Driver
	remote Driver
}

func (g *geo) Consume(ctx context.Context, topic, subscription string, received func([]byte)) error {
	ctx, stop := context.WithCancel(ctx)
	near := make(chan error, 1)
	go func() { near <- g.Driver.Consume(ctx, topic, subscription, func([]byte) {}) }()
	err := g.remote.Consume(ctx, topic, subscription, received)
	stop()
	return errors.Join(err, <-near)
}
