package event_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
)

// orderOf is an event of about 500 bytes.
func orderOf(i int) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":"order-%08d","source":"/shop/orders","type":"shop.order.placed","time":"2026-11-22T17:00:00.123Z","datacontenttype":"application/json","partitionkey":"customer-%d",`+
		`"data":{"order":%d,"customer":{"id":%d,"name":"Anna Müller","email":"anna@example.org"},"items":[{"sku":"A-1","count":2,"price":19.99},{"sku":"B-7","count":1,"price":5}],"total":44.98,"currency":"EUR","paid":true,"note":"leave it at the door, please, and ring twice","tags":["new","gift"]}}`, i, i%1000, i, i%1000)
}

// cpu is the time that the process has taken of processors, in nanoseconds. On a machine with
// others it says more than the clock.
func cpu(b *testing.B) int64 {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// perEvent reports the processors' time of an event.
func perEvent(b *testing.B, began int64, events int) {
	b.Helper()
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N*events), "cpu-ns/event")
}

func BenchmarkStructured(b *testing.B) {
	body := []byte(orderOf(7))
	var p event.Parser
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	began := cpu(b)
	for b.Loop() {
		if _, err := p.Structured(body, event.Options{MaxBytes: 1 << 18}); err != nil {
			b.Fatal(err)
		}
	}
	perEvent(b, began, 1)
}

func BenchmarkBatch(b *testing.B) {
	all := make([]string, 100)
	for i := range all {
		all[i] = orderOf(i)
	}
	body := []byte("[" + strings.Join(all, ",") + "]")
	var p event.Parser
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	began := cpu(b)
	for b.Loop() {
		if _, err := p.Batch(body, 100, event.Options{MaxBytes: 1 << 18}); err != nil {
			b.Fatal(err)
		}
	}
	perEvent(b, began, 100)
}

func BenchmarkBinary(b *testing.B) {
	var p event.Parser
	e, err := p.Structured([]byte(orderOf(7)), event.Options{})
	if err != nil {
		b.Fatal(err)
	}
	h := http.Header{}
	body, err := e.WriteBinary(h)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	began := cpu(b)
	for b.Loop() {
		if _, err := p.Binary(h, body, event.Options{}); err != nil {
			b.Fatal(err)
		}
	}
	perEvent(b, began, 1)
}

func BenchmarkDecode(b *testing.B) {
	var p event.Parser
	e, err := p.Structured([]byte(orderOf(7)), event.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	began := cpu(b)
	for b.Loop() {
		if _, err := event.Decode(e.JSON); err != nil {
			b.Fatal(err)
		}
	}
	perEvent(b, began, 1)
}

// BenchmarkEncodingJSON is what the standard library takes to check and compact the same, without
// duplicate keys.
func BenchmarkEncodingJSON(b *testing.B) {
	body := []byte(orderOf(7))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	began := cpu(b)
	for b.Loop() {
		var values map[string]json.RawMessage
		if err := json.Unmarshal(body, &values); err != nil {
			b.Fatal(err)
		}
	}
	perEvent(b, began, 1)
}
