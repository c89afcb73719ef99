package main

import (
	"context"
	"errors"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

const (
	ingestConnections = 256
	ingestBatch       = 100
	// batchConnections are enough to keep two cores busy with batches.
	batchConnections = 16
)

// ingest measures how many events a second are taken, each acknowledged by the broker before its
// 202. Only the role preprocessor runs. Beside it the plain client stores messages of the same
// size, each of as many callers waiting for its ack.
func (b *eventbridgeBench) ingest(ctx context.Context) (err error) {
	ns, err := b.namespace(ctx, "ingest")
	if err != nil {
		return err
	}
	s, err := b.start(ctx, ns, "preprocessor")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	if err := s.bus(ctx, "ingest", 4); err != nil {
		return err
	}
	seconds := 8.0
	if b.Quick {
		seconds = 2
	}
	b.Row("events in\tevents/s\tevents/CPU s\trequest p50/p99 ms\tplain client: messages/s\tp50/p99 ms\tratio (median, min-max)")
	for _, kind := range []struct {
		name           string
		events, conns  int
		count          int
		wanted         float64
		plain          string
		plainCallers   int
		plainTopicName string
	}{
		{"single", 1, ingestConnections, 1e6, 20_000, "raw-sync", ingestConnections, "sync"},
		{"batch", ingestBatch, batchConnections, 1e8, 100_000, "raw-async", 1, "async"},
	} {
		var ours, theirs []servers.Turn
		load := measure.Piece{Kind: "event-load", URL: s.api + "/v1/buses/ingest/events", Callers: kind.conns, Events: kind.events, Count: kind.count, Seconds: seconds}
		if _, err := measure.Run(ctx, load); err != nil { // warms up: connections, the broker's compiler
			return err
		}
		if err := measure.InTurn(b.Rounds,
			measure.Into(&ours, func(round int) (t servers.Turn, err error) {
				err = b.profiled(ctx, s, "ingest-"+kind.name, round == 0, func() (err error) {
					t, err = s.Load(ctx, load, nil)
					return err
				})
				return t, err
			}),
			measure.Into(&theirs, func(int) (servers.Turn, error) {
				o, err := measure.Run(ctx, measure.Piece{
					Kind: kind.plain, URL: b.near.Url, Topic: servers.Fresh(kind.plainTopicName), Payload: 320, Format: measure.Varied, Callers: kind.plainCallers,
					Count: kind.count, Seconds: seconds,
				})
				return servers.Turn{Load: o, CPU: o.CPU}, err
			}),
		); err != nil {
			return err
		}
		faster := measure.Ratios(measure.Each(ours, servers.Turn.Rate), measure.Each(theirs, servers.Turn.Rate))
		of := func(turns []servers.Turn, f func(servers.Turn) float64) float64 {
			return measure.Median(measure.Each(turns, f))
		}
		b.Row("%s\t%.0f\t%.0f\t%.1f/%.1f\t%.0f\t%.1f/%.1f\t%.3f (%.3f-%.3f)", kind.name, of(ours, servers.Turn.Rate), of(ours, servers.Turn.PerCPU),
			of(ours, servers.Turn.P50), of(ours, servers.Turn.P99), of(theirs, servers.Turn.Rate), of(theirs, servers.Turn.P50), of(theirs, servers.Turn.P99),
			measure.Median(faster), measure.Least(faster), measure.Most(faster))
		b.AtLeast("ingest_"+kind.name+"_s", of(ours, servers.Turn.Rate), kind.wanted)
		b.Figure("ingest_"+kind.name+"_per_cpu_s", of(ours, servers.Turn.PerCPU))
		b.Figure("ingest_"+kind.name+"_plain_s", of(theirs, servers.Turn.Rate))
		b.Figure("ingest_"+kind.name+"_vs_plain", measure.Median(faster))
	}
	return nil
}
