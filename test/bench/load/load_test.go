package load

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/bench/workload"
)

// blocking is a producer whose first message is acknowledged when the test says so: until then Send
// does not return.
type blocking struct {
	report func(time.Time, error)
	first  sync.Once
	until  time.Time
}

func (b *blocking) Send(ctx context.Context, _ Message, due time.Time) {
	b.first.Do(func() { sleepUntil(ctx, b.until) })
	b.report(due, nil)
}

func (b *blocking) Call(context.Context, Message) error { return nil }

func (b *blocking) Flush(context.Context) error { return nil }

// TestLatencyFromDueTime: messages that wait behind another one have latencies that include the
// wait. A generator that counts from the sending would report one slow message in all.
func TestLatencyFromDueTime(t *testing.T) {
	const wait, rate = time.Second, 100
	r := &run{publish: newRecorder(), endToEnd: newRecorder(), payloads: [][]byte{make([]byte, workload.StampSize)}}
	began := time.Now()
	r.senders = []*sender{{producer: &blocking{report: r.report, until: began.Add(wait)}}}
	r.publish.enter(phaseLoad)
	if err := r.send(t.Context(), 2*wait, 0, rate); err != nil {
		t.Fatal(err)
	}
	r.publish.enter("")
	h := r.publish.phases[phaseLoad]
	if n := h.TotalCount(); n < 2*rate-5 || n > 2*rate+5 {
		t.Errorf("%d messages", n)
	}
	// Half of the messages were due in the first second: the wait of each is shorter than that of the
	// one before. A quarter waited for half a second or more.
	if p75 := time.Duration(h.ValueAtQuantile(76)) * time.Microsecond; p75 < wait*45/100 {
		t.Errorf("a quarter of the latencies should be above half a second; the 76th percentile is %s", p75)
	}
	if longest := time.Duration(h.Max()) * time.Microsecond; longest < wait*9/10 {
		t.Errorf("the longest latency is %s", longest)
	}
}

func TestReadOutput(t *testing.T) {
	sample, result := `{"sample":{"at":1,"phase":"load","values":{"x":2}}}`+"\n", `{"result":{"figures":{"y":3}}}`+"\n"
	seen := 0
	r, err := read(strings.NewReader(sample+sample+result), func(Sample) { seen++ })
	if err != nil || seen != 2 || len(r.Samples) != 2 || r.Figures["y"] != 3 {
		t.Errorf("%d samples seen, result %+v, error %v", seen, r, err)
	}
	for text, want := range map[string]string{
		sample:                      "without a result",
		sample + "panic: " + result: "output of the process: invalid character",
		sample + `{"result":{`:      "output of the process: unexpected EOF",
	} {
		if _, err := read(strings.NewReader(text), func(Sample) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, not %q", err, want)
		}
	}
}
