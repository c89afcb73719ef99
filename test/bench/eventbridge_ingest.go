package main

import (
	"context"
	"errors"
)

const (
	ingestConnections = 256
	ingestBatch       = 100
	// batchConnections are enough to keep two cores busy with batches.
	batchConnections = 16
)

// ingest measures how many events a second are taken, each acknowledged by the broker before its 202. Only the role
// preprocessor runs. Beside it the plain client stores messages of the same size, each of as many callers waiting for its ack.
func (b *eventbridgeBench) ingest(ctx context.Context) (err error) {
	ns, err := b.namespace(ctx, "ingest")
	if err != nil {
		return err
	}
	s, err := b.start(ctx, ns, "preprocessor")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.bus(ctx, "ingest", 4); err != nil {
		return err
	}
	seconds := 8.0
	if b.quick {
		seconds = 2
	}
	b.row("events in\tevents/s\tevents/CPU s\trequest p50/p99 ms\tplain client: messages/s\tp50/p99 ms\tratio (median, min-max)")
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
		var ours, theirs []turn
		load := piece{Kind: "event-load", URL: s.api + "/v1/buses/ingest/events", Callers: kind.conns, Events: kind.events, Count: kind.count, Seconds: seconds}
		if _, err := runPiece(ctx, load); err != nil { // warms up: connections, the broker's compiler
			return err
		}
		if err := inTurn(b.rounds,
			into(&ours, func(round int) (t turn, err error) {
				err = b.profiled(ctx, s, "ingest-"+kind.name, round == 0, func() (err error) {
					t, err = s.load(ctx, load, nil)
					return err
				})
				return t, err
			}),
			into(&theirs, func(int) (turn, error) {
				o, err := runPiece(ctx, piece{
					Kind: kind.plain, URL: b.near.url, Topic: fresh(kind.plainTopicName), Payload: 320, Format: varied, Callers: kind.plainCallers,
					Count: kind.count, Seconds: seconds,
				})
				return turn{load: o, cpu: o.CPU}, err
			}),
		); err != nil {
			return err
		}
		faster := ratios(each(ours, turn.rate), each(theirs, turn.rate))
		of := func(turns []turn, f func(turn) float64) float64 { return median(each(turns, f)) }
		b.row("%s\t%.0f\t%.0f\t%.1f/%.1f\t%.0f\t%.1f/%.1f\t%.3f (%.3f-%.3f)", kind.name, of(ours, turn.rate), of(ours, turn.perCPU),
			of(ours, turn.p50), of(ours, turn.p99), of(theirs, turn.rate), of(theirs, turn.p50), of(theirs, turn.p99),
			median(faster), minOf(faster), maxOf(faster))
		b.atLeast("ingest_"+kind.name+"_s", of(ours, turn.rate), kind.wanted)
		b.figure("ingest_"+kind.name+"_per_cpu_s", of(ours, turn.perCPU))
		b.figure("ingest_"+kind.name+"_plain_s", of(theirs, turn.rate))
		b.figure("ingest_"+kind.name+"_vs_plain", median(faster))
	}
	return nil
}

func (t turn) p50() float64 { return t.load.P50 }
func (t turn) p99() float64 { return t.load.P99 }
