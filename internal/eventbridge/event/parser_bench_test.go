package event

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkScan is the check alone: syntax, UTF-8, duplicate keys, bounds.
func BenchmarkScan(b *testing.B) {
	body, err := os.ReadFile("testdata/order.json")
	require.NoError(b, err)
	var p Parser
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		p.prepare(body, Options{})
		if _, fault := p.value(0); fault != nil {
			b.Fatal(fault)
		}
	}
}
