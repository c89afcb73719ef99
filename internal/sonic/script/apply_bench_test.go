package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkApply measures what it costs a zone to apply an effect, in microseconds of its Redis'
// processor time: other work on the machine does not show in it.
func BenchmarkApply(b *testing.B) {
	value := strings.Repeat("v", 64)
	for name, write := range map[string]func(i int) []any{
		"set":      func(i int) []any { return []any{"set", fmt.Sprintf("key:%d", i%10_000), value} },
		"set none": func(i int) []any { return []any{"set", fmt.Sprintf("n:key:%d", i%10_000), value} },
		"hset": func(i int) []any {
			return []any{"hset", fmt.Sprintf("hash:%d", i%1000), fmt.Sprintf("f%d", i%10), value}
		},
		"sadd":   func(i int) []any { return []any{"sadd", fmt.Sprintf("set:%d", i%1000), i} },
		"incrby": func(i int) []any { return []any{"incrby", fmt.Sprintf("c:%d", i%1000), 1} },
	} {
		b.Run(name, func(b *testing.B) {
			w := newFixture(b, rand.New(rand.NewPCG(1, 1)), "a", "b")
			from, to := w.zones[0], w.zones[1]
			const batch = 512
			n := 0
			for n < b.N {
				pipe := from.client.Pipeline()
				for range batch {
					args := write(n)
					pipe.Do(context.Background(), append([]any{"FCALL", "sonic_" + args[0].(string), 1, from.out, "0"}, args[1:]...)...)
					n++
				}
				if _, err := pipe.Exec(context.Background()); err != nil {
					b.Fatal(err)
				}
				from.ship(batch)
			}
			before := processorTime(b, to)
			b.ResetTimer()
			for to.deliver(from) {
			}
			b.ReportMetric((processorTime(b, to)-before)*1e6/float64(n), "cpu-us/effect")
		})
	}
}

// processorTime returns the seconds that a zone's Redis has used.
func processorTime(b *testing.B, z *zone) float64 {
	b.Helper()
	info, err := z.client.Info(context.Background(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(info) {
		name, number, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, err := strconv.ParseFloat(number, 64)
			if err != nil {
				b.Fatal(err)
			}
			sum += seconds
		}
	}
	return sum
}
