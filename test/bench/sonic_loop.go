package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/pieces"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

// loop compares the proxy's event loop with a goroutine for each client: GET of keys that are
// there, once with a connection to Redis for each client and once with one for all of them.
func (b *sonicBench) loop(ctx context.Context) (err error) {
	binary := filepath.Join(b.dir, "relay")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "./test/bench/relay").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	own, err := b.startRelay(ctx, binary, "own")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.quit()) }()
	shared, err := b.startRelay(ctx, binary, "shared", "-shared")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shared.quit()) }()
	sonic, err := b.startSonic(ctx, zone{name: "a", redis: b.redisA, pulsar: b.pulsarA, topic: servers.Fresh("sonic"), policy: "lww"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.end(sonic)) }()
	if err := b.fill(ctx, sonic); err != nil {
		return err
	}
	b.Row(throughputHead)
	for _, clients := range []int{1, redisClients, 1000} {
		for _, p := range []struct{ pipeline, n int }{{1, 100_000}, {16, 600_000}} {
			n := p.n
			if clients == 1 {
				n /= 4
			}
			part := fmt.Sprintf("loop_%d_clients_p%d", clients, p.pipeline)
			ratios, err := b.inTurn(ctx, part, redisLoad{"get", p.pipeline, clients},
				&side{name: "direct", address: b.bare, n: n},
				&side{name: "goroutines_own", address: own.address, endpoint: own, n: n},
				&side{name: "goroutines_shared", address: shared.address, endpoint: shared, n: n},
				&side{name: "loop", address: sonic.address, endpoint: sonic, n: n})
			if err != nil {
				return err
			}
			b.Figure(part+"_over_own", measure.Median(measure.Ratios(ratios[3], ratios[1])))
			b.Figure(part+"_over_shared", measure.Median(measure.Ratios(ratios[3], ratios[2])))
		}
	}
	return nil
}

func (b *sonicBench) startRelay(ctx context.Context, binary, name string, arguments ...string) (*endpoint, error) {
	listen, _, err := servers.TwoPorts()
	if err != nil {
		return nil, err
	}
	s, err := servers.Start(binary, filepath.Join(b.dir, "relay-"+name+".log"), nil, append([]string{"-listen", listen, "-redis", b.bare}, arguments...)...)
	if err != nil {
		return nil, err
	}
	return &endpoint{s, listen}, answers(ctx, s, listen, pieces.Request("GET", "key"))
}
