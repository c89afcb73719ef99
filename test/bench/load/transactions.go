package load

import (
	"bufio"
	"context"
	_ "embed" // the Java program
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

const (
	javaClient    = "4.0.8"
	javaClientSum = "0a083411edeeb7eacf9c4eaa5081b8bb1969a0d558bb8a0e10cd318fb20ec566b6df3e97b37cf89a637aa21d5a14da7e630d98fca5fc430d53a5bfe500f3d216"
	// inParallel is the default for transactions that are open at the same time.
	inParallel = 64
)

//go:embed java/Transactions.java
var transactionsJava []byte

// transactions publishes in transactions with Pulsar's Java client, in a separate process, and
// consumes with pulsar-client-go. It does not publish with pulsar-client-go, because consumers then
// receive aborted messages too (https://github.com/apache/pulsar-client-go/issues/1498). The Java
// client uses no credentials.
//
// Settings: messagesPerTransaction; abortRatio, from 0 (the default) to 1; and inParallel, how many
// transactions are open at the same time.
type transactions struct {
	*client
	messages   int
	abortRatio float64
	consumed   bool // there are consumers, so messages hold their numbers
	slots      chan struct{}

	dir     string
	process *exec.Cmd
	stdin   io.WriteCloser
	opened  chan struct{} // an answer for each producer

	mu              sync.Mutex
	in              *bufio.Writer
	producers       int
	begun           uint64
	open            map[uint64]*transaction
	failure         error // of the Java program; later calls return it
	began, last     time.Time
	ended, aborted  int
	abortedMessages int
	ends            *hdrhistogram.Histogram
}

// transaction is an open transaction.
type transaction struct {
	producer *transactionProducer
	abort    bool
	dues     []time.Time
}

func newTransactions(ctx context.Context, cluster messaging.Config, t Turn) (Driver, error) {
	d := &transactions{
		consumed: len(t.Subscriptions) > 0, opened: make(chan struct{}, 1), open: map[uint64]*transaction{}, ends: NewHistogram(),
	}
	var err error
	if d.messages, err = strconv.Atoi(t.Side.Settings["messagesPerTransaction"]); err != nil || d.messages < 1 {
		return nil, errors.New("settings: messagesPerTransaction: must be a number above 0")
	}
	parallel := inParallel
	if text, ok := t.Side.Settings["inParallel"]; ok {
		if parallel, err = strconv.Atoi(text); err != nil || parallel < 1 {
			return nil, fmt.Errorf("settings: inParallel: %q: must be a number above 0", text)
		}
	}
	d.slots = make(chan struct{}, parallel)
	if text, ok := t.Side.Settings["abortRatio"]; ok {
		if d.abortRatio, err = strconv.ParseFloat(text, 64); err != nil || d.abortRatio < 0 || d.abortRatio > 1 {
			return nil, fmt.Errorf("settings: abortRatio: %q: must be from 0 to 1", text)
		}
	}
	consumer, err := newClient(ctx, cluster, t)
	if err != nil {
		return nil, err
	}
	d.client = consumer.(*client)
	if err := d.start(ctx, cluster); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// start starts the Java program.
func (d *transactions) start(ctx context.Context, cluster messaging.Config) error {
	s, err := stack.New(stack.Config{Log: os.Stderr})
	if err != nil {
		return err
	}
	jars, err := s.Jars(ctx, "pulsar-client-"+javaClient, "org.apache.pulsar:pulsar-client:"+javaClient, javaClientSum)
	if err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return err
	}
	source := filepath.Join(d.dir, "Transactions.java")
	if err := os.WriteFile(source, transactionsJava, 0o600); err != nil {
		return err
	}
	d.process = exec.CommandContext(ctx, "java", "-Xmx256m", "-cp", filepath.Join(jars, "*"), source,
		cluster.URL, cluster.ListenerName)
	d.process.Stderr = os.Stderr
	if d.stdin, err = d.process.StdinPipe(); err != nil {
		return err
	}
	out, err := d.process.StdoutPipe()
	if err != nil {
		return err
	}
	d.in = bufio.NewWriter(d.stdin)
	if err := d.process.Start(); err != nil {
		return err
	}
	go d.read(out)
	return nil
}

// read handles the answers of the Java program until it ends.
func (d *transactions) read(out io.Reader) {
	var answer struct {
		Number int64
		Failed bool
		Micros int32
	}
	answers := bufio.NewReader(out)
	for {
		err := binary.Read(answers, binary.BigEndian, &answer)
		if err != nil {
			d.fail(fmt.Errorf("the Java program ended: %w", err))
			close(d.opened)
			return
		}
		if answer.Number < 0 {
			d.opened <- struct{}{}
			continue
		}
		if answer.Failed {
			err = errors.New("the transaction failed")
		}
		d.end(uint64(answer.Number), time.Duration(answer.Micros)*time.Microsecond, err)
	}
}

// fail ends all transactions with the error.
func (d *transactions) fail(err error) {
	d.mu.Lock()
	d.failure = err
	var numbers []uint64
	for n := range d.open {
		numbers = append(numbers, n)
	}
	d.mu.Unlock()
	for _, n := range numbers {
		d.end(n, 0, err)
	}
}

// end reports the messages of a transaction.
func (d *transactions) end(number uint64, took time.Duration, err error) {
	d.mu.Lock()
	t := d.open[number]
	if t == nil { // already ended
		d.mu.Unlock()
		return
	}
	delete(d.open, number)
	if err == nil {
		d.last = time.Now()
		d.ended++
		_ = d.ends.RecordValue(min(took, longest).Microseconds()) // within the histogram's bounds
		if t.abort {
			d.aborted++
			d.abortedMessages += len(t.dues)
		}
	}
	d.mu.Unlock()
	for _, due := range t.dues {
		if err != nil || !t.abort {
			t.producer.report(due, err)
		}
	}
	<-d.slots
	t.producer.pending.Done()
}

// Producer opens a producer that one goroutine uses at a time. It reports the messages of a
// transaction when the transaction is committed or has failed. It does not report messages of
// aborted transactions.
func (d *transactions) Producer(_ context.Context, topic string, report func(time.Time, error)) (Producer, error) {
	d.mu.Lock()
	frame := appendText([]byte{'P'}, topic)
	number := d.producers
	d.producers++
	err := d.write(frame)
	d.mu.Unlock()
	if _, ok := <-d.opened; !ok || err != nil {
		return nil, errors.Join(err, d.failure)
	}
	return &transactionProducer{driver: d, number: number, report: report}, nil
}

// write sends a frame to the Java program. The caller holds mu.
func (d *transactions) write(frame []byte) error {
	if d.failure != nil {
		return d.failure
	}
	_, err := d.in.Write(frame)
	return errors.Join(err, d.in.Flush())
}

// appendText appends a text in the format of Java's readUTF.
func appendText(frame []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint16(frame, uint16(len(text))), text...)
}

// Figures returns figures of all transactions, including the warm-up. commit is the time from the
// broker's acknowledgement of the messages to the end of the commit or abort.
func (d *transactions) Figures() map[string]float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := map[string]float64{
		"transactions_s":       float64(d.ended) / max(d.last.Sub(d.began).Seconds(), 0.001),
		"aborted_transactions": float64(d.aborted), "aborted_messages": float64(d.abortedMessages),
	}
	percentiles("commit", d.ends, f)
	return f
}

// Close ends the Java program and the consumers.
func (d *transactions) Close() {
	if d.process != nil && d.process.Process != nil {
		_ = d.stdin.Close()
		_ = d.process.Wait() // its exit status does not matter
	}
	_ = os.RemoveAll(d.dir)
	d.client.Close()
}

type transactionProducer struct {
	driver  *transactions
	number  int
	report  func(time.Time, error)
	next    []Message // of the next transaction
	dues    []time.Time
	pending sync.WaitGroup // open transactions
}

// Send keeps the message until the transaction has all of its messages.
func (p *transactionProducer) Send(_ context.Context, m Message, due time.Time) {
	p.next, p.dues = append(p.next, m), append(p.dues, due)
	if len(p.next) == p.driver.messages {
		p.publish()
	}
}

// publish begins a transaction with the messages. It waits while too many are open.
func (p *transactionProducer) publish() {
	d := p.driver
	d.slots <- struct{}{}
	p.pending.Add(1)
	d.mu.Lock()
	n := d.begun
	d.begun++
	if n == 0 {
		d.began = time.Now()
	}
	t := &transaction{producer: p, abort: int(float64(n+1)*d.abortRatio) > int(float64(n)*d.abortRatio), dues: p.dues}
	frame := binary.BigEndian.AppendUint64([]byte{'T'}, n)
	frame = binary.BigEndian.AppendUint32(frame, uint32(p.number))
	frame = append(frame, 0)
	if t.abort {
		frame[len(frame)-1] = 1
	}
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(p.next)))
	for _, m := range p.next {
		if t.abort && d.consumed {
			markAborted(m.Payload)
		}
		frame = binary.BigEndian.AppendUint32(appendText(frame, m.Key), uint32(len(m.Payload)))
		frame = append(frame, m.Payload...)
	}
	d.open[n] = t
	err := d.write(frame)
	d.mu.Unlock()
	p.next, p.dues = nil, nil
	if err != nil {
		d.end(n, 0, err)
	}
}

// Call is not supported: a message is not published before the commit.
func (p *transactionProducer) Call(context.Context, Message) error {
	return fmt.Errorf("driver transactions: callers: %w", errors.ErrUnsupported)
}

// Flush publishes what is left and waits for all transactions.
func (p *transactionProducer) Flush(context.Context) error {
	if len(p.next) > 0 {
		p.publish()
	}
	p.pending.Wait()
	return nil
}
