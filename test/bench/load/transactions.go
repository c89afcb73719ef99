package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/stack"
)

const (
	javaClient    = "4.0.8"
	javaClientSum = "0a083411edeeb7eacf9c4eaa5081b8bb1969a0d558bb8a0e10cd318fb20ec566b6df3e97b37cf89a637aa21d5a14da7e630d98fca5fc430d53a5bfe500f3d216"
	// inParallel is how many transactions are open at the same time.
	inParallel = 64
)

// transactionsProgram is the Java program. The path begins at the module's root.
const transactionsProgram = "test/bench/load/java/Transactions.java"

// transactions publishes in transactions with Pulsar's Java client, in a separate process, and
// consumes with pulsar-client-go. It does not publish with pulsar-client-go, because consumers then
// receive aborted messages too (https://github.com/apache/pulsar-client-go/issues/1498). The Java
// client uses no credentials.
type transactions struct {
	*client
	side     workload.Side
	consumed bool // there are consumers, so messages hold their numbers
	slots    chan struct{}

	process *exec.Cmd
	stdin   io.WriteCloser

	mu              sync.Mutex
	in              *json.Encoder // writes to stdin
	producers       int
	begun           int
	open            map[int]*transaction
	failure         error // of the Java program; later transactions fail with it
	began, last     time.Time
	aborted         int
	abortedMessages int
	ends            *hdrhistogram.Histogram // time of commits and aborts
}

// transaction is what the Java program reads.
type transaction struct {
	Number   int       `json:"number"`
	Producer int       `json:"producer"`
	Topic    string    `json:"topic"`
	Abort    bool      `json:"abort"`
	Messages []Message `json:"messages"`

	producer *transactionProducer
	dues     []time.Time // of the messages
}

// answer is what the Java program writes when a transaction has ended.
type answer struct {
	Number int    `json:"number"`
	Error  string `json:"error"`
	Micros int64  `json:"micros"` // of the commit or abort
}

func newTransactions(ctx context.Context, cluster messaging.Config, t Turn) (Driver, error) {
	if t.Side.MessagesPerTransaction < 1 || t.Side.AbortRatio < 0 || t.Side.AbortRatio > 1 {
		return nil, errors.New("messagesPerTransaction: must be above 0, and abortRatio from 0 to 1")
	}
	consumer, err := newClient(ctx, cluster, t)
	if err != nil {
		return nil, err
	}
	d := &transactions{
		client: consumer.(*client), side: t.Side, consumed: len(t.Subscriptions) > 0, slots: make(chan struct{}, inParallel),
		open: map[int]*transaction{}, ends: NewHistogram(),
	}
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
	process := exec.CommandContext(ctx, "java", "-Xmx256m", "-cp", filepath.Join(jars, "*"), transactionsProgram,
		cluster.URL, cluster.ListenerName)
	process.Stderr = os.Stderr
	if d.stdin, err = process.StdinPipe(); err != nil {
		return err
	}
	d.in = json.NewEncoder(d.stdin)
	out, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return err
	}
	d.process = process
	go d.read(out)
	return nil
}

// read handles the answers of the Java program until it ends. Then it fails what is open.
func (d *transactions) read(out io.Reader) {
	answers := json.NewDecoder(out)
	for {
		var a answer
		if err := answers.Decode(&a); err != nil {
			d.mu.Lock()
			d.failure = fmt.Errorf("the Java program ended: %w", err)
			open := maps.Clone(d.open)
			d.mu.Unlock()
			for n := range open {
				d.end(answer{Number: n, Error: d.failure.Error()})
			}
			return
		}
		d.end(a)
	}
}

// end reports the messages of a transaction.
func (d *transactions) end(a answer) {
	d.mu.Lock()
	t := d.open[a.Number]
	if t == nil { // already ended
		d.mu.Unlock()
		return
	}
	delete(d.open, a.Number)
	var err error
	if a.Error != "" {
		err = errors.New(a.Error)
	} else if len(t.dues) > 0 {
		d.last = time.Now()
		Record(d.ends, time.Duration(a.Micros)*time.Microsecond)
		if t.Abort {
			d.aborted++
			d.abortedMessages += len(t.dues)
		}
	}
	d.mu.Unlock()
	for _, due := range t.dues {
		if err != nil || !t.Abort {
			t.producer.report(due, err)
		}
	}
	<-d.slots
	t.producer.pending.Done()
}

// Producer opens a producer that one goroutine uses at a time. It reports the messages of a
// transaction when the transaction is committed or has failed. It does not report messages of
// aborted transactions.
func (d *transactions) Producer(ctx context.Context, topic string, report func(time.Time, error)) (Producer, error) {
	d.producers++
	p := &transactionProducer{driver: d, number: d.producers, topic: topic, report: report, next: []Message{}}
	p.publish() // without messages: the Java program starts and connects before the load begins
	_ = p.Flush(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	return p, d.failure
}

// figures adds figures of all transactions, including the warm-up. commit is the time from the
// broker's acknowledgement of the messages to the end of the commit or abort.
func (d *transactions) figures(f map[string]float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f["transactions_s"] = float64(d.ends.TotalCount()) / max(d.last.Sub(d.began).Seconds(), 0.001)
	f["aborted_transactions"], f["aborted_messages"] = float64(d.aborted), float64(d.abortedMessages)
	percentiles("commit", d.ends, f)
	for _, name := range []string{"cpu_us", "cpu_cores", "allocs", "peak_mib"} { // the producer is another process
		delete(f, name)
	}
}

// Close ends the Java program and the consumers.
func (d *transactions) Close() {
	if d.process != nil {
		_ = d.stdin.Close()
		_ = d.process.Wait() // its exit status does not matter
	}
	d.client.Close()
}

type transactionProducer struct {
	driver  *transactions
	number  int
	topic   string
	report  func(time.Time, error)
	next    []Message // of the next transaction
	dues    []time.Time
	pending sync.WaitGroup // open transactions
}

// Send keeps the message until the transaction has all of its messages.
func (p *transactionProducer) Send(_ context.Context, m Message, due time.Time) {
	p.next, p.dues = append(p.next, m), append(p.dues, due)
	if len(p.next) == p.driver.side.MessagesPerTransaction {
		p.publish()
	}
}

// publish begins a transaction with the messages. It waits while too many are open.
func (p *transactionProducer) publish() {
	d := p.driver
	d.slots <- struct{}{}
	p.pending.Add(1)
	d.mu.Lock()
	n, ratio := d.begun, d.side.AbortRatio
	if len(p.next) > 0 && d.began.IsZero() {
		d.began = time.Now()
	}
	d.begun++
	t := &transaction{Number: n, Producer: p.number, Topic: p.topic, Messages: p.next, producer: p, dues: p.dues}
	if t.Abort = int(float64(n+1)*ratio) > int(float64(n)*ratio); t.Abort && d.consumed {
		for _, m := range p.next {
			markAborted(m.Payload)
		}
	}
	d.open[n] = t
	err := d.failure
	if err == nil {
		err = d.in.Encode(t)
	}
	d.mu.Unlock()
	p.next, p.dues = []Message{}, nil
	if err != nil {
		d.end(answer{Number: n, Error: err.Error()})
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
