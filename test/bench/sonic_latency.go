package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
)

// latency compares what a client waits at 2,000 commands a second.
func (b *sonicBench) latency(ctx context.Context) (err error) {
	nutcracker, err := b.startNutcracker(ctx, b.bare)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nutcracker.quit()) }()
	sonic, err := b.startSonic(ctx, zone{name: "a", redis: b.redisA, pulsar: b.pulsarA, zones: []string{"a", "b"}, topic: fresh("sonic"), policy: "lww"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.end(sonic)) }()
	if err := b.fill(ctx, sonic); err != nil {
		return err
	}
	seconds := 6.0
	if b.quick {
		seconds = 1.5
	}
	names, addresses := []string{"direct", "nutcracker", "sonic"}, []string{b.bare, nutcracker.address, sonic.address}
	b.row("\nlatency at 2,000 commands/s\tthrough\tp50 us\tp99 us\tadded p50 us (median, min-max)\tadded p99 us")
	for _, kind := range []struct {
		part, command string
		p50, p99      float64 // targets in microseconds; 0: none
	}{{"reads", "get", 100, 1000}, {"writes", "set", 200, 0}} {
		var p50, p99, added50, added99 [3][]float64
		for round := range b.rounds + 1 {
			var o [3]outcome
			for i := range o {
				side := (i + round) % len(o)
				o[side], err = runPiece(ctx, piece{
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
			b.row("%s\t%s\t%.0f\t%.0f\t%.0f (%.0f-%.0f)\t%.0f (%.0f-%.0f)", kind.part, name, median(p50[i]), median(p99[i]),
				median(added50[i]), minOf(added50[i]), maxOf(added50[i]), median(added99[i]), minOf(added99[i]), maxOf(added99[i]))
		}
		b.figure(kind.part+"_direct_p50_us", median(p50[0]))
		b.figure(kind.part+"_direct_p99_us", median(p99[0]))
		b.figure(kind.part+"_nutcracker_added_p50_us", median(added50[1]))
		b.figure(kind.part+"_nutcracker_added_p99_us", median(added99[1]))
		b.atMost(kind.part+"_added_p50_us", median(added50[2]), kind.p50)
		if kind.p99 > 0 {
			b.atMost(kind.part+"_added_p99_us", median(added99[2]), kind.p99)
		} else {
			b.figure(kind.part+"_added_p99_us", median(added99[2]))
		}
	}
	return nil
}

// idleClients measures what a connection costs that has sent a command and then nothing.
func (b *sonicBench) idleClients(ctx context.Context) (err error) {
	sonic, err := b.startSonic(ctx, zone{name: "a", redis: b.redisA, pulsar: b.pulsarA, topic: fresh("sonic"), policy: "lww"})
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
			if _, err := conn.Write(request("GET", "key")); err != nil {
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
	before, err := sonic.resident()
	if err != nil {
		return err
	}
	conns, err := connect(clients)
	defer shut(conns)
	if err != nil {
		return err
	}
	after, err := sonic.resident()
	if err != nil {
		return err
	}
	each := (after - before) / clients
	b.row("\nidle clients\tsonic\t%d more\t%.1f KiB each", clients, each)
	b.atMost("idle_client_kib", each, 20)
	return nil
}

// resident is the process' resident size, in KiB.
func (s *server) resident() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strconv.ParseFloat(strings.Fields(v)[0], 64)
		}
	}
	return 0, errors.New("no VmRSS in /proc/<pid>/status")
}
