package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/pieces"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

// latency compares what a client waits at 2,000 commands a second.
func (b *sonicBench) latency(ctx context.Context) (err error) {
	nutcracker, err := b.startNutcracker(ctx, b.bare)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nutcracker.quit()) }()
	sonic, err := b.startSonic(ctx, zone{name: "a", redis: b.redisA, pulsar: b.pulsarA, zones: []string{"a", "b"}, topic: servers.Fresh("sonic"), policy: "lww"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.end(sonic)) }()
	if err := b.fill(ctx, sonic); err != nil {
		return err
	}
	seconds := 6.0
	if b.Quick {
		seconds = 1.5
	}
	names, addresses := []string{"direct", "nutcracker", "sonic"}, []string{b.bare, nutcracker.address, sonic.address}
	b.Row("\nlatency at 2,000 commands/s\tthrough\tp50 us\tp99 us\tadded p50 us (median, min-max)\tadded p99 us")
	for _, kind := range []struct {
		part, command string
		p50, p99      float64 // targets in microseconds; 0: none
	}{{"reads", "get", 100, 1000}, {"writes", "set", 200, 0}} {
		var p50, p99, added50, added99 [3][]float64
		for round := range b.Rounds + 1 {
			var o [3]measure.Outcome
			for i := range o {
				side := (i + round) % len(o)
				o[side], err = measure.Run(ctx, measure.Piece{
					Kind: "redis-paced", URL: addresses[side], Format: kind.command, Payload: redisValue, Rate: 2000, Seconds: seconds, Callers: redisClients,
				})
				if err != nil {
					return fmt.Errorf("%s: %w", names[side], err)
				}
			}
			if round == 0 {
				continue // warms up
			}
			for i := range o {
				p50[i], p99[i] = append(p50[i], 1000*o[i].P50), append(p99[i], 1000*o[i].P99)
				added50[i], added99[i] = append(added50[i], 1000*(o[i].P50-o[0].P50)), append(added99[i], 1000*(o[i].P99-o[0].P99))
			}
		}
		for i, name := range names {
			b.Row("%s\t%s\t%.0f\t%.0f\t%.0f (%.0f-%.0f)\t%.0f (%.0f-%.0f)", kind.part, name, measure.Median(p50[i]), measure.Median(p99[i]),
				measure.Median(added50[i]), measure.Least(added50[i]), measure.Most(added50[i]), measure.Median(added99[i]), measure.Least(added99[i]), measure.Most(added99[i]))
		}
		b.Figure(kind.part+"_direct_p50_us", measure.Median(p50[0]))
		b.Figure(kind.part+"_direct_p99_us", measure.Median(p99[0]))
		b.Figure(kind.part+"_nutcracker_added_p50_us", measure.Median(added50[1]))
		b.Figure(kind.part+"_nutcracker_added_p99_us", measure.Median(added99[1]))
		b.AtMost(kind.part+"_added_p50_us", measure.Median(added50[2]), kind.p50)
		if kind.p99 > 0 {
			b.AtMost(kind.part+"_added_p99_us", measure.Median(added99[2]), kind.p99)
		} else {
			b.Figure(kind.part+"_added_p99_us", measure.Median(added99[2]))
		}
	}
	return nil
}

// idleClients measures what a connection costs that has sent a command and then nothing.
func (b *sonicBench) idleClients(ctx context.Context) (err error) {
	sonic, err := b.startSonic(ctx, zone{name: "a", redis: b.redisA, pulsar: b.pulsarA, topic: servers.Fresh("sonic"), policy: "lww"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.end(sonic)) }()
	const clients = 5000
	connect := func(n int) (conns []net.Conn, err error) {
		for range n {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", sonic.address)
			if err != nil {
				return conns, err
			}
			conns = append(conns, conn)
			if _, err := conn.Write(pieces.Request("GET", "key")); err != nil {
				return conns, err
			}
			if _, err := io.ReadFull(conn, make([]byte, len("$-1\r\n"))); err != nil {
				return conns, err
			}
		}
		return conns, nil
	}
	shut := func(conns []net.Conn) {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
	first, err := connect(100) // what the first ones bring about is not the others'
	defer shut(first)
	if err != nil {
		return err
	}
	before, err := sonic.Resident()
	if err != nil {
		return err
	}
	conns, err := connect(clients)
	defer shut(conns)
	if err != nil {
		return err
	}
	after, err := sonic.Resident()
	if err != nil {
		return err
	}
	each := (after - before) * 1024 / clients
	b.Row("\nidle clients\tsonic\t%d more\t%.1f KiB each", clients, each)
	b.AtMost("idle_client_kib", each, 20)
	return nil
}
